"""The values at the top of a context and in the dicts there, and which attributes of a wrapper are copies of them.

A guard may leave a value out that the trace never read. To know what "read" means for it, the wrapper is built again
with other values in its context: an attribute that always follows one value, and no other, is a copy of it; so is one that
follows a dict as a whole. See docs/notes/contexts.md.

>>> components({"bits": 4, "table": [1], "meta": {"name": "w"}})
{(('item', 'bits'),): 4, (('item', 'meta'), ('item', 'name')): 'w'}
>>> with_components({"bits": 4, "meta": {"name": "w"}}, {(("item", "meta"), ("item", "name")): "v"})
{'bits': 4, 'meta': {'name': 'v'}}
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import _torch
from .context import (
    PLAIN,
    Lent,
    Unread,
    copied,
    has_generated_equality,
    is_buffer,
    map_parts,
    same_context,
    snapshot,
)
from .noted_dict import ROWS
from .noting import unnoted
from .watched import watched

#: ("item", key or index), or ("field", name) of a dataclass or named tuple
Part = tuple[str, Any]
#: the parts that lead to a value of a context, from outside in
Steps = tuple[Part, ...]
_PLAIN = (bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
#: so deep, and so long, are the containers that are looked through
_DEPTH, _LENGTH = 4, 1000


def components(context: Any) -> dict[Steps, Any]:
    """The plain immutable values of a context: items of a dict, list or tuple, or fields; those of the dicts in it; or all
    of it."""
    if type(context) in _PLAIN:
        return {(): context}
    found: dict[Steps, Any] = {}
    for part, value in parts_of(context):
        rows = parts_of(value) if type(value) is dict else ()
        found |= {(part,): value} if type(value) in _PLAIN else {(part, p): v for p, v in rows if type(v) in _PLAIN}
    return found


def wholes(context: Any) -> dict[Steps, Any]:
    """The other values of a context that a guard may leave out, each as a whole: of the same places, and all of it.

    Members of an enum, dtypes and the like; arrays; and containers of nothing but such values and plain ones.
    """
    found: dict[Steps, Any] = {(): context} if _is_whole(context) and type(context) is not dict else {}
    for part, value in parts_of(context):
        rows = parts_of(value) if type(value) is dict else ()
        found |= {(part,): value} if not rows and _is_whole(value) else {(part, p): v for p, v in rows if _is_whole(v)}
    return found


def _is_whole(value: Any) -> bool:
    return type(value) not in (*_PLAIN, type(None)) and _holds_plain(value, _DEPTH)


def _holds_plain(value: Any, depth: int) -> bool:
    if type(value) in PLAIN or isinstance(value, _NAMED) or is_buffer(value):
        return True
    if type(value) not in _CONTAINERS or len(value) > _LENGTH or not depth:
        return False
    inside = [*value, *value.values()] if type(value) is dict else value
    return all(_holds_plain(v, depth - 1) for v in inside)


def parts_of(context: Any) -> Iterator[tuple[Part, Any]]:
    """The parts of a container or dataclass."""
    if type(context) in ROWS:
        yield from ((("item", k), v) for k, v in dict.items(context))
    elif type(context) in (list, tuple):
        yield from ((("item", k), v) for k, v in enumerate(context))
    elif isinstance(context, tuple) and hasattr(context, "_fields"):
        yield from ((("field", n), v) for n, v in zip(context._fields, context, strict=True))
    elif has_generated_equality(context):
        with unnoted():
            rows = [(("field", f.name), getattr(context, f.name)) for f in dataclasses.fields(context) if f.compare]
        yield from rows


def component(context: Any, part: Part) -> Any:
    """One value of a context."""
    kind, key = part
    return context[key] if kind == "item" else getattr(context, key)


def value_at(context: Any, steps: Steps) -> Any:
    """The value that these steps lead to."""
    return functools.reduce(component, steps, context)


def source_at(steps: Steps, context: str, name_of: Callable[[Any], str] = repr) -> str:
    """The expression that reads the value, as source. ``name_of``: what stands there for a key of a dict."""
    for kind, key in steps:
        context = f"{context}[{name_of(key)}]" if kind == "item" else f"{context}.{key}"
    return context


def read_lent(mark: Lent, values: Sequence[Any]) -> Any:
    """What an input (or tangent) of this call has in the place of an object of the traced one.

    The mark where nothing is: inside of a container that no guard compares.
    """
    _, number, names, steps = mark.place
    wrapper: Any = values[number]
    for name in names:
        wrapper = getattr(wrapper, name)
    try:
        return value_at(wrapper.__tensor_flatten__()[1], steps)
    except (AttributeError, LookupError, TypeError):
        return mark


def is_inside(mark: Lent, unread: Iterable[Unread]) -> bool:
    """Is the object one of these values, or in one?"""
    kind, *wrapper, steps = mark.place
    return kind == "input" and any([m.input, m.names] == wrapper and m.steps == steps[: len(m.steps)] for m in unread)


def with_lent(value: Any, call: Mapping[Any, Any]) -> Any:
    """An attribute of a result with the objects of a call in the place of marks."""
    return call[value] if isinstance(value, Lent) else map_parts(value, lambda v: with_lent(v, call))


def mark_source(mark: Lent | Unread, variable: str, name_of: Callable[[Any], str]) -> str:
    """The expression that reads it, as source; ``variable``: the input."""
    names, steps = (mark.names, mark.steps) if isinstance(mark, Unread) else mark.place[2:]
    return source_at(steps, ".".join((variable, *names)) + ".__tensor_flatten__()[1]", name_of)


def with_components(context: Any, values: Mapping[Steps, Any]) -> Any:
    """A copy of a context with some of its values replaced."""
    if not values:
        return context
    if () in values:
        return values[()]
    inside: dict[Part, dict[Steps, Any]] = {}
    for (part, *rest), value in values.items():
        inside.setdefault(part, {})[tuple(rest)] = value
    new = {part: with_components(component(context, part), rows) for part, rows in inside.items()}
    if type(context) is dict:
        return {k: new.get(("item", k), v) for k, v in context.items()}
    if type(context) in (list, tuple):
        return type(context)(new.get(("item", k), v) for k, v in enumerate(context))
    if isinstance(context, tuple):
        return type(context)(*(new.get(part, v) for part, v in parts_of(context)))
    twin = copied(context)
    for (_, name), value in new.items():
        object.__setattr__(twin, name, value)
    return twin


def unread_of(context: Any) -> list[Unread]:
    """The marks that a guard's context holds."""
    if isinstance(context, Unread):
        return [context]
    found = [v for _, v in parts_of(context)]
    inside = [w for v in found if type(v) is dict for w in v.values()]
    return [v for v in (*found, *inside) if isinstance(v, Unread)]


