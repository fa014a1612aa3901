"""The region of a module is that module to everybody else: it shares its ``__dict__``, and its
class is derived from its class.

So it is a child like any other: ``modules()``, ``state_dict()``, ``isinstance``, ``fully_shard``
and ``quantize_`` see the module. What is compiled is the call of the original with the hooks that
it had; hooks that are registered on the region later are the region's own, and run in eager around
it (those of FSDP2 do).

>>> import torch, subclass_trace as st
>>> model = torch.nn.Sequential(st.compile(torch.nn.Linear(2, 2)), torch.nn.ReLU())
>>> list(model.state_dict()), type(model[0]).__mro__[2] is torch.nn.Linear
(['0.weight', '0.bias'], True)
"""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ..artifacts.source import Source
from ..errors import UnsupportedError
from ..options import Options
from ..runtime.frozen import Freezer
from ..torch_api.hooks import (
    CALL_WITH_HOOKS,
    are_hooks_on_all_modules,
    call_with_hooks,
    is_of_fsdp,
    is_symbolic_trace,
    share_fsdp_state,
)
from .region import Region

#: what a region has of its own, where the original has the same name in the ``__dict__`` that they
# share
_HOOK_TABLES = (
    *(
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
    ),
    *("_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks"),
)
_OWN = (*_HOOK_TABLES, "_compiled_call_impl")


class ModuleRegion:
    """The first base of the class of each region of a module.

    What it knows besides the module is in slots, so that nothing of ours is in the shared
    ``__dict__``: the `Region`, whose function is the module, and the hook tables of its own.
    """

    __slots__ = ()
    _subclass_trace: Region
    _own_tables: dict[str, Any]

    def __init_subclass__(cls, **_: Any) -> None:
        """A class of the user's may want arguments here, which the derived class has no business
        with."""

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Hooks of all modules run around the module inside, and not around the region again.

        Raises:
            UnsupportedError: the region has hooks of its own as well, to which these would not be
                in the order of eager.
        """
        if not any(self._own_tables.values()):
            return _forward(self, *args, **kwargs)
        if are_hooks_on_all_modules():
            raise UnsupportedError(
                "the region of a module has hooks of its own, and there are hooks on all modules",
                code="hooks-on-all-modules",
                path=type(self).__qualname__,
                fix="register the region's hooks on the module, before it is compiled",
            )
        return call_with_hooks(self, args, kwargs)  # type: ignore[arg-type]

    def __prepare_scriptable__(self) -> Any:
        """What ``torch.jit.script`` compiles in place of a region."""
        return module_of(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A region for a copy of the module, without specializations."""
        make, how = _making(self)
        return make(copy.deepcopy(module_of(self), memo), *how)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as the module and the options; specializations are not pickled."""
        make, how = _making(self)
        return make, (module_of(self), *how)


def _making(region: ModuleRegion) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that makes such a region of a module, and its other arguments."""
    if (freezer := freezer_of(region)) is None:
        return region_of_module, (region._subclass_trace.options,)
    return frozen_region, (freezer.options, *freezer.how)


def freezer_of(region: Any) -> Freezer | None:
    """Of a frozen region that of its back end; None for anything else."""
    if not isinstance(region, ModuleRegion):
        return None
    found: Freezer | None = region._subclass_trace.options.resolve_backend().freezer
    return found


class _Shown:
    """A public member of `Region`, where the module has none of that name: no data descriptor, so
    that attributes win."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, region: Any, owner: Any = None) -> Any:
        return self if region is None else getattr(region._subclass_trace, self.name)


def _own_table(name: str) -> property:
    def read(region: Any) -> Any:
        return region._own_tables.get(name)

    def write(region: Any, value: Any) -> None:
        region._own_tables[name] = value

    return property(read, write)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What the call of a region comes to, its own hooks around it."""
    core = self._subclass_trace
    if is_symbolic_trace() and core.function is module_of(self):
        # whose tracer knows the region by its name, and not what it compiles
        return _CALL(core.function, *args, **kwargs)
    return core.function(*args, **kwargs) if is_dynamo_compiling() else core(*args, **kwargs)


