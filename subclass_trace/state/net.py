"""The net: code of Python's that C code calls, and that is not instrumented, would run unseen: it
is refused."""

from __future__ import annotations

import sys
import types
from typing import Any

from ..errors import UnsupportedError
from ..subclass.values import is_a
from ..torch_api.owners import Owner, owner_of_file, owner_of_name
from .boundary import (
    ENTER,
    is_called_by_others,
    is_kernel,
    is_recorders,
    is_transparent,
    kind_of,
)
from .current import current
from .instrument import is_instrumented
from .kinds import Function
from .rows import Row
from .running import Running
from .values import lookup


def watched(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """C code that may call code of Python's, which would run unseen: that refuses."""
    if sys.getprofile() is not None:
        return f(*args, **kwargs)
    sys.setprofile(watch)
    try:
        return f(*args, **kwargs)
    finally:
        sys.setprofile(None)


def watch(frame: Any, event: str, arg: Any) -> None:
    rec = current()
    if event != "call" or rec is None:
        return
    code = frame.f_code
    owner = owner_of_file(code.co_filename)
    if is_instrumented(code) or is_transparent(code.co_filename) or owner is Owner.TORCH:
        return
    library = owner is Owner.PYTHON or code.co_filename.startswith("<string>")
    if (
        library
        and is_recorders(frame.f_back.f_code)
        and frame.f_back.f_code is not watched.__code__
    ):
        return  # the recorder's own
    asked = owner is Owner.USER and _is_asked(frame)
    if not asked and is_called_by_others(frame.f_back, is_instrumented if library else _or_torchs):
        return
    if is_kernel(frame.f_back, is_instrumented):
        sys.setprofile(None)
        _read_kernel(rec, frame)
        sys.setprofile(watch)
        return
    rec.refuse(
        UnsupportedError(
            "C code calls Python code that is not read",
            code="unread-python-code",
            path=f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})",
            fix="call it outside of the region, or from Python code",
        )
    )


#: what torch asks an argument for, in the place of a number or of a list
_ASKED = frozenset(
    f"__{name}__"
    for name in ("index", "int", "float", "complex", "bool", "len", "getitem", "iter", "array")
)


def _is_asked(frame: Any) -> bool:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    kind = type(frame.f_locals.get(next(iter(names), "")))
    return any(getattr(lookup(kind, n), "__code__", None) is frame.f_code for n in _ASKED)


def _or_torchs(code: Any) -> bool:
    """Code of the user's that torch's calls does run unseen."""
    return is_instrumented(code) or owner_of_file(code.co_filename) is Owner.TORCH


def _read_kernel(rec: Running, frame: Any) -> None:
    """Python code of a library that torch's dispatcher calls: an operator writes nothing but its
    arguments. All globals that it names are read, as a whole."""
    code = frame.f_code
    if owner_of_file(code.co_filename) is Owner.USER and id(code) not in rec.roots:
        # What it does is in the trace, and nothing leads from the operator to it: no description
        # can compare it.
        rec.rows.append(Row("there", rec.root(code, f"the kernel {code.co_name}"), True))
    if id(code) in rec.walked:
        return
    rec.walked.add(id(code))
    names = set(code.co_names)
    rec.root(frame.f_globals)
    for name in sorted(names & frame.f_globals.keys()):
        if type(frame.f_globals[name]) is not Function:  # it is met when it is called
            read_named(rec, frame.f_globals, name, names)


def unwatched(f: Any, *args: Any, **kwargs: Any) -> Any:
    """C code that calls nothing that matters."""
    if sys.getprofile() is not watch:  # one of the user's stays: C profilers cannot be set again
        return f(*args, **kwargs)
    sys.setprofile(None)
    try:
        return f(*args, **kwargs)
    finally:
        sys.setprofile(watch)


#: what finds a name that code computes
_COMPUTED = frozenset(("getattr", "hasattr", "vars", "dir", "__dict__", "attrgetter"))


def read_named(rec: Running, space: dict[str, Any], name: str, names: set[str]) -> None:
    """A global that the code of a kernel names, as a whole, with the code behind it."""
    held = space[name]
    given = rec.item(space, name, held)
    if is_a(held, types.ModuleType):
        if owner_of_name(held.__name__) not in (Owner.PYTHON, Owner.TORCH):
            rec.root(held.__dict__)
            inside = names if names.isdisjoint(_COMPUTED) else held.__dict__.keys()
            for inner in sorted(inside & held.__dict__.keys()):
                rec.deep(rec.item(held.__dict__, inner, held.__dict__[inner]), "a kernel", 1)
    elif type(held) is Function:
        _read_code(rec, held)
    else:
        rec._reached(given, held, "a kernel", 0 if is_a(held, type) else 1)


def _read_code(rec: Running, f: Any) -> None:
    """All that a function may read: cells, defaults, the globals that it names."""
    rec.deep(f, "a kernel")
    if id(f.__code__) in rec.walked or kind_of(f.__code__) != ENTER:
        return
    rec.walked.add(id(f.__code__))
    names = names_in(f.__code__)
    rec.root(f.__globals__)
    for name in sorted(names & f.__globals__.keys()):
        read_named(rec, f.__globals__, name, names)


def names_in(code: types.CodeType) -> set[str]:
    """The names that a code object has, with those of the code in it."""
    names, codes = set[str](), [code]
    for code in codes:
        names.update(code.co_names)
        codes += [c for c in code.co_consts if type(c) is types.CodeType]
    return names
