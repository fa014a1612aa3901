"""A compiled module is a module: it can be a child of another one, and everything but its call is the original's.

What a `DistributedDataParallel` does in Python it does in each call, around the region of the module that it wraps. Its
forward broadcasts buffers, calls the module, and tells its reducer that the gradients of this call are to be summed over
the ranks. Only the call of the module is traced; the reducer's hooks sit on the parameters, where a region's backward
delivers gradients like eager's.
"""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from .. import _torch
from .._torch.dynamo import never_compiled
from ..options import Options
from .compile import Region


class _Forwarded:
    """A method of ``nn.Module`` that is the original module's, whose class may have one of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, region: Any, owner: Any = None) -> Any:
        return getattr(torch.nn.Module if region is None else region.shown, self.name)


class ModuleRegion(Region, torch.nn.Module):
    """A `Region` of an ``nn.Module``, itself one.

    It has no parameters, buffers, children or hooks of its own: it reads and changes those of the module that it
    compiles. As a child of another module it appears in that one's ``parameters()``, ``state_dict()`` (under the names
    that the original would have), ``train()``, ``to()`` and so on. Attributes that are set on it are set on the original.

    >>> import torch, subclass_trace as st
    >>> model = torch.nn.Sequential(st.compile(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    >>> list(model.state_dict())
    ['0.weight', '0.bias']
    """

    def __init__(self, function: torch.nn.Module, options: Options, *, keep_joint: bool = False) -> None:
        # not that of nn.Module: it would make tables of parameters, which are the original's
        Region.__init__(self, function, options, keep_joint=keep_joint)

    @property
    def shown(self) -> torch.nn.Module:
        """The module that it appears as."""
        return self.function  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        """Everything else is the module's own."""
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.shown, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            object.__setattr__(self, name, value)
        else:
            setattr(self.shown, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.shown, name)

    def __dir__(self) -> list[str]:
        """What it has and what the module has."""
        return sorted({*object.__dir__(self), *dir(self.shown)})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the module and the options; specializations are made anew."""
        return type(self), (self.shown, self.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        """A region for a copy of the module, without specializations."""
        return type(self)(copy.deepcopy(self.shown, memo), self.options)


class DataParallelRegion(ModuleRegion):
    """The region of the module inside of a `DistributedDataParallel`; called, it runs that one around it, as which it
    appears (``no_sync()``, ``module``).
    """

    def __init__(self, parallel: Any, options: Options, *, keep_joint: bool = False) -> None:
        super().__init__(parallel.module, options, keep_joint=keep_joint)
        self.parallel = parallel

    @property
    def shown(self) -> torch.nn.Module:
        """The `DistributedDataParallel`."""
        return self.parallel  # type: ignore[no-any-return]

    @never_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the `DistributedDataParallel`, with the region in the place of its module."""
        if is_dynamo_compiling():
            return self.parallel(*args, **kwargs)
        with _torch.module_inside_replaced(self.parallel, super().__call__):
            return self.parallel(*args, **kwargs)


#: what a region keeps for itself
_OWN = frozenset(["function", "options", "_keep_joint", "_entries", "_fast", "_eagerly", "_history", "parallel"])

for _name, _value in vars(torch.nn.Module).items():
    if isinstance(_value, FunctionType) and not (_name.startswith("__") and _name.endswith("__")):
        setattr(ModuleRegion, _name, _Forwarded(_name))
