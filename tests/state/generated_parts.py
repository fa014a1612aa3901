"""What generated programs are put together of: values, holders, readers, places, changes.

The parts are in ``parts/*.txt``. A part begins with ``==== name``; ``| field: ...`` lines follow,
then statements. In them

    $v, $w     two values of a kind
    $e         an expression that reads the value
    $o         an expression of the object that holds it, under the name or key `k`
    $n         an expression of the number that the program multiplies by
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_IMPORTS = """
import abc, array, builtins, collections, contextlib, contextvars, copy, dataclasses, decimal, enum
import fractions, functools, inspect, itertools, json, operator, os, pathlib, pickle, re, string
import sys, threading, types, weakref
import numpy as np
import torch
import torch.utils.checkpoint
from torch import cond, nn
import generated_house as house
"""

#: what programs use; a part follows those that it uses
_USED = """
class Box:
    def __init__(self, k): self.k = k
    def get(self): return self.k

class Slots:
    __slots__ = ("k",)
    def __init__(self, k): self.k = k

@dataclasses.dataclass
class Point:
    k: object
    y: float = 1.0

class Pair(collections.namedtuple("Pair", "k y")): pass

class Color(enum.Enum):
    A = 2.0
    B = 3.0

class Two: k = 2.0

class Three: k = 3.0

class Number:
    def __init__(self, k): self.k = k
    def __add__(self, o): return self.k + o
    def __float__(self): return self.k
    def __len__(self): return int(self.k)
    def __iter__(self): yield self.k; yield 1.0

class Called:
    def __init__(self, k): self.k = k
    def __call__(self): return self.k

class Scale(nn.Module):
    def __init__(self, k): super().__init__(); self.k = k
    def forward(self, x): return x * self.k

THIS = object()

THAT = object()

TWO = Two()

THREE = Three()

NAME = "".join(["k"])

def two(): return 2.0

def three(): return 3.0

def made(v): return lambda: v

def with_default(v):
    def f(k=v): return k
    return f

def counts(v):
    def f(): yield v
    return f

class OfTensor(torch.Tensor): pass

KNOWN = torch.ones(2)

def with_grad(x):
    x.grad = torch.ones(2)
    return x

def retained(x):
    y = x.requires_grad_() * 1
    y.retain_grad()
    return y

def hooked(x):
    x.requires_grad_().register_hook(lambda g: g)
    return x

def with_attribute(x):
    x.k = 3.0
    return x

def inferred(x):
    with torch.inference_mode(): return x * 1
"""


def whole(text: str) -> str:
    """A program: `text` behind the imports and those parts that it uses."""
    for part in reversed(_USED.strip().split("\n\n")):
        found = re.search(r"(?:^|class |def )(\w+)(?: =|:|\()", part, re.M)
        assert found is not None
        if re.search(rf"\b{found[1]}\b", text):
            text = f"{part}\n{text}"
    return f"{_IMPORTS}{text}"


#: a module of an installed library: it reads by computed names
HOUSE = """
def pick(o, n): return getattr(o, n)
def item(o, n): return o[n]
def has(o, n): return hasattr(o, n)
def first(o): return next(iter(o))
def of_all(o, n): return {k: v for k, v in vars(o).items()}[n]
def call(f, *a): return f(*a)
class Base:
    def __getattr__(self, n):
        if n.startswith("__"): raise AttributeError(n)
        return self.__dict__["table"][n]
