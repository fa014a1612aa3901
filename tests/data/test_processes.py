"""What one process has traced another one serves without a trace, and notices what was edited in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from regions import REGIONS

HERE = Path(__file__).parent

USER = """
import enum, fractions, typing
import numpy
import torch
from torch.utils._pytree import tree_map

SCALE, TABLE = 0.5, {"bias": 1.0}
ADDED = 0.0

def helper(x):
    return x * SCALE + TABLE["bias"]

def unused(x):
    return x

class Own(torch.Tensor):
    @staticmethod
    def __new__(cls, a):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a):
        self.a = a

    def __tensor_flatten__(self):
        return ["a"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Own(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = tree_map(lambda t: t.a if isinstance(t, Own) else t, args)
        out = func(*plain, **(kwargs or {}))
        return Own(out + ADDED) if func is torch.ops.aten.mul.Tensor else Own(out)

class First: pass
class Second: pass
class Kind(First): pass

class Size(enum.IntEnum):
    SMALL = 2

class Point(typing.NamedTuple):
    x: int
    y: int = 3

NUMBER, PART = numpy.float32(2), fractions.Fraction(1, 2)

class Model(torch.nn.Module):
    twice = True

    def __init__(self):
        super().__init__()
        self.own = torch.nn.Parameter(Own(torch.arange(4.0)), requires_grad=False)

    def forward(self, x):
        y = helper(self.own) * (2 if isinstance(KIND, First) else 3) * Size.SMALL * Point(1).y
        y = y * float(NUMBER) * float(PART)
        return (y * 2 if self.twice else y).a + x

KIND = Kind()

def make():
    return Model(), (torch.ones(4),)
"""
#: what is edited -> the text, what it becomes, whether the description still serves
EDITS = {
    "nothing": ("", "", True),
    "comment": ("    return x * SCALE", "    # of half\n\n    return x * SCALE", True),
    "another_function": ("def unused(x):\n    return x", "def unused(x):\n    return x + 1", True),
    "helper": ("    return x * SCALE + ", "    return x * SCALE - ", False),
    "constant": ("SCALE, TABLE = 0.5", "SCALE, TABLE = 0.25", False),
    "item": ('{"bias": 1.0}', '{"bias": 2.0}', False),
    "constant_of_dispatch": ("ADDED = 0.0", "ADDED = 1.0", False),
    "dispatch": ("out = func(*plain", "out = -func(*plain", False),
    "unflatten": ('return Own(inner["a"])', 'return Own(inner["a"].detach())', False),
    "class_attribute": ("    twice = True", "    twice = False", False),
    "bases": ("class Kind(First)", "class Kind(Second)", False),
    "enumeration": ("SMALL = 2", "SMALL = 4", False),
    "named_tuple": ("y: int = 3", "y: int = 4", False),
    "number_of_numpy": ("numpy.float32(2)", "numpy.float32(3)", False),
    "fraction": ("fractions.Fraction(1, 2)", "fractions.Fraction(1, 4)", False),
    "size": ("torch.ones(4),", "torch.ones(1),", False),
    "dtype": ("torch.ones(4),", "torch.ones(4).double(),", False),
    "requires_grad": ("torch.ones(4),", "torch.ones(4).requires_grad_(),", False),
    "frozen": ("requires_grad=False)", "requires_grad=True)", False),
}


def _run(how: str, folder: Path) -> Any:
    done = subprocess.run([sys.executable, HERE / "processes.py", how, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each description in the second process."""
    folder = tmp_path_factory.mktemp("descriptions")
    for name in EDITS:
        (folder / f"user_{name}.py").write_text(USER)
    gaps = _run("save", folder)
    assert not any(gaps.values()), gaps
    for name, (was, now, _) in EDITS.items():
        assert was in USER
        (folder / f"user_{name}.py").write_text(USER.replace(was, now, 1) if was else USER)
    return _run("serve", folder)


@pytest.mark.parametrize("name", REGIONS)
def test_another_process_serves_without_a_trace(served: Any, name: str) -> None:
    found = served[name]
    assert found.get("traced") == 0 and found["equal"], found


def test_to_bind_needs_no_dynamo(served: Any) -> None:
    assert not served[next(iter(REGIONS))]["dynamo"]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed(served: Any, edit: str) -> None:
    found, serves = served[f"user_{edit}"], EDITS[edit][2]
    assert ("unlike" not in found) == serves, found
    assert not serves or (found["traced"] == 0 and found["equal"]), found
