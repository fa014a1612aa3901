"""Do fake kernels lay results out as the real ones do? Each operation, over several layouts.

A wrong stride decides what is a view: ``y.reshape(-1)`` of a result is one where the strides allow
it, so a trace that believes a wrong one writes through it, or does not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from samples import EAGER_DIES, dtype_of, full_name, samples_of
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from subclass_trace.torch_api.fake_results import FakeResults
from subclass_trace.torch_api.fakes import fake_mode
from subclass_trace.torch_api.symbols import ShapeEnv

Tensor = torch.Tensor
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t


def _inner_transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT if t.dim() > 2 else t


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=_FORMATS[t.dim()]) if t.dim() in _FORMATS else t


def _sliced(t: Tensor) -> Tensor:
    return torch.stack([t, t], -1)[..., 0] if t.dim() else t


def _expanded(t: Tensor) -> Tensor:
    """The first row, repeated."""
    return t[:1].expand(t.shape) if t.dim() and t.shape[0] > 1 else t


def _expanded_last(t: Tensor) -> Tensor:
    return t[..., :1].expand(t.shape) if t.dim() > 1 else t


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": _transposed,
    "inner transposed": _inner_transposed,
    "channels last": _channels_last,
    "sliced": _sliced,
    "expanded": _expanded,
    "expanded in the last dimension": _expanded_last,
}


def laid_out(sample: Any, layout: str, which: str, grad: bool) -> Any:
    """(input, args, kwargs) of a sample; laid out so are all tensors, the first, or all others."""
    number = 0

    def one(t: Tensor) -> Tensor:
        nonlocal number
        number += 1
        if t.layout is not torch.strided or t.is_conj() or t.is_neg() or t.is_quantized:
            return t
        chosen = which == "all" or (which == "first") == (number == 1)
        new = LAYOUTS[layout](t.detach()) if chosen else t.detach().clone()
        new = new if new._base is None else new.detach()
        return new.requires_grad_(grad and t.requires_grad)

    return pytree.tree_map_only(
        Tensor,
        one,
        (sample.input, tuple(sample.args), dict(sample.kwargs)),
    )


def _layout(t: Tensor) -> tuple[Any, ...]:
    strides = [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]
    return tuple(t.shape), tuple(strides) if t.numel() else (), t.dtype, t.device.type


def _strided(values: Any) -> list[Tensor] | None:
    found = [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
    plain = all(type(t) is Tensor and t.layout is torch.strided for t in found)
    return found if plain else None


class Compared(TorchDispatchMode):
    """Runs each operation on real tensors, and its fake kernel; notes where they differ."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, str] = {}
        self.mode = fake_mode(ShapeEnv())
        self.results = FakeResults(self.mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _strided((args, kwargs))
        if given is None or func.namespace != "aten" or func in self.found:
            return func(*args, **kwargs)
        fakes = {id(t): self.mode.from_tensor(t.detach(), static_shapes=True) for t in given}
        out = func(*args, **kwargs)
        faked = self._fake(
            func,
            *pytree.tree_map_only(Tensor, lambda t: fakes[id(t)], (args, kwargs)),
        )
        real = _strided(out)
        if faked is not None and real is not None:
            rows = [(_layout(r), _layout(f)) for r, f in zip(real, faked, strict=True)]
            if any(r != f for r, f in rows):
                shown = [(_layout(t), t.stride()) for t in given]
                self.found[func] = f"{rows}: real and fake, of {shown}"
        return out

    def _fake(self, func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
        """What the fake kernel makes; None where a trace would refuse the operation."""
        try:
            with self.mode:
                out = self.results.run(func, args, kwargs)
        except Exception:
            return None
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        plain = all(type(n) is int for t in made for n in t.shape)
        return made if plain else None


def _backward(out: Any) -> None:
    results = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
    for lay in ("contiguous", "transposed"):
        tangents = [LAYOUTS[lay](torch.ones_like(t)) for t in results]
        if results:
            torch.autograd.grad(
                results,
                _inputs_of(results),
                tangents,
                retain_graph=True,
                allow_unused=True,
            )


def _inputs_of(results: list[Tensor]) -> list[Tensor]:
    seen, found = set(), []
    todo = [t.grad_fn for t in results if t.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions if following is not None]
    return found


def _grown(sample: Any) -> Any:
    """The same call with tensors of four dimensions: leading ones are added."""

    def one(t: Tensor) -> Tensor:
        if not 0 < t.dim() < 4 or t.layout is not torch.strided:
            return t
        size = (2, 3, 2)[: 4 - t.dim()]
        return t.detach().expand(*size, *t.shape).contiguous().requires_grad_(t.requires_grad)

    parts = (sample.input, tuple(sample.args), dict(sample.kwargs))
    return SampleInput(*pytree.tree_map_only(Tensor, one, parts))


@dataclass
class SampleInput:
    """As torch's, which is looked at alone."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def _matrix(*size: int) -> Tensor:
    return torch.arange(1.0, 1 + math.prod(size)).view(size).requires_grad_()


#: calls that torch's samples lack
MORE: dict[str, list[SampleInput]] = {
    "addr": [SampleInput(_matrix(5, 6), (_matrix(5), _matrix(6)), {"beta": 0.0})],
    "roll": [SampleInput(_matrix(2, 4, 3, 5), a) for a in ((1, 1), ((0, 1), (1, 2)), (2,))],
    "nn.functional.channel_shuffle": [SampleInput(_matrix(2, 4, 3, 5), (2,))],
    "nn.functional.batch_norm": [
        SampleInput(_matrix(2, 4, 3, 5), (torch.zeros(4), torch.ones(4)), {"training": train})
        for train in (True, False)
    ],
    "nn.functional.rrelu": [SampleInput(_matrix(2, 4, 3, 5), (), {"training": True})],
}


def differences(op: Any, count: int) -> dict[Any, str]:
    """ATen operation -> where its fake kernel lays a result out otherwise, forward and backward."""
    if full_name(op) in EAGER_DIES:
        return {}
    dtype = dtype_of(op)
    if dtype is None:
        return {}
    grad = bool(op.supports_autograd and (dtype.is_floating_point or dtype.is_complex))
    compared = Compared()
    samples = samples_of(op, dtype, grad, count)
    for sample in (*samples, *map(_grown, samples[:1]), *MORE.get(full_name(op), ())):
        for layout, which in _forms():
            with contextlib.suppress(Exception):  # eager refuses this layout, or these values
                args = laid_out(sample, layout, which, grad)
                with compared:
                    out = op.op(args[0], *args[1], **args[2])
                    if grad:
                        _backward(out)
    return compared.found


def _forms() -> Iterator[tuple[str, str]]:
    for layout in LAYOUTS:
        yield layout, "all"
        if layout != "contiguous":
            yield layout, "first"
            yield layout, "others"
