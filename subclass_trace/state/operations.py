"""What each replaced instruction does: the same as the instruction, recorded. Without a recorder:
the instruction alone.

See `instrument` for which instruction becomes which operation.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

import torch

from ..subclass.values import ATOMS, is_a
from ..torch_api.numbers import PYTHON_CLASSES
from ..torch_api.owners import Owner, owner_of
from . import attributes, calls
from .attribute_writes import put
from .boundary import ENTER, kind_of
from .current import current
from .frames import instrumented_frame
from .instrument import OPS
from .items import (
    contains,
    del_item,
    found_in,
    in_container,
    item,
    item_of_container,
    keyed,
    keyed_in,
    read_slice,
    set_item,
    set_slice,
)
from .iteration import as_mapping, iterate
from .kinds import LOCKS, Function, is_immutable
from .operators import binary, compare, identical, truth, truth_kept, unary
from .readers import caught
from .special import is_python, special_of
from .texts import Text
from .values import MISSING, lookup
from .writes import CONTENTS, NAMES

Tensor = torch.Tensor
_builtins = builtins.__dict__
_SYMBOLS = frozenset(PYTHON_CLASSES)


# ---- calls
def call(f: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``f(*args, **kwargs)``."""
    rec = current()
    return f(*args, **kwargs) if rec is None else rec.call(f, *args, **kwargs)


def call0(pair: tuple[Any, Any]) -> Any:
    """[call, f] of ``f()``, or [f, argument] of a comprehension, a decorator, an assertion."""
    slot, f = pair
    return call(f) if slot is call else call(slot, f)


def call_ex(parts: tuple[Any, ...]) -> Any:
    """``f(*args, **kwargs)`` with both as they are written."""
    f, args, *named = parts
    rec = current()
    if rec is None:
        return f(*args, **(named[0] if named else {}))
    return rec.call(f, *iterate(rec, args), **(mapping(named[0]) if named else {}))


def call_tuple(parts: tuple[Any, ...]) -> Any:
    """Python 3.10: the callable and its arguments."""
    return call(*parts)


def call_kw(parts: tuple[Any, ...]) -> Any:
    """Python 3.10: the callable, its arguments, the names of the last ones."""
    *given, names = parts
    n = len(given) - len(names)
    return call(*given[:n], **dict(zip(names, given[n:], strict=True)))


# ---- names
def attr(name: str, o: Any) -> Any:
    """``o.name``."""
    rec = current()
    return getattr(o, name) if rec is None else attributes.get(rec, o, name)


def super_attr(name: str, parts: tuple[Any, Any, Any]) -> Any:
    """``super(cls, o).name``."""
    rec = current()
    made, cls, o = parts
    if rec is None or made is not super:
        return getattr(made(cls, o), name)
    return attributes.after(rec, cls, o, name)


def set_attr(name: str, pair: tuple[Any, Any]) -> None:
    """``pair[1].name = pair[0]``."""
    rec = current()
    setattr(pair[1], name, pair[0]) if rec is None else put(rec, pair[1], name, pair[0])


def del_attr(name: str, o: Any) -> None:
    """``del o.name``."""
    rec = current()
    delattr(o, name) if rec is None else put(rec, o, name, MISSING)


def read_global(name: str) -> Any:
    """A global variable, or a built-in."""
    rec, space = current(), instrumented_frame(2).f_globals
    value = space.get(name, MISSING)
    if rec is not None:
        rec.root(space)
        given = rec.item(space, name, value)
        if value is not MISSING:
            return given
        rec.root(_builtins)
        value = _builtins.get(name, MISSING)
        rec.item(_builtins, name, value)
    elif value is MISSING:
        value = _builtins.get(name, MISSING)
    if value is MISSING:
        raise NameError(f"name '{name}' is not defined")
    return value


def read_name(name: str) -> None:
    """A name in the body of a class or of an ``eval``: where it is no local one, the global one is
    read."""
    rec, frame = current(), instrumented_frame(2)
    if rec is None:
        return
    local, space = frame.f_locals, frame.f_globals
    if rec.place_of(local) is not None:
        rec.fix(rec.item(local, name, local.get(name, MISSING)), None)
    if name in local and local is not space:
        return
    rec.root(space)
    value = space.get(name, MISSING)
    rec.fix(rec.item(space, name, value), None)
    if value is MISSING and name in _builtins:
        rec.root(_builtins)
        rec.item(_builtins, name, _builtins[name])


def write_global(name: str) -> None:
    """A global variable is about to be set or deleted."""
    rec = current()
    if rec is not None:
        space = instrumented_frame(2).f_globals
        rec.root(space)
        rec.write(space, name, whole=False, table=NAMES)


def cell(name: str, held: Any) -> Any:
    """A variable of a function around."""
    rec = current()
    try:
        value = held.cell_contents
    except ValueError:
        raise NameError(
            f"cannot access free variable '{name}' where it is not associated with a value "
            "in enclosing scope"
        ) from None
    return value if rec is None else rec.step(held, "contents", None, value)


def write_cell(held: Any) -> None:
    """A variable of a function around is about to be set."""
    rec = current()
    if rec is not None:
        rec.write(held, CONTENTS, whole=False)


