"""What a code object names: no instruction is read beyond that, but for what follows the load of a name.

>>> def f(x):
...     LOG.append(x)
...     LOGS["x"].append(x)
...     return x * CONFIG.scale
>>> sorted(names_of(f.__code__))
['CONFIG', 'LOG', 'LOGS', 'append', 'scale', 'x']
>>> [uses_of(f.__code__)[name] for name in ("LOG", "LOGS", "CONFIG")]
[(1, 1, 0), (1, 0, 1), (1, 0, 0)]
"""

from __future__ import annotations

import dis
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*$")
#: names by which code may read what it does not name
COMPUTED = frozenset(
    [
        "getattr",
        "vars",
        "__dict__",
        "__getattribute__",
        "attrgetter",
        "__getstate__",
        "__reduce_ex__",
        "eval",
        "exec",
        "locals",
        "globals",
    ]
)
_ADDS = ("append", "add")
#: of one value; 3.13 has instructions that load two
_ONE_KEY = re.compile(r"LOAD_(CONST|SMALL_INT|GLOBAL|DEREF|FAST|FAST_BORROW|FAST_CHECK)$")
#: instructions that do nothing, where they are listed
_SILENT = ("CACHE", "PRECALL", "RESUME", "PUSH_NULL", "EXTENDED_ARG", "NOT_TAKEN", "COPY_FREE_VARS", "MAKE_CELL")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _strings(item)


@functools.lru_cache(None)
def strings_of(code: CodeType) -> frozenset[str]:
    """The constant texts that could be names: of attributes that ``getattr`` takes, keys of ``globals()``."""
    return frozenset(text for text in _strings(code.co_consts) if _IDENTIFIER.match(text))


@functools.lru_cache(None)
def names_of(code: CodeType) -> frozenset[str]:
    """The names that code may read from outside of its own variables."""
    return frozenset(code.co_names) | strings_of(code)


@functools.lru_cache(None)
def uses_of(code: CodeType, of_globals: bool = True) -> Mapping[str, tuple[int, int, int]]:
    """Name -> (how often it is used, how often that is ``name.append(`` or ``name.add(``, how often ``name[key].append(`` or
    ``name[key] = ``).

    An instruction that is not known counts as a use of another kind: then a list is compared, which is never wrong.
    """
    uses, adds, inside = Counter[str](), Counter[str](), Counter[str]()
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    for k, step in enumerate(steps):
        if not isinstance(step.argval, str) or step.opname in ("LOAD_CONST", "LOAD_CLOSURE"):
            continue
        if step.opname == "LOAD_GLOBAL" and not of_globals:
            continue
        uses[step.argval] += 1
        if step.opname.startswith("LOAD_"):
            adds[step.argval] += _is_add(steps[k + 1 : k + 2])
            inside[step.argval] += _is_inside(steps[k + 1 : k + 4])
    uses.update(strings_of(code))
    return {name: (n, adds[name], inside[name]) for name, n in uses.items()}


def _is_add(steps: Sequence[dis.Instruction]) -> bool:
    return bool(steps) and steps[0].opname.startswith("LOAD_") and steps[0].argval in _ADDS


def _is_inside(steps: Sequence[dis.Instruction]) -> bool:
    """Is one key loaded, and then something stored there, or appended to what is there?"""
    if len(steps) < 2 or not _ONE_KEY.match(steps[0].opname):
        return False
    is_item = steps[1].opname == "BINARY_SUBSCR" or steps[1].argrepr == "[]"
    return steps[1].opname == "STORE_SUBSCR" or (is_item and _is_add(steps[2:]))
