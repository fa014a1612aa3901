"""Generated programs in which a search once found a fault, shrunk: they stay as plain programs.

A program is judged as the generated ones are (`judging.py`); `programs.txt` has those that need
no backward and no branch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st

from . import generated_parts as parts
from . import judging
from .generate import Program

_BEFORE_THE_BACKWARD = ("call", "call", "between", "call", "call")
_CALLS = ("call", "call", "change 0", "call", "call")
_BACKWARD = """
class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * $n
    @staticmethod
    def backward(ctx, g): return g * $n
def fn(x): return Custom.apply(x).sin()
"""
_BRANCH = "def fn(x): return cond(x.sum() > 0, lambda y: y * $n, lambda y: y.clone(), (x,))"
_RESTORE = "def restore(): vars(nn.Identity).get('k') is None or delattr(nn.Identity, 'k')"
#: what a forward and its backward read: setup, the number, what changes it
BACKWARDS = {
    "a function": ("D = {'k': two}", "D['k']()", "D['k'] = three"),
    "which object": ("D = {'k': THIS}", "(2.0 if D['k'] is THIS else 3.0)", "D['k'] = THAT"),
    "the class of an object": (
        "class A: k = 2.0\nclass B: k = 3.0\nO = A()",
        "O.k",
        "O.__class__ = B",
    ),
    "a method": (
        "class A:\n    def k(self): return 2.0\nO = A()",
        "O.k()",
        "A.k = lambda self: 3.0",
    ),
    "a tensor's answer": (
        "T = torch.ones(2, 3)",
        "(2.0 if T.is_contiguous() else 3.0)",
        "T.t_()",
    ),
    "a weak reference": (
        "D = {'k': weakref.ref(TWO)}",
        "D['k']().k",
        "D['k'] = weakref.ref(THREE)",
    ),
}
#: what the backward alone reads
OF_THE_BACKWARD = ("a tensor's answer",)
#: what the code of a branch reads
BRANCHES = {
    "a list of a class": (
        "class A: k = [2.0]\nO = A()",
        "O.k[0]",
        "O.k[0] = 3.0",
    ),
    "what a method names": (
        "HELD = [2.0]\nclass A:\n    def k(self): return HELD[0]",
        "A().k()",
        "HELD[0] = 3.0",
    ),
    "what a wrapped function names": (
        "HELD = [2.0]\ndef through(f): return lambda: f()\n@through\ndef get(): return HELD[0]",
        "get()",
        "HELD[0] = 3.0",
    ),
    "what a getter names": (
        "HELD = [2.0]\nclass A:\n    @property\n    def k(self): return HELD[0]\nO = A()",
        "O.k",
        "HELD[0] = 3.0",
    ),
    "a flag": (
        "torch.backends.cudnn.benchmark = False",
        "(2.0 if torch.backends.cudnn.benchmark is False else 3.0)",
        "torch.backends.cudnn.benchmark = True",
    ),
    "the environment": (
        "os.environ['ZZ_HELD'] = 'a'",
        "(2.0 if os.environ.get('ZZ_HELD') == 'a' else 3.0)",
        "os.environ['ZZ_HELD'] = 'b'",
    ),
    "an attribute of a function": (
        "def O(): pass\nO.k = [2.0]",
        "O.k[0]",
        "O.k[0] = 3.0",
    ),
    "an attribute of a member": (
        "O = Color.A; O.k = [2.0]",
        "O.k[0]",
        "O.k[0] = 3.0",
    ),
    "an attribute of a class of torch": (
        "nn.Identity.k = [2.0]; O = nn.Identity()",
        "O.k[0]",
        "O.k[0] = 3.0",
    ),
    "a function of a module": (
        "HELD, O = [2.0], types.ModuleType('held')\nO.__getattr__ = lambda n: HELD[0]",
        "O.k",
        "HELD[0] = 3.0",
    ),
    "a flag that the tracer sets": (
        "",
        "(2.0 if torch.is_autocast_cache_enabled() else 3.0)",
        "torch.set_autocast_cache_enabled(False)",
    ),
    "a list of a tensor": (
        "O = torch.ones(1); O.k = [2.0]; NAME = 'k'",
        "getattr(O, NAME)[0]",
        "O.k[0] = 3.0",
    ),
    "an attribute of a parameter": (
        "O = nn.Parameter(torch.ones(1)); O.k = 2.0",
        "(O.k if hasattr(O, 'k') else 3.0)",
        "del O.k",
    ),
}


def _judged(text: str, number: str, setup: str, change: str, *, backward: bool) -> judging.Verdict:
    does = f"def change(n):\n{textwrap.indent(change, '    ')}"
    source = parts.whole("\n".join((setup, text.replace("$n", number), does, _RESTORE)))
    names = {"holder": "fixed", "change": "replaced"}
    steps = _BEFORE_THE_BACKWARD if backward else _CALLS
    return judging.judge(Program(0, names, source, steps, grad=backward))


@pytest.mark.parametrize("name", BACKWARDS)
def test_before_a_backward(name: str) -> None:
    """A backward compares what it reads, also where the forward has read it."""
    setup, number, change = BACKWARDS[name]
    text = _BACKWARD.replace("x * $n", "x * 2") if name in OF_THE_BACKWARD else _BACKWARD
    verdict = _judged(text, number, setup, change, backward=True)
    assert verdict.word == "right", verdict


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.sweep(every=4)
def test_in_a_branch(name: str) -> None:
    """All that the code of a branch may read is read, whatever leads to that code."""
    setup, number, change = BRANCHES[name]
    verdict = _judged(_BRANCH, number, setup, change, backward=False)
    # From torch 2.15 on its own `cond` raises where a float that a branch reads changes.
    of_torch = verdict.word == "refused" and "TorchRuntimeError" in verdict.detail
    assert verdict.word == "right" or of_torch, verdict


def test_a_flag_that_is_an_enumeration() -> None:
    """What no `==` of atoms compares is compared by its own."""
    text = "def fn(x): return x * (2.0 if torch.backends.cuda.preferred_blas_library() else 3.0)"
    assert _judged(text, "", "", "pass", backward=False).word == "right"


#: what the region takes away, and that it is there
DELETED = {
    "an attribute": ("class A: pass\nO = A(); O.k = 1", "del O.k"),
    "a global variable": ("K = 1", "global K; del K"),
    "a slot": ("class A: __slots__ = ('k',)\nO = A(); O.k = 1", "del O.k"),
    "an attribute of a class": ("class A: k = 1", "del A.k"),
    "a variable of a function around": (
        "def made():\n    k = 1\n    def inner():\n        nonlocal k; del k\n    return inner\nF = made()",
        "F()",
    ),
    "an item": ("D = {1: 2}", "del D[1]"),
    "a parameter": ("M = nn.Linear(1, 1)", "del M.bias"),
}


@pytest.mark.parametrize("name", DELETED)
def test_what_is_taken_away_has_to_be_there(name: str) -> None:
    setup, taken = DELETED[name]
    space = {"nn": nn, "torch": torch}
    exec(f"{setup}\ndef f(x):\n    {taken}\n    return x * 2", space)
    region = st.compile(space["f"], frontend="trace")
    assert region(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises((AttributeError, NameError, KeyError)):
        region(torch.ones(2))


class _Holds(nn.Module):
    """Calls what it holds."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held(x)


