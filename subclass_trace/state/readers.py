"""What instrumented code asks: constants of it whose `[operand]` runs an operation.

`OPS` says what each operation does; `state/operations.py` fills it. What needs several is put
together here: an exception class that is raised is called, a key that is hashed is asked for its
hash.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from subclass_trace.state.bytecode import Uninstrumentable

#: By name: what is done instead of an instruction. It gets what the instruction says (a name, a
#: symbol) and the operand; several as a tuple, in the order of the stack. "call" takes a callable
#: and its arguments.
OPS: dict[str, Callable[..., Any]] = {}

_PLAIN_KEYS = frozenset((str, int, bool, float, bytes, complex, type(None)))
_HEAP_TYPE = 1 << 9  # in a class's flags: it was made by a `class` statement, not by C

_codes: dict[int, CodeType] = {}
_readers: dict[tuple[Any, ...], Any] = {}
_kinds: dict[str, type] = {}


def reader(operation: str, static: Any = None) -> Any:
    """An `R` for which `R[operand]` is `operation(operand)`, or `operation(static, operand)`."""
    key = operation, type(static), static
    found = _readers.get(key)
    if found is None:
        kind = _kinds.get(operation)
        if kind is None:
            kind = _kinds.setdefault(operation, _kind(operation, static is not None))
        found = _readers.setdefault(key, kind(static))
    return found


def _kind(operation: str, has_static: bool) -> type:
    if operation not in _COMPOSED and operation not in OPS:
        raise Uninstrumentable(f"no operation is known as {operation!r}")
    do = _COMPOSED.get(operation) or OPS[operation]

    class Reader:
        __slots__ = ("static",)

        def __init__(self, static: Any) -> None:
            self.static = static

        if has_static:

            def __getitem__(self, operand: Any) -> Any:
                return do(self.static, operand)

        else:
            __getitem__ = staticmethod(do)

    return Reader


def note_instrumented(code: CodeType) -> None:
    """`code` asks; it is kept."""
    _codes[id(code)] = code


def is_instrumented(code: CodeType) -> bool:
    """Was `code` made by `instrument`?"""
    return id(code) in _codes


def instrumented_frame() -> FrameType:
    """The frame of the code that asks: the nearest of the callers whose code is instrumented.

    Raises:
        RuntimeError: no instrumented code runs.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame.f_code) in _codes:
            return frame
        frame = frame.f_back
    raise RuntimeError("no instrumented code runs")


def _bare_super(parts: tuple[Any, Any, Any]) -> Any:
    """`super()`, and what it takes from the frame; `super` may be a name of the user's."""
    made, *rest = parts
    return OPS["call"](made, *rest) if made is super else OPS["call"](made)


def _attribute_of_super(static: tuple[str, bool], parts: tuple[Any, Any, Any]) -> Any:
    """`super().name`, or `super(cls, o).name` where the second of `static` says so."""
    name, has_arguments = static
    made, *rest = parts
    if made is super:
        return OPS["super_attr"](name, parts)
    return OPS["attr"](name, OPS["call"](made, *rest) if has_arguments else OPS["call"](made))


def _name_written(name: str) -> None:
    """In code that is no function's: its names are globals, or local to the body of a class."""
    frame = instrumented_frame()
    if frame.f_locals is frame.f_globals:
        OPS["write_global"](name)


def _of_class_or_global(name: str, space: Mapping[str, Any]) -> Any:
    try:
        return space[name]
    except KeyError:
        return OPS["global"](name)


def _of_class_or_cell(name: str, parts: tuple[Mapping[str, Any], Any]) -> Any:
    space, cell = parts
    try:
        return space[name]
    except KeyError:
        return OPS["cell"](name, cell)


def _of_body_or_cell(name: str, cell: Any) -> Any:
    return _of_class_or_cell(name, (instrumented_frame().f_locals, cell))


def _imported_from(name: str, module: Any) -> Any:
    try:
        return OPS["attr"](name, module)
    except AttributeError:
        package = OPS["attr"]("__name__", module)
        found = sys.modules.get(f"{package}.{name}")
    if found is None:
        raise ImportError(f"cannot import name {name!r} from {package!r}", name=package)
    return found


def _raised(error: Any) -> Any:
    """What `raise` is given: a class is called by C, where no code is instrumented."""
    if not issubclass(type(error), type):
        return error
    of_type = type.__getattribute__
    is_users = of_type(error, "__flags__") & _HEAP_TYPE
    is_error = BaseException in of_type(error, "__mro__")
    return OPS["call"](error) if is_users and is_error else error


def caught(kinds: Any) -> Any:
    """What `except` names: members of a tuple are read."""
    if type(kinds) is tuple:
        for kind in OPS["iter"](kinds):
            caught(kind)
    return kinds


def _set_of(members: Any) -> set[Any]:
    found: set[Any] = set()
    for member in OPS["iter"](members):
        found.add(OPS["keyed_in"]((member, found)))
    return found


def _set_into(parts: tuple[Any, Any]) -> set[Any]:
    members, of = parts
    return {OPS["keyed_in"]((member, of)) for member in _set_of(members)}


def _dict_of(parts: tuple[Any, ...]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        found[OPS["keyed_in"]((key, found))] = value
    return found


def _dict_without(parts: tuple[Any, tuple[Any, ...]]) -> dict[Any, Any]:
    subject, keys = parts
    rest = dict(OPS["mapping_into"]((subject, {})))
    for key in keys:
        del rest[key]
    return rest


def _converted(how: Callable[[Any], Any], value: Any) -> Any:
    return OPS["call"](how, value)


_COMPOSED: dict[str, Callable[..., Any]] = {
    "bare_super": _bare_super,
    "attribute_of_super": _attribute_of_super,
    "name_written": _name_written,
    "of_class_or_global": _of_class_or_global,
    "of_class_or_cell": _of_class_or_cell,
    "of_body_or_cell": _of_body_or_cell,
    "imported_from": _imported_from,
    "raised": _raised,
    "caught": caught,
    "set_of": _set_of,
    "set_into": _set_into,
    "dict_of": _dict_of,
    "dict_without": _dict_without,
    "converted": _converted,
}
