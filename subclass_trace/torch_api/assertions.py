"""``assert truth, "text"`` of a truth that only the call knows: which statement asks for it, and the operator that looks.

A region is traced as if the truth held; in a call the operator raises what the statement would, before anything that the call
changes is written back.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Callable
from typing import Any

import torch

from ..errors import NeedsEager
from .lines import is_user_code

_new_library: Any = torch.library.Library
_library = _new_library("subclass_trace", "DEF")
_library.define("check(Tensor truth, bool expected, str? message) -> ()")


def _check(truth: torch.Tensor, expected: bool, message: str | None) -> None:
    if bool(truth) != expected:
        raise AssertionError(*[] if message is None else [message])


_library.impl("check", _check, "CompositeExplicitAutograd")
torch.library.register_fake("subclass_trace::check", lambda truth, expected, message: None, lib=_library)
check: Callable[[torch.Tensor, bool, str | None], None] = torch.ops.subclass_trace.check.default

#: where a region's function is called
_RUN = os.path.join("state", "run.py")
#: how ``assert`` loads its error: until 3.13, and since
_ERRORS = (("LOAD_ASSERTION_ERROR", ""), ("LOAD_COMMON_CONSTANT", "AssertionError"))
_NOTHING = ("CACHE", "PRECALL", "NOT_TAKEN", "EXTENDED_ARG")
#: how a clone asks for the truth of what is on the stack
_READS = ("BINARY_SUBSCR", "BINARY_OP")


def _may_see_errors(code: Any) -> bool:
    """Has it any ``except``, ``finally`` or ``with``?"""
    if hasattr(code, "co_exceptiontable"):
        return bool(code.co_exceptiontable)
    return any(step.opname.startswith("SETUP_") for step in dis.get_instructions(code))  # Python 3.10


def _without_reads(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    """Without what a clone puts in between: a constant, which it asks about what is on the stack."""
    kept: list[dis.Instruction] = []
    k = 0
    while k < len(steps):
        names = [step.opname for step in steps[k : k + 3]]
        if names[:2] == ["LOAD_CONST", "SWAP"] and names[2:] in (["BINARY_SUBSCR"], ["BINARY_OP"]):
            k += 3
        else:
            kept.append(steps[k])
            k += 1
    return kept


def asserted(frame: Any) -> tuple[bool, str | None] | None:
    """The truth that an ``assert`` expects of a value for which it asks in this frame, and its message, a constant.

    None where something else asks, or where user code of the region's could see the error, from this frame outwards.

    Raises:
        NeedsEager: it could catch the error (``except``); Dynamo's operator raises a RuntimeError instead.
    """
    steps = [step for step in dis.get_instructions(frame.f_code) if step.opname not in _NOTHING]
    at = next(k for k, step in enumerate(steps) if step.offset >= frame.f_lasti)
    jump, *then = steps[at + (steps[at].opname in ("TO_BOOL", "COMPARE_OP", *_READS)) :][:16]
    then = _without_reads(then)
    if not jump.opname.endswith(("IF_TRUE", "IF_FALSE")) or (then[0].opname, then[0].argrepr) not in _ERRORS:
        return None
    message = None
    if then[1].opname == "LOAD_CONST" and then[2].opname.startswith(("CALL", "BUILD_TUPLE")):
        message = then.pop(1).argval
    if then[1 + (message is not None)].opname != "RAISE_VARARGS":
        return None
    while frame is not None and not frame.f_code.co_filename.endswith(_RUN):
        code = frame.f_code
        if is_user_code(code) and _may_see_errors(code):
            if any("EXC_MATCH" in step.opname for step in dis.get_instructions(code)):
                raise NeedsEager(
                    "an assert of a value, whose error the region may catch",
                    path=f"{code.co_filename}:{frame.f_lineno}",
                    fix="choose with torch.where, or assert outside of the function that catches it",
                )
            return None
        frame = frame.f_back
    return jump.opname.endswith("IF_TRUE"), message
