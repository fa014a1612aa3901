"""ST8xx: life in a process: hashing, threads, repr, and being let go."""

from __future__ import annotations

from ..rules import rule
from ..script import Script


@rule("ST804", "repr works and does not change anything")
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
