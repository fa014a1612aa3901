"""Modules of one class: what was traced of one serves another, where the same guards hold there."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import torch

from .. import policy
from ..options import Options
from ..runtime.bind import bind, unlike
from ..state.guards import changed_since
from ..state.place import Roots
from .dynamic import SizeHistory
from .specialization import Specialization
from .traced_call import Arguments

#: class of a module -> id of a program -> a specialization that has it, of a region of such a
# module or of a method of one
_made: weakref.WeakKeyDictionary[type, weakref.WeakValueDictionary[int, Specialization]] = (
    weakref.WeakKeyDictionary()
)


def _of_class(module: Any) -> weakref.WeakValueDictionary[int, Specialization]:
    none = weakref.WeakValueDictionary[int, Specialization]()
    return _made.setdefault(type(module), none) if isinstance(module, torch.nn.Module) else none


def remember(function: Any, entry: Specialization) -> None:
    """Other modules of the class may have its program from now on."""
    _of_class(getattr(function, "__self__", function))[id(entry.program)] = entry


def of_another(
    function: Any, call: Arguments, options: Options, history: SizeHistory
) -> Specialization | None:
    """What serves the call with the program of another module of the class, which was traced
    before.

    Where two of them have other numbers alone (a layer's index), those are symbols in the trace of
    this one.
    """
    module, numbers = getattr(function, "__self__", function), list[set[str]]()
    for entry in reversed([*_of_class(module).values()][-policy.POLICY.equal_modules :]):
        if vars(entry.options) != vars(options) or entry.program.frozen is not None:
            continue
        guards, backwards, roots = (
            entry.state.of_function(function),
            entry.program.backwards,
            Roots(*call, function),
        )
        if unlike(entry.plan, entry.ambient, guards, roots) is not None:
            failing = [*guards.failing(roots)]
            if failing and all(
                row.kind == "value" and type(row.known) in (int, float) for row in failing
            ):
                numbers.append(changed_since(guards, roots))
            continue
        run, written, failed = bind(
            entry.program, entry.ambient, guards, [p.read(roots) for p in guards.flat]
        )
        if failed(*call) is None and (backwards is None or backwards.share()):
            return replace(entry, state=guards, run=run, written=written, failed=failed)
    if len(numbers) > 1:
        history.varying_numbers.update(*numbers)
    return None
