"""ST8xx: life in a process: hashing, threads, repr, and being let go."""

from __future__ import annotations

from ..rules import rule
from ..script import Script


@rule(
    "ST802",
    "instances are hashed and found by identity",
    right="""
    def same_as(self, other): ...  # leave == to torch: it compares elements
    """,
)
def identity_hash(t: Script) -> None:
    """Optimizers keep their state in dicts by parameter, modules and autograd keep sets of tensors. So `hash(x)` must work,
    must not change when `x` is written to, and two instances of equal value are two keys.
    """
    t.wrapper("x")
    t.wrapper("y", same="x")
    t.run("first = hash(x)", "a tensor is hashable")
    t.run("table = {x: 'x', y: 'y'}", "a tensor can be a key")
    t.expect("len(table)", "2", "two instances are two keys")
    t.expect("(table[x], table[y])", "('x', 'y')", "each finds its own")
    if t.attempt("x.add_(1)") or t.attempt("x.mul_(2)"):
        t.expect("hash(x)", "first", "a write does not change the hash")
        t.expect("table.get(x)", "'x'", "it is found after a write")


@rule(
    "ST804",
    "repr works and does not change anything",
    right="""
    def __repr__(self):
        return f"Scaled({self.data!r}, {self.scale!r})"
    """,
)
def prints(t: Script) -> None:
    """`Tensor.__repr__` reads the storage that a wrapper does not have, so a class needs a `__repr__` of its own; debuggers,
    logging and error messages call it. It must work for every instance, give text, and leave the instance alone.
    """
    t.wrapper("x")
    t.require("before = [v.clone() for v in leaves(x)]")
    t.run("text = repr(x)", "a tensor can be printed")
    t.expect("type(text)", "str", "repr gives text")
    t.expect("leaves(x)", "before", "printing changes nothing")
    if t.value("x.is_floating_point()") and t.attempt("y = x.detach().requires_grad_()"):
        t.run("text = repr(y)", "a tensor that requires grad can be printed")
