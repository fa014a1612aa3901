"""A second run of a region's function on fakes, when a backward needs a trace that was dropped (``retain_trace=False``).

It runs in the backward, perhaps in another thread and long after the call, so everything that the guards hold is checked
and the thread's state is set as it was. No tensor of the call is kept for it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import _torch
from ..capture.again import FirstRun
from ..capture.inputs import Argument
from ..capture.tape import Tape
from ..errors import TangentError
from ..runtime.guards import Ambient, Guards, failed_module_guard
from ..runtime.sizes import Env, evaluate, to_expr
from ..subclass.arguments import same_argument
from .calls import CallSite
from .modules import State
from .reach import Slot

Tensor = torch.Tensor


def second_run(
    first: FirstRun,
    function: Callable[..., Any],
    site: CallSite,
    arguments: Sequence[Argument],
    positions: Sequence[int | None],
    guards: Guards,
) -> Callable[[Env | None], Tape] | None:
    """What runs the function again; None where a view among the arguments is represented by its base, or an argument stands
    elsewhere as well: no argument is kept for it."""
    if any(a.take_base for a in arguments) or site.elsewhere or site.containers.lent:
        return None
    slots = list(positions)
    rows = [replace(a, value=_nothing()) for a in arguments]  # which tensor it is is all that a run asks for
    flat = [v if n is None else rows[n].value for v, n in zip(site.flat, slots, strict=True)]
    ghost = replace(site, flat=flat)

    def again(env: Env | None) -> Tape:
        here, handed = _with_named(ghost, rows, slots)
        _check(here, guards)
        with _state(guards.ambient):
            run = here.runner(function, handed, slots)
            at = None if env is None else functools.partial(_size_at, env)
            return first.repeat(run, handed, at)

    return again


def _size_at(env: Env, size: Any) -> Any:
    return evaluate(to_expr(size), env)


def _nothing() -> Tensor:
    with _torch.no_modes():
        return torch.empty(0)


def _with_named(
    site: CallSite, rows: Sequence[Argument], slots: Sequence[int | None]
) -> tuple[CallSite, list[Argument]]:
    """The tensors of modules, and those that the function has names for, are found where they are now."""
    arguments, flat = list(rows), list(site.flat)
    named_slots: list[State | Slot] = [*site.states, *site.names]
    for position, named in enumerate(named_slots, start=site.user_count):
        number, real = slots[position], named.read()
        if number is None or not isinstance(real, Tensor):
            raise _changed(f"{named.path} is bound to another object")
        arguments[number] = replace(arguments[number], value=real)
        flat = [real if slots[k] == number else v for k, v in enumerate(flat)]
    return replace(site, flat=flat), arguments


def _check(site: CallSite, guards: Guards) -> None:
    """Does everything that decided the first run still hold?"""
    reason = failed_module_guard(guards, site.module_view())
    if reason is not None:
        raise _changed(reason)
    for name in guards.names:
        if not name.holds():
            raise _changed(f"{name.path} is bound to another object, or has another value")
    for position, value in guards.constants.items():
        if not same_argument(value, site.flat[position]):
            raise _changed(f"{site.path(position)} was {value!r}")


def _changed(what: str) -> TangentError:
    return TangentError(
        "the function would have to be traced again for these tangents, and something changed since the forward",
        expected="modules, names and arguments as they were in the forward",
        got=what,
        fix="keep the first trace: retain_trace=True",
    )


@contextlib.contextmanager
def _state(ambient: Ambient) -> Iterator[None]:
    """The state of the thread that the specialization was made in."""
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(ambient.grad))
        stack.enter_context(_torch.disable_autocast())
        for device, kind in ambient.autocast[:-1]:
            stack.enter_context(torch.autocast(device, kind, cache_enabled=ambient.autocast[-1]))
        for device in ambient.devices:
            stack.enter_context(device)
        stack.enter_context(_torch.dtensor_modes_as(ambient.dtensor))
        stack.enter_context(_torch.attention_kernels_as(ambient.attention))
        torch.set_default_dtype(ambient.dtype)
        torch.use_deterministic_algorithms(ambient.deterministic, warn_only=warns)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic, warn_only=warns)
