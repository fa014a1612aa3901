"""`compile`: a function or module becomes a region that is traced through its wrapper tensors and
compiled.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> @st.compile
... def f(x, y):
...     return (x * y).sin()
>>> x = TwoTensor(torch.zeros(2), torch.ones(2))
>>> type(f(x, x)).__name__, len(f.specializations)
('TwoTensor', 1)
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, overload

import torch

from ..artifacts.saved import Artifact
from ..errors import OptionError
from ..options import Options
from ..torch_api.texts import text_of
from .module import ModuleRegion, freezer_of, frozen_region, module_of, region_of_module
from .region import Region

F = TypeVar("F", bound=Callable[..., Any])

#: no function is given: ``None`` would be one that somebody forgot to return
_DECORATOR: Any = object()


@overload
def compile(function: F, **options: Any) -> Region: ...


@overload
def compile(**options: Any) -> Callable[[Callable[..., Any]], Region]: ...


def compile(function: Any = _DECORATOR, **options: Any) -> Any:
    """Compile a function or module, tracing through the wrapper tensors that it works on.

    The function runs once per specialization on traced values. What it reads of Python state is
    guarded, what it changes is changed in each call. Where our trace refuses it,
    ``torch.compile(backend="subclass_trace")`` serves the region from then on, with a
    `HandOverWarning`; ``frontend="trace"`` raises the refusal instead.

    Args:
        function: a function, a method or an ``nn.Module``, whose region is that module to everybody
            else; without it, a decorator is returned.
        **options: see `Options`: those of ``torch.compile`` (``backend``, ``fullgraph``,
            ``dynamic``, ``mode``, ``options``, ``disable``), ``frontend``, ``partitioner``,
            ``activation_memory_budget``, ``decompositions``, ...

    Raises:
        OptionError: an unknown option or value.
    """
    if function is _DECORATOR:
        return lambda f: compile(f, **options)
    check_callable(function, "write st.compile(function, backend=...) or @st.compile(backend=...)")
    made = make_options(options)
    return function if made.disable else _region(function, made)


def check_callable(function: Any, fix: str) -> None:
    """Refuse what is no function.

    Raises:
        OptionError: it cannot be called.
    """
    if not callable(function):
        raise OptionError(
            "there is nothing to compile",
            expected="a function, a method or an nn.Module",
            got=text_of(function),
            fix=fix,
        )


def load(
    path: str | os.PathLike[str], function: Any, *, strict: bool = True, **options: Any
) -> Any:
    """The region of a function or module, with what `Region.save` has written: nothing is traced
    for calls that it serves.

    The first call of each kind is compared with what was saved, in full, and bound to it; other
    calls are traced as usual. Nothing of the file is run, and nothing is imported for it.

    Args:
        function: what was saved, in this process: the same code, modules of the same classes and
            sizes; a frozen region, if one was saved, with the options that it has.
        strict: what differs from when it was saved is raised; False: it is left out, and traced.
        **options: those of `compile`; the ones that decide a trace as they were.

    Raises:
        ArtifactError: the file is damaged, or of another version or rank; or (``strict``) nothing
            in it serves this function: ``path`` says where it differs, ``expected`` what was saved,
                ``got`` what is here.
        OSError: the file cannot be read.
        OptionError: as `compile`.
    """
    made = make_options(options)
    if made.disable:
        return function
    if isinstance(function, ModuleRegion):
        made = made if freezer_of(function) is None else function._subclass_trace.options
        function = module_of(function)
    elif isinstance(function, Region):
        function = function.function
    return _region(function, made, Artifact(path, function, made, strict=strict))


def freeze(module: Any, *, mode: str = "keep", discard: bool = False, strict: bool = False) -> Any:
    """A region of a module for inference, in which what depends on weights alone is computed once.

    A weight that changes later is seen: the next call raises a `FrozenError` that names it, until
    ``refreeze()`` of the region folds again.

    Args:
        module: a module, or a region of one, whose options it keeps (``backend="inductor"``).
        mode: "keep": constants are never larger than the weights that they are made of, so that
        int8 stays int8; "fold": all that can be computed ahead is.
        discard: weights that are folded are given up after the first call, and raise when they are
        used. strict: each call computes the constants again and compares them, so that no change
        is missed.

    Raises:
        OptionError: an unknown mode, or no module.
    """
    for name, value, known in (
        ("mode", mode, ("keep", "fold")),
        ("discard", discard, (True, False)),
        ("strict", strict, (True, False)),
    ):
        if not any(type(value) is type(k) and value == k for k in known):
            raise OptionError(
                f"{name} has no such value", path=name, expected=f"one of {known}", got=repr(value)
            )
    options = module._subclass_trace.options if isinstance(module, ModuleRegion) else Options()
    if (freezer := freezer_of(module)) is not None:
        options = freezer.options
    function = module_of(module) if isinstance(module, ModuleRegion) else module
    if not isinstance(function, torch.nn.Module):
        raise OptionError(
            "there is nothing to freeze",
            path="module",
            expected="an nn.Module, or a region of one",
            got=text_of(module),
        )
    return frozen_region(function, options, mode, discard, strict)


def _region(function: Any, options: Options, source: Artifact | None = None) -> Any:
    is_module = isinstance(function, torch.nn.Module) and not isinstance(
        function, torch.jit.ScriptModule
    )
    return (
        region_of_module(function, options, source)
        if is_module
        else Region(function, options, source=source)
    )


def make_options(options: dict[str, Any]) -> Options:
    """`Options` from keywords.

    Raises:
        OptionError: an unknown name, with the nearest known one.
    """
    known = [f.name for f in fields(Options)]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {close[0]!r}?" if close else None
            raise OptionError(
                f"unknown option {name!r}", expected=f"one of {known}", got=name, fix=fix
            )
    return Options(**options)
