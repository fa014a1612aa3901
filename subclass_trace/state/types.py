"""``type(x)`` of a dense traced tensor is what the caller has, ``torch.Tensor`` or ``nn.Parameter``; of a symbol, ``int``.

No class can answer for ``type``, so in the globals of entered code that names it stands another one until the function has
returned: it answers otherwise of traced tensors alone, which other threads do not have.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

import torch

from .. import torch_api
from .code_names import is_called_only
from .values import MISSING, is_walked


class _TypeOfTypes(type):
    """The class of what stands for ``type``, and does what ``type`` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not TYPE:  # a metaclass that was made of it
            return super().__call__(*args, **kwargs)
        found = type(*args, **kwargs)
        if len(args) == 1:
            if found in torch_api.FAKE_TYPES:
                return torch.nn.Parameter if isinstance(args[0], torch.nn.Parameter) else torch.Tensor
            found = torch_api.PYTHON_CLASSES.get(found, found)
        return cls if found is type else found

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type) if cls is TYPE else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, type) if cls is TYPE else super().__subclasscheck__(other)


TYPE: Any = None
TYPE = _TypeOfTypes("type", (type,), {})


#: what stands for classes of numbers, in modules that do nothing but call them: no thread can tell it from the class
_CALLED = ((float, torch_api.to_float), (int, torch_api.to_int))


def exchange(code: types.CodeType, space: dict[str, Any], *stand_ins: tuple[Any, Any]) -> list[tuple[Any, str, Any]]:
    """Code runs for the first time: names of its globals that lead to one of these builtins lead to its stand-in from now on.

    Returns:
        the globals, a name, and what stood there, for each.
    """
    if not is_walked(space.get("__name__")):
        return []
    module = sys.modules.get(space.get("__name__", ""))
    known = module is not None and vars(module) is space
    done = []
    for name in code.co_names:
        value = space.get(name, getattr(builtins, name, MISSING))
        for builtin, stand_in in (*stand_ins, *_CALLED):
            called = (builtin, stand_in) in _CALLED
            if value is builtin and (not called or (known and is_called_only(module, name))):
                done.append((space, name, space.get(name, MISSING)))
                space[name] = stand_in
    return done
