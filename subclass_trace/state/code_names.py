"""What a code object names: no instruction is read beyond that, but for what follows the load of a name.

>>> def f(x):
...     LOG.append(x)
...     LOGS["x"].append(x)
...     return x * CONFIG.scale
>>> sorted(names_of(f.__code__))
['CONFIG', 'LOG', 'LOGS', 'append', 'scale', 'x']
>>> [uses_of(f.__code__)[use] for use in (("LOG", "append"), ("LOGS", "inside"), ("CONFIG", "all"))]
[1, 1, 1]
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*$")
#: names by which code may read variables that it does not name; and attributes
OF_GLOBALS = frozenset(("eval", "exec", "locals", "globals"))
COMPUTED = OF_GLOBALS | {
    "getattr",
    "vars",
    "attrgetter",
    "__dict__",
    "__getattribute__",
    "__getstate__",
    "__reduce_ex__",
}
_ADDS = ("append", "add")
#: of one value; 3.13 has instructions that load two
_ONE_KEY = re.compile(r"LOAD_(CONST|SMALL_INT|GLOBAL|DEREF|FAST|FAST_BORROW|FAST_CHECK)$")
#: instructions that do nothing, where they are listed
SILENT = ("CACHE", "PRECALL", "RESUME", "PUSH_NULL", "EXTENDED_ARG", "NOT_TAKEN", "COPY_FREE_VARS", "MAKE_CELL")


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
def uses_of(code: CodeType, of_globals: bool = True) -> Counter[tuple[str, str]]:
    """How often names are used, (name, "all"), and how often so: (name, "append"), ``name.append(`` or ``name.add(``;
    (name, "inside"), ``name[key].append(`` or ``name[key] = ``; (name, "item 'key'"), what else is done with a text as the key.

    An instruction that is not known counts as a use of another kind: then a list is compared, which is never wrong.
    """
    uses = Counter((text, "all") for text in strings_of(code))
    steps = [step for step in dis.get_instructions(code) if step.opname not in SILENT]
    for k, step in enumerate(steps):
        name, left_out = step.argval, ("LOAD_CONST", "LOAD_CLOSURE", *([] if of_globals else ["LOAD_GLOBAL"]))
        if isinstance(name, str) and step.opname not in left_out:
            uses[name, "all"] += 1
            uses[name, _use(steps[k + 1 : k + 4]) if step.opname.startswith("LOAD_") else ""] += 1
    return uses


@functools.lru_cache(None)
def is_called_only(module: ModuleType, name: str) -> bool:
    """Does the code of a module do nothing with a global but call it? (Python 3.10 does not tell.)

    What runs when it is imported is left out: its own code, and the bodies of its classes, in which annotations are.
    """
    if sys.version_info < (3, 11):
        return False
    try:
        get_code = getattr(module.__loader__, "get_code", None)
        code = get_code(module.__name__) if get_code else compile(inspect.getsource(module), "module", "exec")
    except Exception:  # a loader of anyone's, or no source
        return False
    todo = [code]
    for code in todo:
        todo.extend(c for c in getattr(code, "co_consts", ()) if isinstance(c, CodeType))
        if code is None or (code.co_flags & inspect.CO_OPTIMIZED and not _calls_only(code, name)):
            return False
    return True


def _calls_only(code: CodeType, name: str) -> bool:
    """Is each load of a global the beginning of a call? Then it loads a NULL as well."""
    steps = dis.get_instructions(code) if name in code.co_names else ()
    loads = [s for s in steps if s.argval == name and "GLOBAL" in s.opname]
    return all(s.opname == "LOAD_GLOBAL" and s.arg is not None and s.arg & 1 for s in loads)


def _use(following: Sequence[dis.Instruction]) -> str:
    """How a name is used that was just loaded."""
    adds = [step.opname.startswith("LOAD_") and step.argval in _ADDS for step in following]
    if adds[:1] == [True]:
        return "append"
    if len(following) < 2 or not _ONE_KEY.match(following[0].opname):
        return ""
    is_item = following[1].opname == "BINARY_SUBSCR" or following[1].argrepr == "[]"
    if following[1].opname == "STORE_SUBSCR" or (is_item and adds[2:] == [True]):
        return "inside"
    both = following[1].opname in ("COPY", "DUP_TOP_TWO")  # ``name[key] += 1``
    key = following[0].argval if following[0].opname == "LOAD_CONST" else None
    return f"item {key!r}" if type(key) is str and (is_item or both) else ""
