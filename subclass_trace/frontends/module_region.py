"""A compiled module is a module: it can be a child of another one, and everything but its call is the original's.

What a `DistributedDataParallel` does in Python it does in each call, around the region of the module that it wraps. Its
forward broadcasts buffers, calls the module, and tells its reducer that the gradients of this call are to be summed over
the ranks. Only the call of the module is traced; the reducer's hooks sit on the parameters, where a region's backward
delivers gradients like eager's.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .. import _torch
from .._torch.dynamo import never_compiled
from ..options import Options
from .compile import Region, region_of


class _Forwarded:
    """A method that is the original module's, whose class may have one of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, region: Any, owner: Any = None) -> Any:
        return getattr(torch.nn.Module, self.name) if region is None else _of_module(region, self.name)


def _of_module(region: ModuleRegion, name: str) -> Any:
    """An attribute of the module. For one that a method returns the region stands: ``region.eval()``, ``region += more``."""
    shown = _shown(region)
    value = getattr(shown, name)
    if type(value) is not MethodType or value.__self__ is not shown:
        return value
    if name in vars(torch.nn.Module) and name not in _RETURN_THE_MODULE:
        return value  # as it is: Dynamo looks at the functions of these
    method: Any = value

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        return region if result is shown else result

    return call


class _Public:
    """A public member of `Region`, where the module has none of that name. (``Region.reset(region)`` is always ours.)"""

    def __init__(self, name: str) -> None:
        self.name, self.own = name, inspect.getattr_static(Region, name)

    def __get__(self, region: Any, owner: Any = None) -> Any:
        if region is None:
            return self.own
        return _of_module(region, self.name) if _has(_shown(region), self.name) else self.own.__get__(region, owner)


def _shown(region: Any) -> torch.nn.Module:
    """The module that a region appears as."""
    return region._ModuleRegion__shown  # type: ignore[no-any-return]


def _has(module: torch.nn.Module, name: str) -> bool:
    """Does a module have a member of that name, other than by being a region?"""
    state = vars(module)
    tables = (state, state.get("_parameters", ()), state.get("_buffers", ()), state.get("_modules", ()))
    return any(name in table for table in tables) or any(name in vars(cls) for cls in _users_classes(type(module)))


def _users_classes(cls: type) -> list[type]:
    """What a class of modules is derived from, itself among them, that is not in each `ModuleRegion`."""
    return [c for c in cls.__mro__ if c not in ModuleRegion.__mro__ and not issubclass(c, ModuleRegion)]


class ModuleRegion(Region, torch.nn.Module):
    """A `Region` of an ``nn.Module``, itself one.

    It has no parameters, buffers, children or hooks of its own: it reads and changes those of the module that it
    compiles. As a child of another module it appears in that one's ``parameters()``, ``state_dict()`` (under the names
    that the original would have), ``train()``, ``to()`` and so on. Attributes that are set on it are set on the original,
    whose operators it has (``region[0]``, ``len(region)``), and whose members come first, private ones too: where a module
    has a method ``reset``, that is ``region.reset()``, and ``st.Region.reset(region)`` forgets the specializations. A method
    that returns the module returns the region (``region.append(layer)``).

    >>> import torch, subclass_trace as st
    >>> model = torch.nn.Sequential(st.compile(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    >>> list(model.state_dict())
    ['0.weight', '0.bias']
    """

    def __init__(
        self,
        function: torch.nn.Module,
        options: Options,
        *,
        keep_joint: bool = False,
        shown: torch.nn.Module | None = None,
    ) -> None:
        # not that of nn.Module: it would make tables of parameters, which are the original's
        self.__shown, self.__options = function if shown is None else shown, options
        Region.__init__(self, function, options, keep_joint=keep_joint)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the module's own."""
        if name.startswith(_OWN) or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return _of_module(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(_OWN) or (name.startswith("__") and name.endswith("__")):
            object.__setattr__(self, name, value)
        else:
            setattr(self.__shown, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__shown, name)

    def __dir__(self) -> list[str]:
        """What it has and what the module has."""
        return sorted({*object.__dir__(self), *dir(self.__shown)})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the module and the options; specializations are made anew."""
        return region_of, (self.__shown, self.__options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        """A region for a copy of the module, without specializations."""
        return region_of(copy.deepcopy(self.__shown, memo), self.__options)


class DataParallelRegion(ModuleRegion):
    """The region of the module inside of a `DistributedDataParallel`; called, it runs that one around it, as which it
    appears (``no_sync()``, ``module``).
    """

    def __init__(self, parallel: Any, options: Options, *, keep_joint: bool = False) -> None:
        super().__init__(parallel.module, options, keep_joint=keep_joint, shown=parallel)
        self.__parallel = parallel

    @never_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the `DistributedDataParallel`, with the region in the place of its module."""
        parallel = self.__parallel
        if is_dynamo_compiling():
            return parallel(*args, **kwargs)
        with _torch.module_inside_replaced(parallel, super().__call__):
            return parallel(*args, **kwargs)


#: names of what a region keeps for itself, as Python makes them of ``self.__name``
_OWN = ("_Region__", "_ModuleRegion__", "_DataParallelRegion__")
#: of the methods of each module those that return it
_RETURN_THE_MODULE = frozenset(
    [
        *("apply", "to", "to_empty", "type", "float", "double", "half", "bfloat16"),
        *("cpu", "cuda", "ipu", "mtia", "xpu", "train", "eval", "requires_grad_", "share_memory"),
    ]
)

for _name, _value in vars(torch.nn.Module).items():
    if isinstance(_value, FunctionType) and not (_name.startswith("__") and _name.endswith("__")):
        setattr(ModuleRegion, _name, _Forwarded(_name))
for _name in vars(Region):
    if not _name.startswith("_"):
        setattr(ModuleRegion, _name, _Public(_name))

#: what every object has, and a class may have of its own
_OF_OBJECTS = frozenset(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "hash", "str", "format"))
_classes: weakref.WeakKeyDictionary[type, type[ModuleRegion]] = weakref.WeakKeyDictionary()


def class_of_region(module: torch.nn.Module) -> type[ModuleRegion]:
    """The class for regions of such a module. Python looks for operators (``region[0]``) on the class alone."""
    base = DataParallelRegion if _torch.is_data_parallel(module) else ModuleRegion
    cls = type(module)
    if cls not in _classes:
        operators = {
            name: _Forwarded(name)
            for c in _users_classes(cls)
            for name, value in vars(c).items()
            if name.startswith("__")
            and isinstance(value, FunctionType)
            and (name in _OF_OBJECTS or not hasattr(base, name))
        }
        _classes[cls] = type(base.__name__, (base,), {"__module__": __name__, **operators}) if operators else base
    return _classes[cls]
