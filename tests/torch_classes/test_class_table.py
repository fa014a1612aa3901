"""docs/subclasses.md says what is measured."""

from __future__ import annotations

import class_table
import pytest
import torch
import torch.distributed as dist
from torch_features import scaled_mm_by_rows

import subclass_trace as st
from subclass_trace.subclass.flatten import leaves_of
from tools import subclass_table

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def _written() -> list[list[str]]:
    lines = subclass_table.PAGE.read_text(encoding="utf-8").split("## More about")[0].splitlines()
    return [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]


@pytest.fixture(scope="module")
def _surroundings():
    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    with class_table.surroundings():
        yield
    torch.distributed.tensor._random._rng_tracker = None


def test_the_page_has_all_rows() -> None:
    assert [row[0] for row in _written()] == [f"`{row.name}`" for row in class_table.ROWS]


@pytest.mark.usefixtures("_surroundings")
@pytest.mark.parametrize("number", range(len(class_table.ROWS)), ids=lambda k: f"{k}-{class_table.ROWS[k].name}")
@pytest.mark.sweep(every=6)
def test_a_row_is_what_is_measured(number: int) -> None:
    row = class_table.ROWS[number]
    version = class_table.installed(row.package)
    if version is None:
        pytest.skip(f"{row.package} is not installed")
    if row.name == "Float8Tensor" and row.note == "dynamic activations" and not scaled_mm_by_rows():
        pytest.skip("torch._scaled_mm of this torch takes one scale alone on a CPU")
    found = class_table.cells(row)
    if f"{row.package} {version.partition('+')[0]}" not in subclass_table.PAGE.read_text(encoding="utf-8"):
        assert "differs" not in "".join(found)  # the page is about another version
    else:
        assert found == _written()[number]


def test_a_wrong_result_is_seen() -> None:
    """The measurement can fail: a compiler that adds something is caught, and one that raises is named."""
    row = next(r for r in class_table.ROWS if r.name == "TwoTensor")
    found = class_table.measure(row, lambda f: lambda *args: f(*args) * 2)
    assert found["forward"] == "differs" and found["backward"] == "differs"

    def broken(*args):
        raise KeyError("no")

    assert class_table.measure(row, lambda f: broken)["forward"] == "KeyError"


def test_inner_tensors_that_the_constructor_detaches_are_no_change_of_the_input() -> None:
    region, (x, _) = st.compile(lambda x: x * 2), class_table._complex()
    before = x._re, x._im
    region(x)
    assert x._re is before[0] and x._im is before[1]
    assert region.specializations[0].plan.mutations.rows == ()


def test_inner_tensors_of_other_names_are_another_specialization() -> None:
    """A LocalTensor has one for each rank."""
    region, cls = st.compile(lambda x: x * 2), class_table.module("torch.distributed._local_tensor").LocalTensor
    for count in (2, 3, 2):
        found = region(cls({r: torch.full((2,), r) for r in range(count)}))
        assert [leaf.tolist() for leaf in leaves_of(found)] == [[2 * r] * 2 for r in range(count)]
    assert len(region.specializations) == 2, region.explain()
