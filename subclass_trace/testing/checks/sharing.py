"""ST8xx: life in a process: hashing, threads, repr, and being let go."""

from __future__ import annotations

import re

from ..calls import section
from ..memory import EITHER
from ..rules import Cost, rule
from ..script import Script


@rule("ST804", "repr works and does not change anything")
def prints(t: Script) -> None:
    """`Tensor.__repr__` reads the storage that a wrapper does not have, so a class needs a
    `__repr__` of its own; debuggers, logging and error messages call it. It must work for every
    instance, give text, and leave the instance alone.

    Passes: `return f"MyTensor({self.codes}, scale={self.scale})"`.
    Fails: no `__repr__`, or one that normalises the codes in place.
    """
    t.wrapper("x")
    t.require("before = [v.clone() for v in leaves(x)]")
    t.require("names, context = x.__tensor_flatten__()")
    t.require("names, context = list(names), copied(context)")
    compared = t.attempt("assert same_metadata(x.__tensor_flatten__()[1], context, type(x))")
    t.run("text = repr(x)", "a tensor can be printed")
    t.expect("type(text)", "str", "repr gives text")
    t.expect("leaves(x)", "before", "printing changes nothing")
    if compared:
        same = "same_metadata(x.__tensor_flatten__()[1], context, type(x))"
        t.expect(f"list(x.__tensor_flatten__()[0]) == names and {same}", "True")
    if t.value("x.is_floating_point()") and t.attempt("y = x.detach().requires_grad_()"):
        t.run("text = repr(y)", "a tensor that requires grad can be printed")


@rule("ST805", "results do not keep operands alive", cost=Cost.DEAR)
def let_go(t: Script) -> None:
    """What an operation gives holds its own inner tensors; the wrapper that it was made of must be
    free to go (but for views, and for what autograd saves). A class that keeps the operand in the
    result, in its context or in a table of the class holds on to every activation of a training
    run.

    Passes: `cls(func(x.data_), x.scale)`.
    Fails: `out.source = x`, or `CACHE[id(x)] = x`.
    """
    x = t.wrapper("x")
    t.require("import gc, weakref")

    def steps(op: str) -> None:
        t.wrapper("x")
        t.require(f"with torch.no_grad():\n    y = {op}")
        t.only_if("y is not x", "it gives its operand")
        t.require("alive = weakref.ref(x)")
        t.run("del x")
        t.run("if alive() is not None: gc.collect()")
        t.expect("alive() is None", "True", "the operand can go")

    def with_history(op: str) -> None:
        t.wrapper("x", grad=True)
        t.require(f"p = {t.operands.lines['p']}\ny = {op}")
        t.require("alive = weakref.ref(y)")
        t.run("del y")
        t.expect("alive() is None", "True", "its history does not keep a result alive")

    t.each(_MAKES, steps, "it refuses all")
    if x.is_floating_point():
        t.each(_TRAINS, with_history, "it refuses all")


_TRAINS = ("torch.nn.functional.linear(p, x)", "x * p", "x.exp()", "x.sum()", "x.relu()")
#: calls of x alone whose results are no views
_MAKES = (
    *(
        text
        for text in section("arithmetic", "pointwise", "reductions", "copies", "clones")
        if {"x"} == set(re.findall(r"\b[a-z]\b", text)) and not any(e in text for e in EITHER)
    ),
    *("x * x", "x / x", "x @ x.t()", "torch.cat([x, x])", "x.to(torch.float64, copy=True)"),
)