# ---------------------------------------------------------------------------------------------- copies of them
@dataclasses.dataclass(frozen=True)
class Copies:
    """What a wrapper keeps of its context as it is.

    Attributes:
        values: those that nothing can have read but through these attributes.
        attributes: name -> the value that it is a copy of, or the dict that some are in.
        wholes: of ``values``, those that no other ones were tried of; see `wholes`.
    """

    values: tuple[Steps, ...]
    attributes: Mapping[str, Steps]
    wholes: frozenset[Steps] = frozenset()

    def items_of(self, steps: Steps) -> set[Steps]:
        """Those that lie in the container at ``steps``, or in one of its items."""
        return {s for s in self.values if len(s) > len(steps) and s[: len(steps)] == steps}


def copies(build: Callable[[Any], torch.Tensor], built: torch.Tensor, context: Any) -> Copies:
    """Which attributes of a wrapper are copies of values of its context.

    Args:
        build: makes the wrapper from a context of its own and the same inner values; it may raise.
        built: the wrapper for ``context``.

    The wrapper is built once with each value changed and twice with all of them changed. A value is left out when that
    raises, or when anything but attributes differs then: the outer tensor, or which attributes there are; and when the
    class does more with it than to keep it (compares it, computes with it), since then an attribute may depend on it for
    other values than were tried. No other containers and the like are tried: what a wrapper keeps of another one is
    looked at when there is one.
    """
    found = _perhaps_kept(vars(built), context)
    trials = _trials(build, built, context, found)
    contexts = [(context, vars(built)), *((with_components(context, values), state) for values, state in trials)]
    rest = wholes(context)
    kept = {
        name: steps
        for name in vars(built)
        for steps in (*_tables(context), *rest, *found)
        if all(_same(state[name], value_at(now, steps)) for now, state in contexts)
    }
    within = {*kept.values()}
    values = tuple(s for s in (*rest, *found) if s in within or (s and s[:-1] in within))
    return Copies(values, kept, frozenset(rest).intersection(values))


