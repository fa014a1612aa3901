"""What one run reads and writes of Python state that was there before it.

A `StateRecorder` is asked by instrumented code (`operations`, `calls`). It knows by its id where
each object that was there before was met first: a `Place`. A read of a place gives a `Row` once,
and from then on what stands for the value in the trace: a stand-in for a tensor, a symbol for a
number that changes between calls, else itself. What the run has made has no place and costs
nothing. A write is noted before it happens: later reads of what it wrote are no reads of state, and
all is put back.
"""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import policy
from ..errors import RuleError, SubclassTraceError, UnsupportedError
from ..subclass.attributes import Memo
from ..subclass.values import ATOMS, is_a
from ..torch_api.autograd import CustomNode
from ..torch_api.kinds import is_opaque_class
from ..torch_api.modes import functions_are_seen
from ..torch_api.numbers import PYTHON_CLASSES
from ..torch_api.owners import Owner, owner_of
from ..torch_api.this_thread import before_replacement, code_before
from . import kinds
from .kinds import (
    BUILTINS,
    DESCRIPTORS,
    VALUES,
    Function,
    Method,
    is_immutable,
)
from .place import Place, Roots
from .rows import Row, base_value
from .special import as_function
from .values import MISSING, lookup, lookup_after
from .writes import Written