"""


@dataclass(frozen=True)
class Value:
    """Two values of a kind.

    Attributes:
        number: what of the value the program multiplies by; for `first` other than for `second`.
        inside: a statement that changes the value itself, so that the number is another.
        tags: what some readers need: "text" can be formatted, "plain" is understood by json.
    """

    name: str
    first: str
    second: str
    number: str
    inside: str = ""
    tags: str = ""


@dataclass(frozen=True)
class Holder:
    """Where a value is held.

    Attributes:
        setup: statements, with $v.
        write: a statement that puts $w there.
        read: an expression.
        root: an expression of the object that holds it, as attribute "k" or under the key "k".
        form: "attribute", "item", or "" for others.
        tags: "dict" (the object has a dict with it), "class" (its class has it), "items" (a dict).
        restore: a statement that undoes what is everybody's.
    """

    name: str
    setup: str
    write: str
    read: str
    root: str = ""
    form: str = ""
    tags: str = ""
    restore: str = ""


@dataclass(frozen=True)
class Reader:
    """A way to read.

    Attributes:
        setup: statements that define what `text` uses.
        text: an expression.
        needs: tags of the value and the holder, or its form.
        has_default: it gives $w where the attribute or item is not there.
        reads_all: it reads all that the object holds.
    """

    name: str
    setup: str
    text: str
    needs: str = ""
    has_default: str = ""
    reads_all: str = ""


@dataclass(frozen=True)
class Place:
    """Where in a region the number is read.

    Attributes:
        setup: defines `fn`, and `inputs` where it takes no dense tensor.
        weight: how often it is drawn.
        grad: the inputs require grad, and there is a backward.
    """

    name: str
    setup: str
    weight: str
    grad: str = ""


@dataclass(frozen=True)
class Flag:
    """Torch's own state, or Python's: how it is read and put, and two of its values."""

    name: str
    read: str
    put: str
    first: str
    second: str


@dataclass(frozen=True)
class Twin:
    """How a module s keeps a value v, and uses what it keeps."""

    name: str
    make: str
    use: str


#: how what a program reads is changed; "equal", "unread": nothing that it reads is another
CHANGES = (
    *(("replaced", 10), ("inside", 8), ("back and forth", 3), ("made anew", 3), ("by a thread", 2)),
    *(("by the region", 4), ("by the region inside", 2), ("counted by the region", 3)),
    ("by the region at first", 4),
    *(("removed", 3), ("appears", 3)),
    *(("before the backward", 4), ("equal", 2), ("unread", 4)),
)


#: how C code calls a special method of an object ``o``, drawn for the readers that name one
ASKS = {
    "object": ("Reads()", "ASKED"),
    "lengths": ("len(o)", "bool(o)", "list(map(len, [o]))", "not o", "list(reversed(o))"),
    "iterates": ("list", "tuple", "sorted", "(lambda o: (lambda *a: a)(*o))", "(lambda o: [*o])", "collections.deque"),
    "compares": ("o == 1", "o in [1]", "1 in (o,)", "(o,) == (1,)", "{0: o} == {0: 1}", "[o, 1].index(1)"),
    "hashes": ("{o: 1}[o]", "len({o, Reads()})", "{Reads(): 1}.get(o, 2)", "dict.fromkeys([o])", "hash(o) + 1"),
    "indexes": ("[0, 1][o]", "'ab'[o:]", "range(o)", "operator.index(o)", "torch.ones(2)[o]", "[0, 1].pop(o)"),
    "texts": ("f'{o}'", "'%s' % o", "str(o)", "format(o)", "'{}'.format(o)", "f'{o!r:>3}'", "','.join(map(str, [o]))"),
    "orders": ("sorted([o, p])", "max(o, p)", "min([p, o])", "[o, p].sort()", "(o, 1) < (p, 1)"),
}


@dataclass(frozen=True)
class Fact:
    """A fact of a tensor x, and an expression of a tensor of which it does not hold."""

    name: str
    read: str
    other: str


@dataclass(frozen=True)
class Module:
    """A module or function M, and what changes what it does."""

    name: str
    setup: str
    change: str
    restore: str = "pass"
    grad: str = ""


def _parts(file: str, kind: type, has_setup: bool = False) -> list[Any]:
    text = (Path(__file__).parent / "parts" / f"{file}.txt").read_text()
    made = []
    for part in text.split("==== ")[1:]:
        name, *lines = part.rstrip().split("\n")
        rows = [line[2:].partition(": ") for line in lines if line.startswith("| ")]
        fields = {key.replace(" ", "_"): value for key, _, value in rows}
        if has_setup:
            fields["setup"] = "\n".join(line for line in lines if not line.startswith("| "))
        made.append(kind(name, **fields))
    return made


VALUES: list[Value] = _parts("values", Value)
HOLDERS: list[Holder] = _parts("holders", Holder, has_setup=True)
READERS: list[Reader] = _parts("readers", Reader, has_setup=True)
PLACES: list[Place] = _parts("places", Place, has_setup=True)
FLAGS: list[Flag] = _parts("flags", Flag)
TWINS: list[Twin] = _parts("twins", Twin)
FACTS: list[Fact] = _parts("facts", Fact)
MODULES: list[Module] = _parts("modules", Module, has_setup=True)
