"""``readable_models.py make|use FOLDER``: saved source of many kinds, written with this package, and used where it cannot be imported."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor


class Net(nn.Module):
    """Buffers that are written, a number, a view as a result."""

    def __init__(self, wrapped: bool = False) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.scale = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4), 2.0
        if wrapped:
            for layer in (self.a, self.b):
                layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach().clone()))

    def forward(self, x: torch.Tensor) -> Any:
        h = self.a(x)
        y = self.b((self.norm(h) if type(h) is torch.Tensor else h).relu()) * self.scale
        return {"y": y, "first": x[0], "more": (y[:, 1:], [x, 3])}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return self.down(self.up(x).sin()) * scale + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])


SETTINGS = {"scale": 3.0}


def plain(x: Any, w: Any) -> Any:
    return (x @ w).relu() * SETTINGS["scale"]


def pair(seed: int, *size: int) -> TwoTensor:
    torch.manual_seed(seed)
    return TwoTensor(torch.randn(size), torch.randn(size)).requires_grad_()


def dense(n: int) -> torch.Tensor:
    torch.manual_seed(n)
    return torch.randn(n, 8)


#: name -> (the function or module, options, arguments of its calls)
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any], list[Callable[[], tuple[Any, ...]]]]] = {
    "training": (Net, {}, [lambda: (dense(4),), lambda: (dense(4) + 1,)]),
    "dynamic": (Net, {"dynamic": True}, [lambda: (dense(4),), lambda: (dense(6),)]),
    "two sizes": (Net, {"dynamic": False}, [lambda: (dense(4),), lambda: (dense(6),)]),
    "wrapped weights": (lambda: Net(wrapped=True), {}, [lambda: (dense(4),)]),
    "wrapped and dynamic": (lambda: Net(wrapped=True), {"dynamic": True}, [lambda: (dense(4),), lambda: (dense(7),)]),
    "wrapped inputs": (lambda: plain, {}, [lambda: (pair(0, 4, 8), pair(1, 8, 8))]),
    "inputs that require grad": (lambda: plain, {}, [lambda: (dense(4).requires_grad_(), pair(1, 8, 8))]),
    "few operations": (lambda: plain, {}, [lambda: (dense(4).requires_grad_(), dense(8))]),
    "tied": (Tied, {}, [lambda: (dense(4),), lambda: (dense(4), 5.0)]),
    "evaluation": (lambda: Net().eval(), {}, [lambda: (dense(4),)]),
}


def flat(value: Any) -> list[Any]:
    """Tensors by class, numbers and history; with the class of each container."""
    if isinstance(value, torch.Tensor):
        inner = [value.a, value.b] if isinstance(value, TwoTensor) else [value]
        return [type(value).__name__, value.requires_grad, [t.detach().tolist() for t in inner]]
    if isinstance(value, dict):
        return ["dict", *(flat(v) for v in value.values())]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(flat, value)]
    return value


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in held for t in tensors(v)]


def use(function: Any, args: tuple[Any, ...], owner: Any) -> list[Any]:
    result = function(*args)
    losses = [t.sum() for t in tensors(result) if t.grad_fn is not None]
    for loss in losses[:1]:
        loss.backward()
    found = [flat(result), *(flat(a.grad) for a in args if isinstance(a, torch.Tensor))]
    if isinstance(owner, nn.Module):
        found += [[flat(p), flat(p.grad)] for p in owner.parameters()] + [flat(b) for b in owner.buffers()]
    return found


def made(name: str) -> Any:
    torch.manual_seed(0)
    return KINDS[name][0]()


def close(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return type(a) is type(b) and len(a) == len(b) and all(map(close, a, b))
    return abs(a - b) <= 1e-5 * max(1.0, abs(a)) if isinstance(a, float) else bool(a == b)


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem.replace(" ", "_"), path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    found: dict[str, Any] = {}
    if how == "make":
        import subclass_trace as st

        for name, (_, options, calls) in KINDS.items():
            function = made(name)
            region = st.compile(function, frontend="trace", **options)
            for call in calls:
                use(region, call(), function)
            region.save_source(folder / f"{name}.py")
            found[name] = len(region.specializations)
    else:
        sys.modules["subclass_trace"] = None  # type: ignore[assignment]
        for name, (_, _, calls) in KINDS.items():
            function, same, file = made(name), made(name), loaded(folder / f"{name}.py")
            served = file.bind(function)
            rows = [(use(served, call(), function), use(same, call(), same)) for call in calls]
            found[name] = {
                "equal": [close(*row) for row in rows],
                "rows": "" if all(close(*r) for r in rows) else repr(rows),
            }
            try:
                served(torch.ones(4, 9), torch.ones(2))
            except file.NoSpecialization as error:
                found[name]["refused"] = str(error)
    (folder / f"{how}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
