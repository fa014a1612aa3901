"""What a caller can ask of a result beside its values: is it a view, of what, and how often was it written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

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
    return y, y.view(torch.int32), y[0], y.t()[1:].detach()


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
        *((kind, mode) for kind in ("dense", "wrapper") for mode in MODES),
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
        if kind == "wrapper":
            return TwoTensor(x, x * 2)
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
            inside = [x.a, x.b, x.a.a, x.b.a, x.b.b]
            seen.append([x._version, *[t._version for t in inside], x.b.a.tolist()])
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
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ):
        for shape in ((3, 4, 5), (2, 3, 4, 5)):
            region, x = st.compile(function, dynamic=dynamic), torch.randn(shape)
            with torch.no_grad():
                mine, theirs = region(x), function(x)
            assert torch.equal(mine, theirs) and mine._is_view() is theirs._is_view()
            mine.add_(torch.ones((), requires_grad=True))


# ---------------------------------------------------------------------------------------------- views that become leaves
def _part_without_history(x: Tensor) -> Tensor:
    with torch.no_grad():
        part = x[1:]
    return part.requires_grad_()


def _member_without_history(x: Tensor) -> Tensor:
    with torch.no_grad():
        part = x.split(1)[1]
    return part.requires_grad_()


def _part_of_view_without_history(x: Tensor) -> Tensor:
    view = x[1:]
    with torch.no_grad():
        _, part = view.tensor_split(2)
    return part.requires_grad_()


def _part_of_a_value_without_history(x: Tensor) -> Tensor:
    value = x * 2
    with torch.no_grad():
        part = value[1:]
    return part.requires_grad_()


def _with_the_value(x: Tensor) -> tuple[Tensor, Tensor]:
    value = x * 2
    with torch.no_grad():
        part = value[1:]
    return part.requires_grad_(), value


_LEAVES = (
    _part_without_history,
    _member_without_history,
    _part_of_view_without_history,
    _part_of_a_value_without_history,
    _with_the_value,
)


def _roots() -> list[Tensor]:
    leaf = torch.arange(4.0).requires_grad_()
    wrapper = TwoTensor(torch.arange(4.0), torch.ones(4)).requires_grad_()
    return [leaf, torch.arange(4.0).requires_grad_() * 2, wrapper]


@pytest.mark.parametrize("function", _LEAVES)
@pytest.mark.parametrize("number", range(3))
def test_views_without_a_history_that_become_leaves(function: Callable[..., Any], number: int) -> None:
    seen = []
    for call in (function, st.compile(function)):
        x = _roots()[number]
        x.retain_grad()
        rows: list[Any] = []
        for out in results if isinstance(results := call(x), tuple) else (results,):
            out.sum().backward()
            rows.append((repr(out.detach()), out.requires_grad, out.is_leaf, out._is_view(), out._base is x))
            rows.append((repr(out.grad) if out.is_leaf else None, repr(x.grad)))
        seen.append(rows)
    assert seen[1] == seen[0]


# ---------------------------------------------------------------------------------------------- inputs that require grad later
def _view_before(x: Tensor) -> Tensor:
    view = x.view(1, -1).view(-1)
    x.requires_grad_()
    return view


def _view_before_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        view = x.view(-1)
    x.requires_grad_()
    return view


def _member_before(x: Tensor) -> Tensor:
    view = x.split(1)[1]
    x.requires_grad_()
    return view


def _view_after(x: Tensor) -> Tensor:
    return x.requires_grad_().view(-1)


def _history_of(view: Tensor) -> str:
    try:
        return str(view.grad_fn and view.grad_fn.name())
    except RuntimeError as error:
        return str(error)


def _write(view: Tensor) -> str:
    try:
        view.mul_(2)
    except RuntimeError as error:
        return str(error)
    return "written"


@pytest.mark.parametrize("function", [_view_before, _view_before_without_gradients, _member_before, _view_after])
@pytest.mark.parametrize("wrapped", [False, True])
def test_views_of_an_input_that_requires_grad_later(function: Callable[..., Any], wrapped: bool) -> None:
    """Autograd gives them a history, or refuses that, by the mode that they were made in."""
    seen = []
    for call in (function, st.compile(function)):
        rows = []
        for write in (lambda x, _: x.mul_(3), lambda _, view: view.mul_(3)):
            x = TwoTensor(torch.ones(3), torch.ones(3)) if wrapped else torch.ones(3)
            view = call(x)
            rows.append((view.requires_grad, view._base is x, _history_of(view), _write(view)))
            with torch.no_grad():
                write(x, view)
            rows.append((view.requires_grad, _history_of(view), x._version))
        seen.append(rows)
    assert seen[1] == seen[0]