class StateRecorder:
    """See the module's docstring.

    Attributes:
        rows: what was read, in order.
        known: id of an object that was there before -> it, and the place where it was met first.
        symbols: places of numbers -> their symbols; ``stand_ins``: id of a real tensor -> the
            traced one. reals: id of a traced tensor -> the place of the real one, and that.
            written: id of a thing -> what is known of it before it was written.
        modules: the `torch.nn.Module`s that are being called, outermost first, as
            ``nn_module_stack`` has them: place -> (path from the outermost one, class).
    """

    #: the region may run eagerly where it makes what later calls find
    waits: frozenset[str] | None = None
    #: the roots of the call that is traced
    roots_of_call = Roots((), {})
    #: how often something was changed
    changes = 0
    #: is a hook registered on an autograd node
    hooks_nodes = False

    def __init__(self, make: Any = None) -> None:
        """``make``: makes stand-ins, ``tensors(rows)`` and ``number(place, value)`` (None: a
        constant). Without it tensors are what they are."""
        self.make = make
        self.rows: list[Row] = []
        self.known: dict[int, tuple[Any, Place]] = {}
        self.roots: dict[int, tuple[Any, Place]] = {}
        self.places: dict[tuple[Any, ...], Place] = {}
        self.noted: set[Place] = set()
        self.written: dict[int, Written] = {}
        self.arrays: dict[int, tuple[Any, Any]] = {}  # id -> one that was read, what it held
        self.copies: list[tuple[Any, list[Any]]] = []  # of containers, for C code: what they hold
        self.owners: dict[int, Any] = {}  # id of the dict of an object -> the object
        self.lookups: dict[tuple[type, str], Any] = {}
        self._specials: dict[tuple[type, str], tuple[Any, Any]] = {}
        self.walked: set[int] = set()
        self.made: dict[int, type] = {}  # classes
        self.plain: dict[int, tuple[Any, int]] = {}  # id of a container of atoms -> it, its length
        self.symbols: dict[Place, Any] = {}
        self.stand_ins: dict[int, torch.Tensor] = {}
        self.reals: dict[int, tuple[Place, torch.Tensor]] = {}
        self.own: dict[
            int, frozenset[str]
        ] = {}  # id of a traced tensor -> attributes that its class sets by itself
        self.modules: dict[str, tuple[str, type]] = {}
        self.inlined: dict[str, str] = {}  # functions of ``torch.compile`` -> their back ends
        self.compiled_by: Any = (
            None  # the call of such a one that runs, `torch_api.compiled_inside.CompiledBy`
        )
        self.refusal: SubclassTraceError | None = None
        self.warned: Callable[[str], None] | None = None

    # ---- refusals
    def refuse(self, error: SubclassTraceError) -> None:
        """Raise a refusal, and remember it: no ``except Exception`` of the user's shall swallow it.

        Raises:
            SubclassTraceError: it.
        """
        raise self.refused(error) from None

    def refused(self, error: SubclassTraceError) -> SubclassTraceError:
        """Remember a refusal; a class's own is eager's, too."""
        if self.refusal is None and not isinstance(error, RuleError):
            self.refusal = error
        return error

    def refuse_unseen(self, t: torch.Tensor, name: str) -> None:
        """Code that the modes of the capture do not see (a hook, a custom backward, a method of a
        class of tensors) sets the gradient, the data or the flag of a tensor from outside, or asks
        for the gradient.

        Raises:
            UnsupportedError: it does: each backward would have to, at its moment.
        """
        if self.place_of(t) is not None and not functions_are_seen():
            self.refuse(
                UnsupportedError(
                    f"a hook, a backward or a tensor class uses .{name} of a tensor from outside",
                    code="backward-changes-state",
                    path=f"{self.place_of(t)}.{name} at {user_line()}",
                    fix="do it outside of the region",
                )
            )

    # ---- places
    def root(self, thing: Any, name: str | None = None) -> Place:
        """The place of a thing that is its own name: a class, the dict of a Python module, a
        function of C."""
        found = self.roots.get(id(thing))
        if found is None:
            self.roots[id(thing)] = found = (thing, Place(None, "const", thing, name))
        return found[1]

    def place_of(self, thing: Any) -> Place | None:
        """Where an object was met first; None of what the run has made."""
        found = self.known.get(id(thing))
        if found is None:
            found = self.roots.get(id(thing))
        return None if found is None else found[1]

    def child(self, place: Place, kind: str, key: Any, name: str | None = None) -> Place:
        """The place one step further, the same object each time."""
        known: tuple[Any, ...] = (id(place), kind, type(key), key)
        try:
            found = self.places.get(known)
        except TypeError:  # it has no hash: by identity, which the place keeps alive
            known = (id(place), kind, id(key), None)
            found = self.places.get(known)
        if found is None:
            if len(self.places) > policy.POLICY.places:
                self._too_many()
            self.places[known] = found = Place(place, kind, key, name)
        return found

    def _too_many(self) -> None:
        roots = collections.Counter(str(p.root) for p in self.places.values())
        self.refuse(
            UnsupportedError(
                f"the region reads more than {policy.POLICY.places:,} places of Python state",
                code="too-many-places",
                path=roots.most_common(1)[0][0],
                fix="compile a smaller function, or pass what it needs as arguments",
            )
        )

    # ---- reads
    def step(self, of: Any, kind: str, key: Any, value: Any, box: Any = None) -> Any:
        """``value`` was read from ``of``; ``box``: what a write would have changed. What stands for
        it in the trace."""
        place = self.place_of(of)
        if place is None:
            return self.give(value)
        if self.written:
            written = self.written.get(id(of if box is None else box))
            if written is not None and written.covers(key):
                return self.give(value)
        return self.at(self.child(place, kind, key), value)

    def at(self, place: Place, value: Any) -> Any:
        """``value`` stands at a place. What stands for it in the trace."""
        if place not in self.noted:
            self.noted.add(place)
            self.note(place, value)
        if self.symbols and place in self.symbols:
            return self.symbols[place]
        return self.give(value)

    def state_at(self, place: Place, value: Any) -> None:
        """A state of torch's or of Python's, of atoms or an enumeration: compared as a whole."""
        if place not in self.noted:
            self.noted.add(place)
            is_atom = type(value) in ATOMS or type(value) is tuple
            self.rows.append(Row("value" if is_atom else "exact", place, value))

    def give(self, value: Any) -> Any:
        """What stands for a value in the trace."""
        if self.stand_ins and is_a(value, torch.Tensor):
            return self.stand_ins.get(id(value), value)
        return value

    def row(self, of: Any, kind: str, known: Any) -> None:
        """A row of this kind about an object that was there before, once."""
        place = self.place_of(of)
        if place is not None:
            once = self.child(place, "row", kind)
            if once not in self.noted:
                self.noted.add(once)
                self.rows.append(Row(kind, place, known))

    def note(self, place: Place, value: Any) -> None:
        """The row of what stands at a place: the value of an atom, the kind of anything else."""
        kind = type(value)
        if kind in ATOMS or value is MISSING:
            return self._note_atom(place, value, kind)
        if (before := before_replacement(value)) is not value:
            return self.note(place, before)
        if is_a(value, torch.Tensor):
            return self._note_tensor(place, value)
        if kind in VALUES or (is_a(value, kinds.VALUE_BASES) and is_immutable(kind)):
            self.rows.append(Row("exact", place, value))
            self.known.setdefault(id(value), (value, place))
        elif is_a(value, enum.Enum):
            self.rows.append(Row("is", place, value))
            self.known.setdefault(id(value), (value, place))
        elif (
            kind not in (type, types.ModuleType)
            and (first := self._met_at(place, value)) is not None
        ):
            self.rows.append(Row("alias", place, first))
        elif is_a(value, _NUMBERS_AND_TEXTS):
            self.known[id(value)] = (value, place)
            self.rows += (Row("type", place, kind), Row("based", place, base_value(value)))
        elif is_a(value, Memo):
            self.rows.append(Row("type", place, kind))
        elif _is_its_own_name(value, kind) or is_opaque_class(kind):
            self.rows.append(Row("is", place, value))
            self.known.setdefault(id(value), (value, place))
        elif kind is Function:
            self.rows.append(Row("func", place, code_before(value)))
            self.known[id(value)] = (value, place)
        else:
            self.known[id(value)] = (value, place)
            self.rows.append(Row("type", place, kind))
            if kind is Method:
                self.step(value, "inner", "__func__", value.__func__)
                self.step(value, "inner", "__self__", value.__self__)
            elif kind is super:
                self.step(value, "inner", "__thisclass__", value.__thisclass__)
                self.step(value, "inner", "__self__", value.__self__)
            elif kind in BUILTINS or kind is types.MethodWrapperType:
                self.step(value, "inner", "__name__", value.__name__)
                self.step(value, "inner", "__self__", value.__self__)

    def _met_at(self, place: Place, value: Any) -> Place | None:
        """Another place where an object was met before."""
        found = self.known.get(id(value))
        return None if found is None or found[1] is place else found[1]

    def _note_atom(self, place: Place, value: Any, kind: type) -> None:
        if kind in (int, float) and self.make is not None:
            symbol = self.make.number(place, value)
            if symbol is not None:
                self.symbols[place] = symbol
                self.rows.append(Row("number", place, kind))
                return
        self.rows.append(Row("value", place, value))

    def _note_tensor(self, place: Place, value: torch.Tensor) -> None:
        if id(value) in self.reals:  # a stand-in, which the run has put there
            return
        if id(value) in self.known:
            first = self.known[id(value)][1]
            if first is not place:
                self.rows.append(Row("alias", place, first))
            return
        self.known[id(value)] = (value, place)
        if self.make is None:
            self.rows.append(Row("is", place, value))
            return
        self.rows.append(Row("tensor", place, torch.Tensor))
        traced = self.make.tensors([(place, value)])[0]
        self.stand_ins[id(value)] = traced
        self.adopt(traced, value, place)

    def adopt(self, traced: torch.Tensor, real: torch.Tensor, place: Place) -> None:
        """A traced tensor stands for a real one at a place."""
        self.reals[id(traced)] = place, real
        self.known[id(traced)] = traced, place
        self.prepare(traced, real)

    def prepare(self, traced: torch.Tensor, real: torch.Tensor) -> None:
        """What else a stand-in needs."""

    def real(self, value: Any) -> Any:
        """The real tensor for a stand-in; anything else itself."""
        found = self.reals.get(id(value))
        return value if found is None else found[1]

    def pin(self, thing: Any) -> None:
        """Its identity was asked: it is a key."""
        if is_a(thing, torch.Tensor):
            thing = self.real(thing)
        elif type(thing) in ATOMS or is_a(thing, (type, types.ModuleType, enum.Enum)):
            return
        self.row(thing, "is", thing)

    def fix(self, given: Any, held: Any) -> bool:
        """Code of C sees a number itself, for which a symbol stands in the trace: it is no symbol
        then."""
        if given is held or type(given) not in PYTHON_CLASSES:
            return False
        PYTHON_CLASSES[type(given)](given)
        return True

    def distinguish(self, a: Any, b: Any) -> None:
        """It was asked whether two objects are one, and they are not. (That they are one is a row
        since they were met.)"""
        if is_a(a, torch.Tensor) or is_a(b, torch.Tensor) or type(a) in ATOMS or type(b) in ATOMS:
            return
        first, other = self.place_of(a), self.place_of(b)
        if first is None or other is None or type(a) is not type(b):
            return
        once = self.child(first, "other", other)
        if once not in self.noted:
            self.noted.add(once)
            self.rows.append(Row("other", first, other))

    # ---- classes
    def lookup(self, cls: type, name: str) -> Any:
        """The attribute of a class, by the order of its bases; that is read."""
        key = (cls, name)
        if key in self.lookups:
            return self.lookups[key]
        if self.written and (writer := self._written_class(cls, name)) is not None:
            return self._own_absent(cls, writer, name)
        value = lookup(cls, name)
        if id(cls) in self.made:
            return self._of_made(cls, name, value)
        if not is_immutable(cls) and cls is not torch.Size:
            of, node = cls, CustomNode
            if issubclass(cls, node) and lookup(node, name) is value:
                of = node  # torch makes a class of each Function, also of those that a run makes
            value = self.at(self.child(self.root(of), "lookup", name), value)
        self.lookups[key] = value
        return value

    def special(self, cls: type, name: str) -> Any:
        """The special method of a class, which is read: a function of Python's, or C code."""
        value, key = self.lookup(cls, name), (cls, name)
        known = self._specials.get(key)
        if known is None or known[0] is not value:
            known = self._specials[key] = value, as_function(value, cls, name)
        return known[1]

    def binds(self, member: Any) -> bool:
        """Is what a class holds a descriptor? That is read."""
        return self.lookup(type(member), "__get__") is not MISSING

    def is_data(self, member: Any) -> bool:
        """Is it one that comes before what an object holds itself?"""
        kind = type(member)
        setters = (self.lookup(kind, name) for name in ("__set__", "__delete__"))
        return self.binds(member) and any(setter is not MISSING for setter in setters)

    def _of_made(self, cls: type, name: str, value: Any) -> Any:
        """What a class gives that the run has made: its own is no state, its bases' is."""
        for base in cls.__mro__:
            held = type.__dict__["__dict__"].__get__(base).get(name, MISSING)
            if id(base) not in self.made and not is_immutable(base):
                held = self.at(self.child(self.root(base), "own", name), held)
            if held is not MISSING:
                return held
        return value

    def made_class(self, cls: Any) -> Any:
        """A class that the run has made."""
        if is_a(cls, type):
            self.made[id(cls)] = cls
        return cls

    def _written_class(self, cls: type, name: str) -> type | None:
        """The first base that has the attribute or had it, if that is one in which the run has
        written it."""
        for base in cls.__mro__:
            written = self.written.get(id(base))
            if written is not None and written.covers(name):
                return base
            if name in type.__dict__["__dict__"].__get__(base):
                return None
        return None

    def _own_absent(self, cls: type, writer: type, name: str) -> Any:
        """What a class gives that the run has written: no base in front of it has the attribute."""
        for base in cls.__mro__[: cls.__mro__.index(writer)]:
            if not is_immutable(base):
                self.at(self.child(self.root(base), "own", name), MISSING)
        return lookup(cls, name)

    def lookup_after(self, key: tuple[type, type, str]) -> Any:
        """As ``super`` finds it."""
        return self.at(self.child(self.root(key[0]), "super", key), lookup_after(key))

    def class_dict(self, cls: type) -> None:
        """All that a class defines itself is read."""
        if id(cls) in self.made:
            return
        names = self.child(self.root(names_of), "call", (cls,))
        self.at(names, names_of(cls))
        written = self.written.get(id(cls))
        for name, value in list(type.__dict__["__dict__"].__get__(cls).items()):
            if written is not None and written.covers(name):
                continue
            if name not in _OF_THE_SOURCE:
                self.fix(self.at(self.child(self.root(cls), "own", name), value), value)


