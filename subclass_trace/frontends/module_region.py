"""A compiled module is a module: it can be a child of another one, and everything but its call is the original's."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from ..options import Options
from .compile import Region


class _Forwarded:
    """A method of ``nn.Module`` that is the original module's, whose class may have one of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, region: Any, owner: Any = None) -> Any:
        return getattr(torch.nn.Module if region is None else region.function, self.name)


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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            object.__setattr__(self, name, value)
        else:
            setattr(self.function, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.function, name)

    def __dir__(self) -> list[str]:
        """What it has and what the module has."""
        return sorted({*object.__dir__(self), *dir(self.function)})


#: what a region keeps for itself
_OWN = frozenset(["function", "options", "_keep_joint", "_entries", "_fast", "_eager_calls", "_history"])

for _name, _value in vars(torch.nn.Module).items():
    if isinstance(_value, FunctionType) and not (_name.startswith("__") and _name.endswith("__")):
        setattr(ModuleRegion, _name, _Forwarded(_name))
