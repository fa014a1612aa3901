"""What a code object names: no instruction is read beyond that.

>>> sorted(names_of((lambda x: x * CONFIG.scale + getattr(x, "real")).__code__))
['CONFIG', 'getattr', 'real', 'scale']
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
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


def asks_for_number_types(code: CodeType) -> bool:
    """Does it compare ``type(n)`` with ``int`` or ``float``? A symbol would not pass."""
    return "type" in code.co_names and not {"int", "float"}.isdisjoint(code.co_names)
