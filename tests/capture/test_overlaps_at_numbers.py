"""The same where numbers from inside tensors tell what is written and read: each call looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_features import copies_tensors_of_an_unknown_size

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.errors import SubclassTraceError
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
Program = Callable[[Tensor, int, int], Any]

#: eager refuses them for some numbers, and computes them for others
PROGRAMS: dict[str, Program] = {
    "one to the right": lambda x, k, n: x[k + 1 :].copy_(x[k:-1]),
    "rows": lambda x, k, n: x[k : k + 2].copy_(x[n : n + 2]),
    "one row": lambda x, k, n: x[k].copy_(x[n]),
    "a row to all": lambda x, k, n: x[k:].copy_(x[n]),
    "a sum": lambda x, k, n: x[:k].add_(x[n : n + k]),
    "from the front": lambda x, k, n: x[:k].copy_(x[k : 2 * k]),
    "in its place": lambda x, k, n: x[k:].mul_(x[k:]),
}
#: eager reads what it has written for some numbers
COLUMNS: dict[str, Program] = {
    "columns": lambda x, k, n: x[:, k : k + 2].copy_(x[:, n : n + 2]),
    "one column": lambda x, k, n: x[:, k].copy_(x[:, n]),
    "to the right": lambda x, k, n: x[:, 1 : 1 + k].copy_(x[:, n : n + k]),
}
#: `copy_` between slices whose sizes depend on the numbers
OF_UNKNOWN_SIZES = ("one to the right", "rows", "a row to all", "from the front", "columns", "to the right")
NUMBERS = [(1, 1), (1, 3), (2, 1), (1, 2), (3, 1), (0, 3), (2, 2)]


def outcome(f: Any, k: int, n: int) -> tuple[Tensor, BaseException | None]:
    x = torch.arange(36.0).view(6, 6)
    try:
        f(x, torch.tensor(k), torch.tensor(n))
    except (RuntimeError, ValueError) as error:
        return x, error
    return x, None


def region_of(program: Program) -> tuple[Any, Any]:
    def f(x: Tensor, k: Tensor, n: Tensor) -> Any:
        program(x, int(k), int(n))

    return f, st.compile(f, backend="eager")


def is_refused(name: str, region: Any) -> bool:
    """Does this torch ask, while it is traced, whether sizes are equal that only a call knows? Then nothing is written."""
    if name not in OF_UNKNOWN_SIZES or copies_tensors_of_an_unknown_size():
        return False
    x, error = outcome(region, *NUMBERS[0])
    assert isinstance(error, st.DataDependentError)
    assert torch.equal(x, torch.arange(36.0).view(6, 6)) and x._version == 0
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_error_or_the_numbers_of_eager(name: str) -> None:
    f, region = region_of(PROGRAMS[name])
    if is_refused(name, region):
        return
    refused = 0
    with verify.enabled():
        for k, n in NUMBERS:
            (x, error), (y, expected) = outcome(region, k, n), outcome(f, k, n)
            assert (type(error), str(error)) == (type(expected), str(expected)), (k, n)
            torch.testing.assert_close(x, y, rtol=0, atol=0, msg=f"{k}, {n}")
            refused += expected is not None
    assert len(region.specializations) == 1
    assert refused or name in ("from the front", "in its place", "one row")


@pytest.mark.parametrize("name", COLUMNS)
def test_what_depends_on_the_order(name: str) -> None:
    """Refused, where the number of eager are not those of a copied source."""
    f, region = region_of(COLUMNS[name])
    if is_refused(name, region):
        return
    for k, n in NUMBERS:
        (x, error), (y, expected) = outcome(region, k, n), outcome(f, k, n)
        if error is None:
            assert expected is None
            torch.testing.assert_close(x, y, rtol=0, atol=0, msg=f"{k}, {n}")
        elif expected is None:
            assert "the result depends on the order of reads and writes" in str(error), (k, n)
            torch.testing.assert_close(x, torch.arange(36.0).view(6, 6), rtol=0, atol=0)


def test_another_back_end() -> None:
    """It takes no functions of Python that look at numbers."""
    program = PROGRAMS["one to the right"]
    region = st.compile(lambda x, k: program(x, int(k), 0), backend=lambda module, inputs: module)
    with pytest.raises(st.AliasingError, match="depends on the order of reads and writes"):
        region(torch.arange(36.0).view(6, 6), torch.tensor(1))


def test_a_wrapper() -> None:
    """A wrapper's own code asks for the numbers: refused by name, if it is not computed."""
    _, region = region_of(PROGRAMS["one to the right"])
    x = TwoTensor(torch.arange(8.0), torch.arange(8.0))
    with pytest.raises((SubclassTraceError, RuntimeError)):
        region(x, torch.tensor(1), torch.tensor(1))
    assert x.a.tolist() == list(range(8))