class _Times(nn.Module):
    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


@torch.jit.script
def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.jit.script
def _tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


#: callables whose code is no Python that is written in a file: two of a kind
CODE_OF_OTHERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "functions of TorchScript": lambda: (_doubled, _tripled),
    "modules of TorchScript": lambda: (torch.jit.script(_Times(2.0)), torch.jit.script(_Times(3.0))),
    "traced modules": lambda: (
        torch.jit.trace(_Times(2.0), torch.ones(2)),
        torch.jit.trace(_Times(3.0), torch.ones(2)),
    ),
    "graph modules": lambda: (torch.fx.symbolic_trace(_Times(2.0)), torch.fx.symbolic_trace(_Times(3.0))),
}


@pytest.mark.parametrize("name", CODE_OF_OTHERS)
@pytest.mark.filterwarnings("ignore")
def test_code_of_others_that_is_exchanged(name: str) -> None:
    """In the module that was compiled, and in another one of its class."""
    two, three = CODE_OF_OTHERS[name]()
    module, x = _Holds(two), torch.ones(2)
    region = st.compile(module, frontend="trace")
    assert region(x).tolist() == [2.0, 2.0]
    assert st.compile(_Holds(three), frontend="trace")(x).tolist() == [3.0, 3.0]
    module.held = three
    assert region(x).tolist() == [3.0, 3.0]


@pytest.mark.filterwarnings("ignore")
def test_a_module_inside_of_a_graph_module_is_exchanged() -> None:
    graph, x = torch.fx.symbolic_trace(nn.Sequential(nn.Sigmoid())), torch.zeros(2)
    region = st.compile(lambda x: graph(x), frontend="trace")
    assert region(x).tolist() == [0.5, 0.5]
    setattr(graph, "0", nn.Tanh())
    assert region(x).tolist() == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore")
def test_a_module_of_torchscript_whose_attribute_is_set() -> None:
    scripted, x = torch.jit.script(_Times(2.0)), torch.ones(2)
    region = st.compile(_Holds(scripted), frontend="trace")
    assert region(x).tolist() == [2.0, 2.0]
    scripted.k = 3.0
    assert region(x).tolist() == [3.0, 3.0]