# ---- iteration, contexts, text
def iterated(o: Any) -> Any:
    """What is iterated or unpacked."""
    rec = current()
    return o if rec is None else iterate(rec, o)


def mapping(o: Any) -> Any:
    """What follows ``**``."""
    rec = current()
    return as_mapping(rec, o) if rec is not None and hasattr(o, "keys") else o


def mapping_into(pair: tuple[Any, Any]) -> Any:
    """What follows ``**`` in a display or a call, and the dict that it is put into."""
    held = mapping(pair[0])
    if (rec := current()) is not None and is_a(held, dict):
        keyed(rec, held, () if pair[1] is None else pair[1])
    return held


class Manager:
    """A context manager of Python code, its methods instrumented."""

    def __init__(self, o: Any) -> None:
        self.o = o

    def __enter__(self) -> Any:
        rec = current()
        if rec is None:
            return self.o.__enter__()
        return rec.call(rec.special(type(self.o), "__enter__"), self.o)

    def __exit__(self, *error: Any) -> Any:
        rec = current()
        if rec is None:
            return self.o.__exit__(*error)
        return rec.call(rec.special(type(self.o), "__exit__"), self.o, *error)


def manager(o: Any) -> Any:
    """What follows ``with``."""
    rec = current()
    enter = special_of(type(o), "__enter__")
    if rec is None:
        return o
    if type(enter) is not Function:
        kind = type(o)
        own = kind not in LOCKS and owner_of(kind) is not Owner.TORCH
        if own and rec.place_of(o) is not None:
            calls.refuse_change(rec, o, "with")
        return o
    return Manager(o) if kind_of(enter.__code__) == ENTER or enter in calls.FUNCTIONS else o


def formatted(o: Any) -> Any:
    """What an f-string takes the text of: with code of the user's it is the text itself."""
    rec = current()
    kind = type(o)
    if rec is None or kind in ATOMS or kind in _SYMBOLS or is_a(o, Tensor):
        return o
    if not is_immutable(kind):
        for name in ("__format__", "__str__", "__repr__"):
            if type(rec.special(kind, name)) is Function:
                return Text(o)
    rec.deep(o, "format")
    return rec.mapped(o)


def get_len(o: Any) -> None:
    """``match`` asks for the length."""
    if (rec := current()) is not None:
        rec.call_again(len, o)


def match_keys(pair: tuple[Any, Any]) -> None:
    """``match`` asks for keys."""
    rec = current()
    if rec is None:
        return
    for key in pair[1]:
        if is_python(type(pair[0]), "get"):
            get = attributes.get(rec, pair[0], "get")
            rec.fix(rec.call_again(get, key, None), None)
        elif is_a(pair[0], dict):
            rec.fix(rec.item(pair[0], key, dict.get(pair[0], key, MISSING)), None)
        else:
            rec.deep(pair[0], "match")


def match_class(positional: int, parts: tuple[Any, Any, Any]) -> None:
    """``match`` asks for a class and attributes."""
    rec = current()
    if rec is None:
        return
    o, cls, names = parts
    if not rec.call_again(isinstance, o, cls):
        return
    named: Any = ()
    if positional and lookup(cls, "__match_args__") is not MISSING:
        named = [*iterate(rec, attr("__match_args__", cls))][:positional]
    for name in (*named, *names):
        try:
            rec.fix(rec.call_again(getattr, o, name), None)
        except AttributeError:
            return


def caught_of_group(pair: tuple[Any, Any]) -> None:
    """``except*`` makes groups of the errors inside of one, and asks for their classes."""
    if (rec := current()) is not None:
        caught(pair[1])
        rec.deep(pair[0], "except*")


def and_back(op: str, *parts: Any) -> tuple[Any, ...]:
    """Python 3.10: an operation that leaves its operands, in reverse."""
    OPS[op](*parts)
    return tuple(reversed(parts[-1]))


OPS.update(
    {
        "attr": attr,
        "super_attr": super_attr,
        "set_attr": set_attr,
        "del_attr": del_attr,
        "global": read_global,
        "name": read_name,
        "write_global": write_global,
        "cell": cell,
        "write_cell": write_cell,
        "item": item,
        "set_item": set_item,
        "del_item": del_item,
        "slice": read_slice,
        "set_slice": set_slice,
        "is": identical,
        "contains": contains,
        "binary": binary,
        "compare": compare,
        "unary": unary,
        "truth": truth,
        "truth_kept": truth_kept,
        "iter": iterated,
        "mapping_into": mapping_into,
        "manager": manager,
        "format": formatted,
        "get_len": get_len,
        "match_keys": match_keys,
        "match_class": match_class,
        "caught_of_group": caught_of_group,
        "keyed_in": keyed_in,
        "call": call,
        "call0": call0,
        "call_ex": call_ex,
        "call_tuple": call_tuple,
        "call_kw": call_kw,
        "and_back": and_back,
    }
)
calls.operations = types.SimpleNamespace(
    **OPS,
    item_of_container=item_of_container,
    in_container=in_container,
    found_in=found_in,
    keyed=keyed,
)
