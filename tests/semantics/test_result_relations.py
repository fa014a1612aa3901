"""What a caller can ask of a result beside its values: is it a view, of what, and how often was it written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def _written_detached(x: Tensor) -> Tensor:
    view = x.view(torch.int32)
    x.detach().mul_(2)
    return view


def _written_as_integers(x: Tensor) -> Tensor:
    view = x.view(torch.int32)
    view.add_(1)
    return view


def _beside_its_base(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.view(torch.int32), y[0], y.detach()


OTHER_DTYPES: dict[str, Callable[[Tensor], Any]] = {
    "integers": lambda x: x.view(torch.int32),
    "halves": lambda x: x.view(torch.bfloat16),
    "there and back": lambda x: x.view(torch.int32).view(torch.float32),
    "of a part": lambda x: x[1:].view(torch.int32),
    "a part of it": lambda x: (x.view(torch.int32)[1:], x.view(-1)),
    "detached part": lambda x: x.split(2)[1].detach(),
    "members": lambda x: [t.view(torch.int32) for t in x.split(2)],
    "twice": lambda x: (x.detach(), x.view(torch.int32).detach()[0]),
    "of a value": _beside_its_base,
    "of a value alone": lambda x: (x * 2).view(torch.int32),
    "base written": _written_detached,
    "view written": _written_as_integers,
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
}


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def _seen(x: Tensor, out: Any) -> list[Any]:
    results = list(out) if isinstance(out, (tuple, list)) else [out]
    everything = [x, *results]
    rows: list[Any] = []
    for t in everything:
        bases = [k for k, u in enumerate(everything) if t._base is u]
        inner = [_version(u) for u in (t.a, t.b)] if isinstance(t, TwoTensor) else []
        place = (t.dtype, t.stride(), t.storage_offset(), t.requires_grad)
        rows.append((t._is_view(), t._base is None, bases, _version(t), inner, place))
    for t in everything:  # who shares a counter with whom
        if not t.is_inference():
            with torch.no_grad():
                t.mul_(1)
            rows.append([_version(u) for u in everything])
    return rows


def _compare(function: Callable[[Any], Any], make: Callable[[], Tensor], mode: str) -> None:
    region = st.compile(function)
    for _ in range(2):
        found = []
        for call in (function, region):
            x = make()
            with MODES[mode]():
                out = call(x)
            found.append(_seen(x, out))
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("dense", mode) for mode in MODES),
        ("requires grad", "grad"),
        ("view", "no_grad"),
    ],
)
@pytest.mark.parametrize("name", OTHER_DTYPES)
def test_a_view_of_another_dtype_shares_the_counter(name: str, kind: str, mode: str) -> None:
    def make() -> Tensor:
        x = torch.arange(16.0).view(4, 4).clone()
        if kind == "view":
            return torch.cat([x, x])[1:5]
        return x.requires_grad_() * 1 if kind == "requires grad" else x

    _compare(OTHER_DTYPES[name], make, mode)


def test_a_write_to_a_wrapper_inside_is_counted_there() -> None:
    def nested() -> TwoTensor:
        return TwoTensor(TwoTensor(torch.ones(2), torch.ones(2)), TwoTensor(torch.ones(2), torch.ones(2)))

    def write(x: Tensor) -> None:
        x.b.mul_(2)  # type: ignore[attr-defined]

    def several(x: Tensor) -> Tensor:
        x.b.mul_(2)  # type: ignore[attr-defined]
        x.add_(1)
        return x.b + 1  # type: ignore[attr-defined]

    for function in (write, several):
        seen = []
        for call in (function, st.compile(function)):
            x = nested()
            for _ in range(2):
                call(x)
            seen.append([x._version > 0, x.b._version > 0, x.b.a.tolist()])
        assert seen[0] == seen[1]

    x, w = nested(), TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_()
    loss = (x.b * w).sum()
    st.compile(write)(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward(TwoTensor(torch.tensor(1.0), torch.tensor(1.0)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_products_of_batches_are_no_views(dynamic: bool) -> None:
    for function in (
        lambda x: x @ x.transpose(-1, -2),
        lambda x: torch.matmul(x[0].expand_as(x), x.transpose(-1, -2)),
    ):
        for shape in ((3, 4, 5), (2, 3, 4, 5)):
            region, x = st.compile(function, dynamic=dynamic or None), torch.randn(shape)
            with torch.no_grad():
                mine, theirs = region(x), function(x)
            assert torch.equal(mine, theirs) and mine._is_view() is theirs._is_view()
            mine.add_(torch.ones((), requires_grad=True))
