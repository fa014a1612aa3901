"""The register of deliberately broken subclasses: rule id -> subject that breaks exactly this rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from sound import Sound, subject

from subclass_trace.testing.subject import Subject


@dataclass(frozen=True)
class Broken:
    """A broken subclass.

    Attributes:
        rule: the id of the rule that must catch it.
        subject: how to build it.
        also: ids of rules that cannot but catch it too, each with the reason why. Keep this empty if you can.
        heads: rules that may be named as its cause as well, since they show the same fault.
    """

    rule: str
    subject: Subject
    also: dict[str, str] = field(default_factory=dict)
    heads: tuple[str, ...] = ()


BROKEN: list[Broken] = []


def breaks(
    rule: str,
    *,
    also: dict[str, str] | None = None,
    make: Callable[[type], Subject] = subject,
    heads: tuple[str, ...] = (),
) -> Any:
    """Register the decorated class as one that breaks this rule."""

    def add(cls: type) -> type:
        # resolved late: the class is not yet an attribute of its module while it is decorated
        _PENDING.append((rule, cls, also or {}, make, heads))
        return cls

    return add


def miscomputes(rule: str, *operations: Any, also: dict[str, str] | None = None, heads: tuple[str, ...] = ()) -> Any:
    """Register a class that computes these operations by the decorated function, whose ``right`` computes as it should."""

    def add(compute: Callable[..., Any]) -> type:
        def other(cls: type, func: Any, args: Any, kwargs: Any) -> Any:
            right = super(made, cls).compute  # type: ignore[misc, arg-type]
            return compute(cls, right, func, args, kwargs) if func in operations else right(func, args, kwargs)

        body = {"__doc__": compute.__doc__, "__module__": compute.__module__, "compute": classmethod(other)}
        made = type(compute.__name__, (Sound,), body)
        return breaks(rule, also=also, heads=heads)(made)

    return add


_PENDING: list[tuple[str, type, dict[str, str], Callable[[type], Subject], tuple[str, ...]]] = []


def load() -> list[Broken]:
    """All broken subclasses: imports each ``broken_*.py`` beside this file."""
    for file in sorted(Path(__file__).parent.glob("broken_*.py")):
        import_module(file.stem)
    while _PENDING:
        rule, cls, also, make, heads = _PENDING.pop(0)
        BROKEN.append(Broken(rule, make(cls), also, heads))
    return BROKEN
