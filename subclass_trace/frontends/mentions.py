"""What a piece of code names, read off its bytecode: globals, attributes, what it only counts, modules that it imports."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Sequence
from typing import NamedTuple

from .late_mentions import late_mentions


class Mentions(NamedTuple):
    """Names in a piece of code: globals, what it reads (attributes, but globals and cells too), attributes that it only
    calls, names that it only moves on (``n += 1``, ``tally[k] += 1``, ``log.append(n)``), code inside of it."""

    globals: tuple[str, ...]
    reads: frozenset[str]
    calls: frozenset[str]
    counted: frozenset[str]
    lessened: frozenset[str]  # those of them from which it takes something (``-=``)
    everything: bool  # it may read any attribute
    inside: tuple[types.CodeType, ...]
    asked: frozenset[str]  # attributes that need not be there (``getattr``, ``hasattr``)
    texts: frozenset[str]  # constant strings that could be names, or keys
    imports: tuple[tuple[str, int], ...]  # Python modules: name, and the level of a relative import
    stores: frozenset[str]  # attributes that it assigns
    late: frozenset[str]  # names of hooks that it registers on tensors
    late_inside: tuple[types.CodeType, ...]  # code inside of it that only serves as such hooks
    late_cells: frozenset[str]  # its free variables that nothing else uses


@functools.lru_cache(maxsize=4096)
def mentions(code: types.CodeType) -> Mentions:
    """What ``code`` names, without the code inside of it."""
    names: dict[str, None] = {}
    reads, calls, counted, texts = set[str](), set[str](), set[str](), set[str]()
    lessened = set[str]()
    imports, stores = list[tuple[str, int]](), set[str]()
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    hooks, late = late_mentions(steps), set[str]()
    for k, step in enumerate(steps):
        if k in hooks.steps:
            late.add(step.argval)
            continue
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            names[step.argval] = None
        if _is_call(step):
            calls.add(step.argval)
        elif step.opname in _READS:
            moved = _moves_on(steps, k) or _moves_item_on(steps, k) or _grows(steps[k : k + 2])
            (counted if moved else reads).add(step.argval)
            if moved and _takes(steps, k):
                lessened.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            imports.append((step.argval, steps[k - 2].argval))
        elif step.opname == "IMPORT_FROM":
            reads.add(step.argval)
        elif step.opname in ("DELETE_ATTR", "DELETE_GLOBAL"):
            reads.add(step.argval)  # it must be there
        elif step.opname == "STORE_ATTR":
            stores.add(step.argval)
        elif step.opname == "LOAD_CONST" and type(step.argval) is str:
            texts.add(step.argval)
    called = names.keys() | reads | calls
    imports += [(t, 0) for t in sorted(texts) if _is_dotted(t)] if called & {"__import__", "import_module"} else []
    texts = {t for t in texts if t.isidentifier()}
    asked = texts if called & {"getattr", "hasattr", "attrgetter", "methodcaller"} else set[str]()
    stores |= texts if "setattr" in called else set()
    reads |= asked
    inside = tuple(c for c in code.co_consts if isinstance(c, types.CodeType) and c not in hooks.codes)
    everything = bool("vars" in names or reads & {"__dict__", "__getattribute__"})
    frozen = frozenset[str]
    return Mentions(
        tuple(names),
        frozen(reads),
        frozen(calls),
        frozen(counted),
        frozen(lessened),
        everything,
        inside,
        frozen(asked),
        frozen(texts),
        tuple(imports),
        frozen(stores),
        frozen(late),
        tuple(hooks.codes),
        frozen(_unused(code, steps, hooks.steps, inside)),
    )


def _unused(
    code: types.CodeType, steps: Sequence[dis.Instruction], skip: frozenset[int], inside: Sequence[types.CodeType]
) -> set[str]:
    """The free variables that neither these steps use nor the code inside."""
    used = {s.argval for k, s in enumerate(steps) if s.opname.endswith("DEREF") and k not in skip}
    return set(code.co_freevars) - used - {name for c in inside for name in c.co_freevars}


def _is_dotted(text: str) -> bool:
    """Could it be the name of a Python module?"""
    return all(map(str.isidentifier, text.split(".")))


_READS = ("LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")


def _moves_on(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Is the value that step ``k`` loads the left side of ``name += amount``, and nothing else?"""
    end = _added_to(steps, k)
    return end is not None and any(
        s.opname.startswith("STORE_") and s.argval == steps[k].argval for s in steps[end + 1 : end + 4]
    )


def _takes(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Is it ``name -= amount``?"""
    end = _added_to(steps, k)
    return end is not None and (steps[end].opname == "INPLACE_SUBTRACT" or steps[end].argrepr == "-=")


def _moves_item_on(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Is it ``name[key] += amount``, with a key that is a constant or a local name?"""
    if len(steps) < k + 5 or steps[k + 1].opname not in (
        "LOAD_CONST",
        "LOAD_SMALL_INT",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
    ):
        return False
    copies = [s for s in steps[k + 2 : k + 4] if s.opname in ("COPY", "DUP_TOP_TWO")]
    item = k + 2 + len(copies)
    reads = steps[item].opname == "BINARY_SUBSCR" or (steps[item].opname == "BINARY_OP" and steps[item].argrepr == "[]")
    end = _added_to(steps, item) if copies and reads else None
    return end is not None and any(s.opname == "STORE_SUBSCR" for s in steps[end + 1 : end + 4])


def _added_to(steps: Sequence[dis.Instruction], k: int) -> int | None:
    """The step that adds to (or subtracts from) what step ``k`` leaves on the stack, in place, if that is what uses it."""
    depth = 0  # of the stack above it
    for j, step in enumerate(steps[k + 1 :], k + 1):
        if step.opcode in _JUMPS:
            return None
        if depth == 1 and (step.opname == "BINARY_OP" or step.opname.startswith(("BINARY_", "INPLACE_", "COMPARE_"))):
            adds = step.opname in ("INPLACE_ADD", "INPLACE_SUBTRACT") or step.argrepr in ("+=", "-=")
            return j if adds else None
        shuffles = step.opname in ("COPY", "SWAP", "DUP_TOP", "DUP_TOP_TWO") or step.opname.startswith("ROT_")
        if shuffles and (step.arg or 4) > depth:
            return None
        depth += dis.stack_effect(step.opcode, step.arg)
        if depth < 0:
            return None
    return None


_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


def _grows(steps: Sequence[dis.Instruction]) -> bool:
    """Is it ``name.append(...)`` or the like, of which the code sees nothing?"""
    return len(steps) == 2 and _is_call(steps[1]) and steps[1].argval in ("append", "extend", "add", "update")


def _is_call(step: dis.Instruction) -> bool:
    """Does it look up a method to call it?"""
    bit = sys.version_info >= (3, 12) and step.arg is not None and bool(step.arg & 1)
    return step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and bit)