def _trials(
    build: Callable[[Any], torch.Tensor], built: torch.Tensor, context: Any, found: dict[Steps, Any]
) -> list[tuple[dict[Steps, Any], dict[str, Any]]]:
    """Other values, and the attributes of the wrapper with them. What cannot be tried is taken out of ``found``."""
    trials = []
    for part in _used(build, built, context, found):
        del found[part]
    switches = [part for part, value in found.items() if type(value) is bool]
    several = list(itertools.product((False, True), repeat=len(switches))) if len(switches) > 1 else []
    tried: list[dict[Steps, Any]] = [{part: _near(value)} for part, value in found.items()]
    tried += [dict(zip(switches, states, strict=True)) for states in several]
    for values in tried:
        trial = _built(build, built, context, values) if values.keys() <= found.keys() else None
        if trial is not None:
            trials.append((values, trial))
        for part in values if trial is None else ():
            found.pop(part, None)
    for other in (_near, _far):
        values = {part: other(value) for part, value in found.items()}
        trial = _built(build, built, context, values) if values else None
        if trial is None:
            found.clear()
        else:
            trials.append((values, trial))
    return [(values, state) for values, state in trials if values.keys() <= found.keys()]


def _perhaps_kept(state: Mapping[str, Any], context: Any) -> dict[Steps, Any]:
    """The values that an attribute may be a copy of, or a copy of the dict that they are in."""

    def is_kept(value: Any) -> bool:
        return any(_same(a, value) for a in state.values())

    tables = [steps for steps in _tables(context) if is_kept(value_at(context, steps))]
    return {s: v for s, v in components(context).items() if (s and s[:-1] in tables) or is_kept(v)}


def _tables(context: Any) -> list[Steps]:
    """The steps that lead to the dicts in a context."""
    found: list[Steps] = [()] if type(context) is dict else []
    return found + [(part,) for part, value in parts_of(context) if type(value) is dict]


def _used(
    build: Callable[[Any], torch.Tensor], built: torch.Tensor, context: Any, values: Mapping[Steps, Any]
) -> set[Steps]:
    """The values that the class does something with while it builds a wrapper, whatever the truth values are."""
    switches = [part for part, value in values.items() if type(value) is bool]  # bool has no subclasses
    used = set(switches) if len(switches) > _SWITCHES else set()
    switches = [part for part in switches if part not in used]
    for positions in itertools.product((False, True), repeat=len(switches)):
        trial = {p: watched(v, functools.partial(used.add, p)) for p, v in values.items() if type(v) is not bool}
        if _built(build, built, context, {**trial, **dict(zip(switches, positions, strict=True))}) is None:
            return set(values)
    return used


#: so many truth values are tried in all their combinations
_SWITCHES = 3


def _built(
    build: Callable[[Any], torch.Tensor], like: torch.Tensor, context: Any, values: Mapping[Steps, Any]
) -> dict[str, Any] | None:
    """The attributes of a wrapper with these values in its context; None where it differs from ``like`` otherwise."""
    try:
        made = build(with_components(snapshot(context), values))
    except Exception:  # an author's check of the context: whatever it raises, the value decides something
        return None
    same = type(made) is type(like) and _outside(made) == _outside(like) and set(vars(made)) == set(vars(like))
    return dict(vars(made)) if same else None


def _outside(t: torch.Tensor) -> tuple[Any, ...]:
    with _torch.no_overrides():  # a class may compute when its tensors are asked for these
        meta = (t.dtype, t.device, t.layout, t.is_leaf, _torch.dispatch_keys(t))
        return (tuple(t.shape), tuple(t.stride()), t.storage_offset(), *meta)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and same_context(a, b)


def _near(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "~"
    if isinstance(value, bytes):
        return value + b"~"
    if isinstance(value, int):
        return value + 1
    return value * 1.5 + 0.37 if math.isfinite(abs(value)) else type(value)(0.37)


def _far(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "~" + value * 2
    if isinstance(value, bytes):
        return b"~" + value * 2
    if isinstance(value, int):
        return value + 1009
    return -3 * value - 11.1 if math.isfinite(abs(value)) else type(value)(-11.1)