# ---- helpers
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes)


def _is_its_own_name(value: Any, kind: type) -> bool:
    """Is it the same thing in each call, and without state that its class would not tell?"""
    if is_a(value, (type, types.ModuleType, *DESCRIPTORS)):
        return True
    if kind in BUILTINS:
        return value.__self__ is None or is_a(value.__self__, (type, types.ModuleType))
    return False


def is_made_by_torch(kind: type) -> bool:
    """Is it of a class of torch's own, but for what the user's code fills?"""
    own = owner_of(kind) is Owner.TORCH
    return own and not issubclass(kind, (torch.nn.Module, dict, list))


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The dict of an object, past any property; None where it has none."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return held if is_a(held, dict) else None


def slot(member: Any, value: Any) -> Any:
    """What stands in a slot, or `MISSING`."""
    try:
        return member.__get__(value, type(value))
    except AttributeError:
        return MISSING


#: what a class keeps that is no member of it: where it was written (Python 3.13)
_OF_THE_SOURCE = ("__dict__", "__weakref__", "__firstlineno__", "__static_attributes__")


def names_of(cls: type) -> str:
    """The names that a class defines itself, in order."""
    left_out = (
        "__abstractmethods__",
        "__annotations_cache__",
        "__doc__",
        "__slotnames__",
        "_abc_impl",
    )
    return " ".join(n for n in type.__dict__["__dict__"].__get__(cls) if n not in left_out)


def user_line() -> str | None:
    """``file:line`` of the innermost frame of the user's code that runs."""
    from .frames import user_frame

    frame = user_frame()
    return (
        None
        if frame is None
        else f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
    )
