"""What a code object names: no instruction is read beyond that, but for what follows the load of a name.

>>> def f(x):
...     LOG.append(x)
...     return x * CONFIG.scale
>>> sorted(names_of(f.__code__)), only_appended(f.__code__)["LOG"], only_appended(f.__code__)["CONFIG"]
(['CONFIG', 'LOG', 'append', 'scale'], (1, 1), (1, 0))
"""

from __future__ import annotations

import dis
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
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
def only_appended(code: CodeType) -> Mapping[str, tuple[int, int]]:
    """Name -> (how often it is used, how often that is ``name.append(`` or ``name.add(``).

    An instruction that is not known counts as a use of another kind: then a list is compared, which is never wrong.
    """
    uses, adds = Counter[str](), Counter[str]()
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not isinstance(step.argval, str) or step.opname in ("LOAD_CONST", "LOAD_CLOSURE"):
            continue
        uses[step.argval] += 1
        if step.opname.startswith("LOAD_") and following is not None and following.opname.startswith("LOAD_"):
            adds[step.argval] += following.argval in _ADDS
    uses.update(strings_of(code))
    return {name: (n, adds[name]) for name, n in uses.items()}


def asks_for_number_types(code: CodeType) -> bool:
    """Does it compare ``type(n)`` with ``int`` or ``float``? A symbol would not pass."""
    return "type" in code.co_names and not {"int", "float"}.isdisjoint(code.co_names)
