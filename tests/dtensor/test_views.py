"""Views of a DTensor among the results: what they are views of, and what a write to one of them does, as in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from spmd import COLUMNS, ROWS, VERSION, check, difference, of_local, seen, tangent, whole
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils import _pytree as pytree

import subclass_trace as st

Tensor = torch.Tensor
Program = Callable[[Any], Any]

#: parts along a dimension that is not split, of which several are results
MEMBERS: dict[str, Program] = {
    "chunk": lambda x: x.chunk(2, 1),
    "split": lambda x: x.split([1, 3], 1),
    "unbind": lambda x: x.unbind(1),
    "one of several": lambda x: x.chunk(2, 1)[1],
    "two of several calls": lambda x: [x.chunk(4, 1)[k] for k in (3, 1)],
    "some of one call": lambda x: (lambda parts: [parts[3], parts[1], parts[3]])(x.chunk(4, 1)),
    "views of members": lambda x: [m.t() for m in x.chunk(2, 1)],
    "members, and views of these": lambda x: (lambda a, b: [a, b, a.t(), b[:, :1]])(*x.chunk(2, 1)),
    "members of a view": lambda x: x.t().chunk(2, 0),
    "members of members": lambda x: [p for m in x.chunk(2, 1) for p in m.chunk(2, 1)],
    "members of an intermediate": lambda x: (x * 2).chunk(2, 1),
    "members, and their base": lambda x: (lambda y: [y, *y.chunk(2, 1)])(x * 2),
}
#: the same where the region computes with members, whose gradients meet in its own node: that refuses in other words
USED: dict[str, Program] = {
    "members, and a value of one": lambda x: (lambda a, b: [a, b, a * 2])(*x.chunk(2, 1)),
    "a member, and a value of the other": lambda x: (lambda a, b: [a, b * 2])(*x.chunk(2, 1)),
    "a member, and values of both": lambda x: (lambda a, b: [a, a * 2, b.sin()])(*x.chunk(2, 1)),
    "members, and a value of a view of one": lambda x: (lambda a, b: [a, b, b.t().sin()])(*x.chunk(2, 1)),
    "members of an intermediate, and a value of one": lambda x: (lambda a, b: [a, b.t(), b.sin()])(
        *(x * 2).chunk(2, 1)
    ),
    "gathered members, and a value of one": lambda x: (lambda a, b: [a, b, a.sin()])(*x.chunk(2)),
    "gathered members of an intermediate": lambda x: (lambda a, b: [a, b, a.sin()])(*(x * 2).chunk(2)),
}
#: parts along the dimension that is split, which are gathered first
GATHERED: dict[str, Program] = {
    "slice": lambda x: x[:2],
    "select": lambda x: x[0],
    "all chunks": lambda x: x.chunk(2),
    "one chunk": lambda x: x.chunk(2)[1],
    "chunks with a view": lambda x: (lambda a, b: [a.t(), b])(*x.chunk(2)),
    "slice and its transpose": lambda x: (lambda y: [y, y.t()])(x[:2]),
    "transpose of a slice": lambda x: x[:2].t(),
    "slice of a transpose": lambda x: x.t()[:, 1:3],
    "slice of both dimensions": lambda x: x[:2, 1:],
    "slice of a slice": lambda x: x[:3][1:],
    "slice of an intermediate": lambda x: (x * 2)[:2],
    "slice, and its base": lambda x: (lambda y: [y, y[:2]])(x * 2),
    "slice, and a value of it": lambda x: (lambda y: [y, y.sin()])(x[:2]),
    "slice, a view and a value of it": lambda x: (lambda y: [y.t(), y.sin(), y])(x[:2]),
    "slice of an intermediate, and a value": lambda x: (lambda y: [y, y.sin()])((x * 2)[:2]),
    "gathered and not": lambda x: [x[:2], x[:, :2]],
}
PROGRAMS = {**MEMBERS, **USED, **GATHERED}

INPUTS = {"plain": (False, False), "leaf": (True, False), "not a leaf": (True, True)}


def _nothing(x: Any, results: list[Any]) -> None:
    """Nothing is written."""


def _write_last_result(x: Any, results: list[Any]) -> None:
    results[-1].mul_(3)


def _write_first_result(x: Any, results: list[Any]) -> None:
    results[0].mul_(3)


def _write_input(x: Any, results: list[Any]) -> None:
    x.mul_(3)


WRITES = (_nothing, _write_last_result, _write_first_result, _write_input)


def _contents(x: Any, results: list[Any]) -> list[Any]:
    return [seen(t, requires_grad=False) for t in (x, *results)]


def _behaviour(call: Any, name: str, make: Any, write: Any, grad: bool) -> dict[str, Any]:
    root, x = make()
    results = pytree.tree_leaves(call(PROGRAMS[name])(x))
    found: dict[str, Any] = {"before": _contents(x, results)}
    try:
        with contextlib.nullcontext() if grad else torch.no_grad():
            write(x, results)
    except RuntimeError as error:
        return found | {"refused": str(error)}
    found["after"] = _contents(x, results)
    try:
        outs = [r for r in results if r.requires_grad]
        outs += [x] if x.requires_grad and x.grad_fn is not None else []
        if outs:
            torch.autograd.backward(outs, [tangent(o) for o in outs])
        found["gradient"] = seen(root.grad, requires_grad=False)
    except RuntimeError as error:
        found["refused"] = str(error)
    return found


@pytest.mark.parametrize(
    ("inputs", "ranks"),
    [
        ("leaf", 4),
        ("not a leaf", 4),
        pytest.param("plain", 4, marks=pytest.mark.slow),
        *(pytest.param(inputs, 1, marks=pytest.mark.slow) for inputs in INPUTS),
    ],
)
@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sweep(every=4)
def test_values_and_gradients_are_as_in_eager(process_group, name, inputs, ranks) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (4,) if ranks == 4 else (4, 1))
    placements = ROWS if ranks == 4 else [Replicate(), Shard(0)]
    requires_grad, moved = INPUTS[inputs]

    def make():
        root = whole(mesh, 8, 4, placements=placements, grad=requires_grad)
        return root, root * 1 if moved else root

    for grad in (True, False):
        region = st.compile(PROGRAMS[name])
        for write in WRITES[: 3 if name in GATHERED else None]:  # a part that was gathered keeps what it holds
            want = _behaviour(lambda f: f, name, make, write, grad)
            got = _behaviour(lambda f, region=region: region, name, make, write, grad)
            where = f"{write.__name__}, gradients are {'on' if grad else 'off'}"
            assert write is not _nothing or ("refused" in got) == ("refused" in want), f"{where}: {got}"
            found = difference(
                {k: v for k, v in want.items() if k in got}, {k: v for k, v in got.items() if k in want}, 1e-6
            )
            assert found is None or "refused" in want or "refused" in got, f"{where}: {found}"
        assert len(region.specializations) == 1 or "ran eagerly" in region.explain(), region.explain()


# ---- ``x.view(b * s, h)`` of a DTensor that is split by ``s``: a ``_StridedShard``, as value, result, input and gradient
#: eager mode itself refuses such views in torch 2.11, and two of these programs in 2.12
of_2_12 = pytest.mark.skipif(VERSION < (2, 12), reason="torch 2.11 has no such views")
of_2_13 = pytest.mark.skipif(VERSION < (2, 13), reason="refused by torch 2.12 in eager mode")


def flat(x):
    return x.flatten(0, 1)


def there_and_back(x):
    return (flat(x) * 2).unflatten(0, x.shape[:2]).sin()


@of_2_13
def test_as_an_input(mesh) -> None:
    def make():
        x = flat(of_local(mesh, 8, 1, 6, placements=COLUMNS).detach()).requires_grad_()
        return (x,), (x,)

    region = check(torch.sin, make)
    other = make()[0][0].detach()
    decoded = DTensor.from_local(
        other.to_local(), mesh, other.placements, run_check=False
    )  # it says that it is an order
    for x in (other, decoded, other):
        want, got = (x.sin(), region(x))
        assert got._spec == want._spec and torch.equal(got.to_local(), want.to_local())


@of_2_12
def test_a_changing_batch(mesh) -> None:
    region = st.compile(there_and_back)
    for batch in (8, 4, 6):
        found = []
        for f in (there_and_back, region):
            x = of_local(mesh, batch, 1, 6, placements=COLUMNS, seed=batch)
            out = f(x)
            out.sum().backward()
            found.append([seen(out), seen(x.grad)])
        assert difference(*found) is None, difference(*found)


@of_2_13
@pytest.mark.parametrize(
    ("f", "grad"),
    [
        (torch.Tensor.flatten, True),
        (lambda x: x.view(x.shape[0] * x.shape[1]), False),
        pytest.param(torch.Tensor.flatten, False, marks=pytest.mark.slow),
        pytest.param(lambda x: x.view(x.shape[0] * x.shape[1]), True, marks=pytest.mark.slow),
    ],
)
def test_a_view_as_the_result_with_symbolic_sizes(mesh, f, grad) -> None:
    """The view is made once more for the plan, where the split factor is the number that it was while tracing."""
    region = st.compile(f, dynamic=True)
    for rows, columns in ((8, 8), (16, 8), (12, 4), (4, 16), (8, 8)):
        found = []
        for run in (f, region):
            x = whole(mesh, rows, columns, placements=COLUMNS, grad=grad)
            out = run(x)
            if grad:
                (out * out).sum().backward()
            found.append([seen(out), out._is_view(), seen(x.grad)])
        assert difference(*found) is None, difference(*found)
