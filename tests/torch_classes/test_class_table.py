"""docs/subclasses.md says what is measured."""

from __future__ import annotations

import class_table
import pytest
import torch
import torch.distributed as dist

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


@pytest.mark.slow
@pytest.mark.usefixtures("_surroundings")
@pytest.mark.parametrize("number", range(len(class_table.ROWS)), ids=lambda k: f"{k}-{class_table.ROWS[k].name}")
def test_a_row_is_what_is_measured(number: int) -> None:
    row = class_table.ROWS[number]
    version = class_table.installed(row.package)
    if version is None:
        pytest.skip(f"{row.package} is not installed")
    if f"{row.package} {version.partition('+')[0]}" not in subclass_table.PAGE.read_text(encoding="utf-8"):
        pytest.skip(f"the page is about another version of {row.package}")
    assert class_table.cells(row) == _written()[number]


def test_a_wrong_result_is_seen() -> None:
    """The measurement can fail: a compiler that adds something is caught, and one that raises is named."""
    row = next(r for r in class_table.ROWS if r.name == "TwoTensor")
    found = class_table.measure(row, lambda f: lambda *args: f(*args) * 2)
    assert found["forward"] == "differs" and found["backward"] == "differs"

    def broken(*args):
        raise KeyError("no")

    assert class_table.measure(row, lambda f: broken)["forward"] == "KeyError"