_CALL: Any = torch.nn.Module.__call__


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    """``Module.__call__`` in one frame, where nobody has replaced that and the region has nothing
    of its own to run.

    A ``__call__`` of the user's class is a part of the region.
    """
    if any(self._own_tables.values()) or torch.nn.Module.__call__ is not _CALL:
        return torch.nn.Module.__call__(self, *args, **kwargs)
    core = self._subclass_trace
    return core.function(*args, **kwargs) if is_dynamo_compiling() else core(*args, **kwargs)


class _Forward:
    """``forward`` of a region: what the user has set, as of any module; else, and for the hooks of
    the region, which run around all of that, what is compiled."""

    def __init__(self, forward: Any) -> None:
        def compiled(region: Any, *args: Any, **kwargs: Any) -> Any:
            if "forward" in vars(region):  # it was replaced by what calls this one
                return forward(module_of(region), *args, **kwargs)
            return _forward(region, *args, **kwargs)

        wrap: Any = functools.wraps(forward)  # Transformers asks which arguments a model takes
        self._compiled = wrap(compiled)

    def __get__(self, region: Any, owner: Any = None) -> Any:
        if region is None:
            return self._compiled
        if "forward" not in vars(region):
            return types.MethodType(self._compiled, region)
        if sys._getframe(1).f_code is CALL_WITH_HOOKS:
            return functools.partial(_forward, region)
        return vars(region)["forward"]

    def __set__(self, region: Any, value: Any) -> None:
        vars(region)["forward"] = value

    def __delete__(self, region: Any) -> None:
        try:
            del vars(region)["forward"]
        except KeyError:
            raise AttributeError("forward") from None


def module_of(region: ModuleRegion) -> Any:
    function = region._subclass_trace.function
    return getattr(function, "__self__", function)


_PUBLIC = [name for name in vars(Region) if not name.startswith("_")]
_classes: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _class_of_regions(cls: type[torch.nn.Module]) -> type:
    if cls not in _classes:
        members: dict[str, Any] = {name: _Shown(name) for name in _PUBLIC if not hasattr(cls, name)}
        members |= {name: _own_table(name) for name in _OWN}
        members |= {
            "__slots__": ("_subclass_trace", "_own_tables"),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
        }
        members |= {"__call__": _called, "forward": _Forward(cls.forward)}
        _classes[cls] = type(cls.__name__, (ModuleRegion, cls), members)
    return _classes[cls]


def _forward_of(module: torch.nn.Module) -> Any:
    """What the module's ``forward`` is when it is called."""

    @functools.wraps(module.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    return types.MethodType(forward, module)


def region_of_module(
    module: torch.nn.Module, options: Options, source: Source | None = None
) -> Any:
    """The region of a module; of a region the region of what that compiles. ``source``: see
    `Region`.

    Of a module of FSDP2 the ``forward`` is compiled: its hooks, which move memory in each call, are
    the region's own.
    """
    if isinstance(module, ModuleRegion):
        module = module_of(module)
    managed = is_of_fsdp(module)
    region: Any = object.__new__(_class_of_regions(type(module)))
    object.__setattr__(region, "__dict__", vars(module))
    object.__setattr__(
        region,
        "_subclass_trace",
        Region(_forward_of(module) if managed else module, options, source=source),
    )
    tables = {name: getattr(module, name) if managed else OrderedDict() for name in _HOOK_TABLES}
    object.__setattr__(region, "_own_tables", tables)
    if managed:
        share_fsdp_state(module, region)
    return region


def frozen_region(module: torch.nn.Module, options: Options, *how: Any) -> Any:
    """A frozen region of a module; ``how``: see `runtime.frozen.Freezer`."""
    return region_of_module(module, Freezer(module, options, *how).frozen())
