"""Which code a piece of code only registers as hooks: it runs in backwards, and is looked at there (`late_code`)."""

from __future__ import annotations

import dis
import types
from collections.abc import Sequence
from typing import NamedTuple

_REGISTER = ("register_hook", "register_post_accumulate_grad_hook")
#: what stands between a lookup of ``register_hook`` and the code object of a lambda
_BEFORE_CODE = ("LOAD_CLOSURE", "LOAD_FAST", "LOAD_FAST_BORROW", "BUILD_TUPLE", "PUSH_NULL", "NOP")
_LOCAL = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
_CALLS = ("PRECALL", "CALL", "CALL_METHOD")


class LateMentions(NamedTuple):
    """``steps``: the numbers of the steps that load a hook by its name; ``codes``: of functions that are hooks alone."""

    steps: frozenset[int]
    codes: frozenset[types.CodeType]


def late_mentions(steps: Sequence[dis.Instruction]) -> LateMentions:
    """Of the steps of a piece of code."""
    lookups = [k for k, s in enumerate(steps) if s.opname in ("LOAD_METHOD", "LOAD_ATTR") and s.argval in _REGISTER]
    starts = [k for k in lookups if steps[k - 1].argval != "grad_fn"]  # on a node: nobody sees when that runs
    named, codes, names = set[int](), set[types.CodeType](), list[str]()
    for start in starts:
        k = start + 1
        while k < len(steps) and steps[k].opname in ("PUSH_NULL", "NOP"):
            k += 1
        if steps[k].opname in ("LOAD_GLOBAL", "LOAD_DEREF") and steps[k + 1].opname in _CALLS:
            named.add(k)
        elif steps[k].opname in _LOCAL and steps[k + 1].opname in _CALLS:
            names.append(steps[k].argval)
        elif steps[k].opname in _LOCAL and steps[k + 1].opname == "LOAD_ATTR" and steps[k + 2].opname in _CALLS:
            named.add(k + 1)
        elif (code := _made(steps, k)) is not None:
            codes.add(code)
    for name in set(names):
        loads = [s for s in steps if s.opname.startswith("LOAD_") and s.argval == name]
        made = [k for k, s in enumerate(steps) if s.opname == "STORE_FAST" and s.argval == name]
        if len(loads) == names.count(name) and len(made) == 1:
            codes.update(_stored(steps, made[0]))
    return LateMentions(frozenset(named), frozenset(codes))


def _made(steps: Sequence[dis.Instruction], k: int) -> types.CodeType | None:
    """The code of the function that the steps from ``k`` on make."""
    while k < len(steps) and steps[k].opname in _BEFORE_CODE:
        k += 1
    code = steps[k].argval if k + 1 < len(steps) and steps[k + 1].opname == "MAKE_FUNCTION" else None
    return code if isinstance(code, types.CodeType) else None


def _stored(steps: Sequence[dis.Instruction], k: int) -> list[types.CodeType]:
    """The code of the function that step ``k`` stores."""
    j = k - 1
    while j > 0 and steps[j].opname == "SET_FUNCTION_ATTRIBUTE":
        j -= 1
    code = steps[j - 1].argval if steps[j].opname == "MAKE_FUNCTION" else None
    return [code] if isinstance(code, types.CodeType) else []
