"""Writes that are put back in place: against eager, bit by bit, with versions and aliases; and that they are in place."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as s

import subclass_trace as st
from subclass_trace import verify

Tensor = torch.Tensor

# ---------------------------------------------------------------------------------------------- generated programs
#: what a line may write to or read: the input, a value of the program, parts of them, a second input that is only read
PLACES = (
    "x",
    "y",
    "x[1]",
    "y[:, 2]",
    "x[1:3]",
    "y[0, 1:3]",
    "x.t()[1]",
    "y.view(-1)[2:5]",
    "x.diagonal()",
    "x[..., ::2]",
)
WHOLE = ("x", "y", "z", "x.t().t()", "(y * 2)")
ROWS = ("x[0]", "y[1]", "z[2]", "x[1]", "z[0] + 1", "x.sum(0)", "rows[-1]", "old[0]")
WRITES = (
    "{p}.add_(1)",
    "{p}.mul_(1.5)",
    "{p}.zero_()",
    "{p}.fill_(2)",
    "{p}.abs_()",
    "{p}.clamp_(-1, 1)",
    "{p}.add_({p})",
    "{p}.copy_({p} * 2)",
    "{p}[0] = 3.0",
    "{p}[...] = {p}.flip(0)",
    "{p}[{p} > 0.5] = 0.25",
    "{p}.masked_fill_({p} < 0, 9.0)",
)
OF_WHOLE = (
    "{a}.copy_({b})",
    "{a}.add_({b}, alpha=2)",
    "{a}.mul_({b})",
    "{a}[1:] = {b}[:-1].clone()",
    "{a}.index_copy_(0, torch.tensor([2, 0]), {b}[:2].clone())",
    "{a}.index_put_((torch.tensor([1, 1]),), {b}[:2].clone(), accumulate=True)",
    "{a}.scatter_(0, torch.zeros(1, 4, dtype=torch.long), {b}.clone())",
    "torch._foreach_mul_([x, y], 2.0)",
    "{a} += torch.ones(4, dtype=torch.float64)",
)
OF_ROWS = (
    "{a}[2] = {r}",
    "{a}[0, :] += {r}",
    "{a}.index_add_(0, torch.tensor([1]), ({r})[None])",
    "{a}[1:2].add_({r})",
)
READS = (
    "rows.append({p}.sum(0).expand(4) if {p}.dim() > 1 else {p}.sum().expand(4))",
    "results.append({p}.clone())",
    "results.append({w}.sum())",
    "old = {w}.clone()",
    "results.append(old)",
    "results.append(y[1])",
    "y = {w} + 0",
    "y = torch.select_scatter(y, z[1], 0, 2)",
    "y = y.clone()",
    "results.append(x)",
    "results.append(x[2])",
)
LINES = s.one_of(
    s.builds(str.format, s.sampled_from(WRITES), p=s.sampled_from(PLACES)),
    s.builds(str.format, s.sampled_from(OF_WHOLE), a=s.sampled_from("xy"), b=s.sampled_from(WHOLE)),
    s.builds(str.format, s.sampled_from(OF_ROWS), a=s.sampled_from("xy"), r=s.sampled_from(ROWS)),
    s.builds(str.format, s.sampled_from(READS), p=s.sampled_from(PLACES), w=s.sampled_from(WHOLE)),
)
#: how the input lies in memory
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().clone().t(),
    "part": lambda t: torch.zeros(6, 9)[1:5, 2:6].copy_(t),
    "every other": lambda t: torch.zeros(8, 4)[::2].copy_(t),
}


def program(lines: list[str]) -> Callable[..., Any]:
    body = "\n".join(f"    {line}" for line in lines)
    head = "def function(x, z):\n    y, old, rows, results = torch.zeros(4, 4), z * 3, [z[1] * 1], []\n"
    namespace: dict[str, Any] = {"torch": torch}
    exec(f"{head}{body}\n    return results + [y, rows[-1]]", namespace)
    return namespace["function"]


def run(function: Callable[..., Any], layout: str) -> list[Any]:
    """What a caller can see of two calls: values, versions, and what lies in the memory of what."""
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randint(-16, 16, (4, 4), generator=generator) / 8 for _ in range(2))  # sums of these are exact
    x = LAYOUTS[layout](x)
    seen: list[Any] = []
    start = x._version
    for _ in range(2):
        try:
            results = function(x, z)
        except RuntimeError:  # eager refuses the program: a write to overlapping memory
            return ["refused"]
        everything = [x, z, *results]
        places = [t.untyped_storage().data_ptr() for t in everything]
        seen += [t.clone() for t in everything]
        seen += [
            x._version - start,
            z._version,
            *[places.index(p) for p in places],
            *[t.stride() for t in everything],
        ]
        seen += [t.storage_offset() for t in results]
    return seen


def same(a: list[Any], b: list[Any]) -> bool:
    rows = zip(a, b, strict=True)
    return all(torch.equal(p.nan_to_num(), q.nan_to_num()) if isinstance(p, Tensor) else p == q for p, q in rows)


PROGRAMS = s.lists(LINES, min_size=1, max_size=7), s.sampled_from(sorted(LAYOUTS))


@settings(max_examples=20, deadline=None)
@given(*PROGRAMS)
def test_generated_programs_are_as_in_eager(lines: list[str], layout: str) -> None:
    compare(lines, layout)


def compare(lines: list[str], layout: str) -> None:
    function = program(lines)
    expected = run(function, layout)
    if expected == ["refused"]:
        return
    region = st.compile(function)
    got = run(region, layout)
    assert same(got, expected), "\n".join([layout, *lines])


# ---------------------------------------------------------------------------------------------- what is in place
def stepwise(x: Tensor, r: Tensor) -> Tensor:
    x.mul_(2)
    total = x.sum()
    x.add_(r).clamp_(-1, 1)
    return total


#: function of a 2 x 4 x 4 and a 4 x 4 tensor -> what its program must not hold
WRITTEN: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a row, then a read": (lambda x, r: (x.__setitem__((0, 1), r[1]), x[:, :2].sum(1))[1], ("scatter", "copy.default")),
    "with a read between": (stepwise, ("mul.Tensor", "add.Tensor", "clamp.default")),
    "filled": (lambda x, r: x.zero_().fill_(3), ("zero.default", "fill.Scalar")),
    "several at once": (lambda x, r: torch._foreach_mul_([x, r], 2.0), ("_foreach_mul.Scalar",)),
}


def source_of(region: Any) -> str:
    return inspect.getsource(region.specializations[0].program.forward)


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 4, 4, generator=generator), torch.randn(4, 4, generator=generator)


@pytest.mark.parametrize("name", WRITTEN)
@torch.no_grad()
def test_what_is_written_in_place(name: str) -> None:
    function, unwanted = WRITTEN[name]
    region, eager, ours = st.compile(function), inputs(), inputs()
    with verify.enabled():
        for _ in range(2):
            expected, got = function(*eager), region(*ours)
    assert (expected is None) is (got is None)
    for a, b in zip((expected, *eager), (got, *ours), strict=True):
        if isinstance(a, Tensor):
            assert torch.equal(a, b) and (a is expected or a._version == b._version)
    assert (got is ours[0]) is (expected is eager[0])
    source = source_of(region)
    assert not any(f"aten.{u}" in source or f"_{u}" in source for u in unwanted), source
    assert region.specializations[0].plan.mutations.in_program


def test_statistics_of_a_normalization() -> None:
    norm = torch.nn.BatchNorm2d(3)
    eager_norm, image = copy.deepcopy(norm), torch.randn(2, 3, 4, 4, requires_grad=True)
    region = st.compile(norm)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            for _ in range(2):
                assert torch.equal(region(image), eager_norm(image))
    for a, b in zip(norm.buffers(), eager_norm.buffers(), strict=True):
        assert torch.equal(a, b) and a._version == b._version
    assert region.specializations[0].plan.mutations.in_program
    assert "functional.default" not in source_of(region)


def test_sizes_that_are_symbols() -> None:
    def write(cache: Tensor, x: Tensor) -> Tensor:
        cache[:, 1] = x
        cache[:, 2:].mul_(2)
        return cache.sum(1)

    region = st.compile(write, dynamic=True)
    for n in (4, 6):
        eager, ours, x = torch.ones(n, 5), torch.ones(n, 5), torch.arange(float(n))
        assert torch.equal(write(eager, x), region(ours, x)) and torch.equal(eager, ours)
    assert len(region.specializations) == 1 and "scatter" not in source_of(region)


@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
def test_one_tensor_twice_in_a_list_is_written_twice() -> None:
    def f(x: Tensor) -> None:
        torch._foreach_mul_([x, x[:1]], 2.0)

    for start in (lambda: torch.ones(2), lambda: torch.ones(2, requires_grad=True) * 1):
        x, y = start(), start()
        f(x)
        st.compile(f)(y)
        assert torch.equal(x, y)
