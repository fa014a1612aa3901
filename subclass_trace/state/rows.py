"""Rows: one thing each that was read of a place, as a guard compares it.

A kind of row is one line of `KINDS`: how it is compared, and how that is said. The generated guards
(`runtime.state_code`) have short forms of the usual ones; this table is the reference.
"""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..subclass.attributes import namespace_of
from ..subclass.values import is_a, same
from .place import Place, Roots
from .values import MISSING, items_of, same_keys, short, size_of


@dataclass(frozen=True, eq=False)
class Row:
    """``known`` is what was read of ``place``; ``kind`` says what of it: see `KINDS`."""

    kind: str
    place: Place
    known: Any

    @property
    def code(self) -> str:
        """What has to hold, as code."""
        return KINDS[self.kind][1].format(at=self.place, was=said(self.known))

    def holds(self, call: Roots) -> bool:
        """Does it, in a call?"""
        return self.holds_of(lambda place: place.read(call))

    def holds_of(self, read: Callable[[Place], Any]) -> bool:
        """Does it of what is read at places?"""
        value, known = read(self.place), self.known
        if self.kind == "distinct":
            return len({id(value), *(id(read(place)) for place in known)}) == 1 + len(known)
        if self.kind in ("alias", "other"):
            return (value is read(known)) is (self.kind == "alias")
        return bool(KINDS[self.kind][0](value, known))

    def why(self, call: Roots) -> str:
        """It does not."""
        if self.kind == "alias":
            return f"{self.place} and {self.known} were one object"
        if self.kind == "distinct":
            return f"two of {self.place}, {', '.join(map(str, self.known[:8]))} are one object"
        if self.kind == "other":
            return f"{self.place} and {self.known} were two objects"
        if self.kind == "hooks":
            return f"{self.place}: a hook is registered"
        now_there = self.place.read(call)
        if self.kind == "func" and type(now_there) is types.FunctionType:
            return f"{self.place}: expected the function that it was, got one with other code"
        was, now = said(self.known), said(now_of(self.kind, now_there))
        if self.known is MISSING and self.place.kind == "attr":
            was = "no value of its own"
        at = f"len({self.place})" if self.kind in ("len", "size") else str(self.place)
        return f"{at}: expected {was}, got {'another one' if now == was else now}"


def said(value: Any) -> str:
    """Something that a row keeps, in a message."""
    if is_a(value, type):
        return f"a {value.__qualname__}"
    if type(value) is tuple and value and type(value[0]) is Place:
        return f"{len(value)} others"
    if type(value) is list:
        few = [short(v) for v in value[:8]] + ["..."] * (len(value) > 8)
        return f"[{', '.join(few)}]"
    return str(value) if type(value) is Place else short(value)


def now_of(kind: str, value: Any) -> Any:
    """What a row of this kind would keep of a value."""
    if kind in ("type", "number", "tensor"):
        return type(value)
    if kind in ("len", "size"):
        return size_of(value)
    if kind == "keys":
        return [*value]
    if kind in ("truth", "there"):
        return bool(value) if kind == "truth" else value is not MISSING
    return value


def _number(value: Any, kind: Any) -> bool:
    """The formulas of symbols do not hold for 0.0, infinities and NaN, which are constants."""
    return type(value) is kind and (kind is not float or (value != 0 and math.isfinite(value)))


def code_of(function: Any) -> Any:
    """The code of a function of Python's; of anything else None."""
    return function.__code__ if type(function) is types.FunctionType else None


def _keys(value: Any, known: list[Any]) -> bool:
    keys = [*items_of(value)]
    return same_keys(keys, known) and all(
        type(a) is type(b) for a, b in zip(keys, known, strict=True)
    )


def members(value: Any) -> set[Any]:
    """Of a set: atoms by type and value, other objects by identity."""
    return {(type(k), k) if type(k) in _BY_VALUE else id(k) for k in items_of(value)}


_BY_VALUE = (int, float, str, bool, bytes, type(None))


def raw(value: Any) -> Any:
    """The bytes of an array or a bytearray."""
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        fields = value.dtype.descr if value.dtype.names else None
        return value.dtype.str, value.shape, value.tobytes(), value.strides, fields
    return bytes(value)


def put_raw(value: Any, known: Any) -> None:
    """An array or a bytearray holds these bytes again."""
    if type(known) is bytes:
        value[:] = known
    elif raw(value)[:2] == known[:2]:
        value[...] = sys.modules["numpy"].ndarray(known[1], known[0], known[2])


def base_value(value: Any) -> Any:
    """The number or text that an instance of a subclass is, past its own methods."""
    if is_a(value, (str, bytes)):
        base: Any = str if is_a(value, str) else bytes
        return base.__getitem__(value, slice(None))
    if is_a(value, int):
        return int.__index__(value)
    return float.__float__(value) if is_a(value, float) else complex.__complex__(value)


def hooks(module: Any) -> list[Any]:
    """The tables of hooks that a call of a module looks into, those that are not empty."""
    held = namespace_of(module) or {}
    return [held[name] for name in HOOKS if held.get(name)]


HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


def _exact(value: Any, known: Any) -> bool:
    """What ``==`` does not tell, texts do: 1.0 and 1.00, signs of zero, NaN, zones of times."""
    if type(value) is not type(known) or type(value) in _BY_EQUALITY:
        return type(value) is type(known) and bool(value == known)
    return value is known or (repr(value) == repr(known) and bool(value == known or value != value))


#: classes whose texts are cut short, or have addresses
_BY_EQUALITY = (re.Pattern, types.CodeType)


KINDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "value": (same, "{at} == {was}"),
    "exact": (_exact, "{at} == {was}"),
    "is": (lambda value, known: value is known, "{at} is the same {was}"),
    "type": (lambda value, known: type(value) is known, "type({at}) is {was}"),
    "number": (_number, "{at} is {was}, of any value"),
    "tensor": (lambda value, _: is_a(value, torch.Tensor), "isinstance({at}, Tensor)"),
    "func": (lambda value, known: code_of(value) is known, "{at} has the same code"),
    "len": (lambda value, known: len(value) == known, "len({at}) == {was}"),
    "size": (lambda value, known: size_of(value) == known, "len({at}) == {was}"),
    "keys": (_keys, "[*{at}] == {was}"),
    "set": (lambda value, known: members(value) == known, "{at} has the same members"),
    "truth": (lambda value, known: bool(value) is known, "bool({at}) is {was}"),
    "raw": (lambda value, known: bool(raw(value) == known), "{at} has the same bytes"),
    "based": (lambda value, known: same(base_value(value), known), "{at} == {was}"),
    "there": (lambda value, _: value is not MISSING, "{at} is there"),
    "hooks": (lambda value, _: not hooks(value), "{at} has no hooks"),
    "alias": (lambda value, other: value is other, "{at} is {was}"),
    "distinct": (lambda value, others: True, "{at} is none of {was}"),
    "other": (lambda value, other: value is not other, "{at} is not {was}"),
}
