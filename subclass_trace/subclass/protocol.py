"""Is a class traceable, and if not, why not?

>>> import torch
>>> class Bare(torch.Tensor):
...     pass
>>> problems(Bare)[0]
'has no __tensor_flatten__(self) -> (attribute names, context)'
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ProtocolError, SubclassTraceError, UnsupportedError
from ..torch_api.kinds import FAKE_TYPES, overrides_torch_dispatch
from ..torch_api.repairs.strided_shards import repaired_unflatten
from ..torch_api.wrappers import disabled_torch_function
from .paths import Path


class Kind(enum.Enum):
    """What the visitor does with a value."""

    LEAF = "leaf"
    WRAPPER = "wrapper"
    REFUSED = "refused"


#: the classes of real dense tensors
REAL = frozenset({torch.Tensor, torch.nn.Parameter})
_DENSE = {*REAL, *FAKE_TYPES}


@functools.cache
def kind_of(cls: type) -> Kind:
    """Leaf (a dense tensor), wrapper, or refused; decided once per class."""
    if cls in _DENSE or is_plain_parameter(cls):
        return Kind.LEAF
    return Kind.REFUSED if problems(cls) else Kind.WRAPPER


#: special methods that a Parameter class may have without being another tensor: they make, copy,
# save, print it
_HARMLESS = """
    __new__ __init__ __deepcopy__ __copy__ __reduce_ex__ __reduce__ __setstate__ __repr__
    __init_subclass__ __dir__ __doc__ __class_getitem__ __subclasshook__ __module__ __dict__
    __weakref__ __annotations__ __torch_function__ __static_attributes__ __firstlineno__
"""


@functools.cache
def is_plain_parameter(cls: Any) -> bool:
    """Is it a class of Parameters with attributes and methods alone (bitsandbytes, HQQ): computed
    with as any Parameter is?"""
    lazy = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
    if not issubclass(cls, torch.nn.Parameter) or cls in REAL or issubclass(cls, lazy):
        return False
    if cls.__torch_function__ is not disabled_torch_function or len(problems(cls)) < 3:
        return False
    own = (
        name for base in cls.__mro__[: cls.__mro__.index(torch.nn.Parameter)] for name in vars(base)
    )
    return all(
        not (n.startswith("__") and hasattr(torch.Tensor, n)) or n in _HARMLESS.split() for n in own
    )


def is_traceable(value: object) -> bool:
    """Is ``value`` (an instance or a class) a traceable wrapper subclass?"""
    cls = value if isinstance(value, type) else type(value)
    return issubclass(cls, torch.Tensor) and kind_of(cls) is Kind.WRAPPER


def problems(cls: type) -> tuple[str, ...]:
    """Why ``cls`` is not a traceable wrapper subclass; empty when it is one.

    The protocol is PyTorch's: ``__tensor_flatten__``, ``__tensor_unflatten__`` (PyTorch PR 96235)
    and a ``__torch_dispatch__``.
    """
    if not issubclass(cls, torch.Tensor):
        return ("is not a subclass of torch.Tensor",)
    if cls in _DENSE:
        return ("is a plain dense tensor, not a wrapper",)
    found = []
    flatten = inspect.getattr_static(cls, "__tensor_flatten__", None)
    unflatten = inspect.getattr_static(cls, "__tensor_unflatten__", None)
    if flatten is None:
        found.append("has no __tensor_flatten__(self) -> (attribute names, context)")
    elif isinstance(flatten, (staticmethod, classmethod)):
        found.append("has a __tensor_flatten__ that is not an instance method")
    if unflatten is None:
        found.append(
            "has no static __tensor_unflatten__(inner_tensors, context, outer_size, outer_stride)"
        )
    elif not isinstance(unflatten, (staticmethod, classmethod)):
        found.append("has a __tensor_unflatten__ that is neither a staticmethod nor a classmethod")
    if not overrides_torch_dispatch(cls):
        found.append("has no __torch_dispatch__(cls, func, types, args, kwargs)")
    return tuple(found)


def why_not_traceable(value: object) -> str | None:
    """One readable sentence for each problem of the class of ``value`` (or of the class ``value``);
    None when it is fine."""
    cls = value if isinstance(value, type) else type(value)
    return "; ".join(f"{cls.__qualname__} {what}" for what in problems(cls)) or None


def refuse(value: torch.Tensor, path: Path) -> SubclassTraceError:
    """The error for a tensor subclass without the protocol, or for a parameter without values."""
    cls = type(value)
    if issubclass(cls, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
        return UnsupportedError(
            "a parameter of a lazy module has no values yet",
            code="lazy-parameter",
            path=path,
            got=cls.__qualname__,
        )
    # the class has nothing of the protocol
    plain = issubclass(cls, torch.nn.Parameter) or len(problems(cls)) == 3
    make = functools.partial(UnsupportedError, code="plain-subclass") if plain else ProtocolError
    return make(
        f"{cls.__qualname__} is a tensor subclass that cannot be traced through: "
        f"{why_not_traceable(cls)}",
        path=path,
        expected="torch.Tensor, or a subclass with __tensor_flatten__, __tensor_unflatten__ and "
        "__torch_dispatch__",
        got=f"an instance of {cls.__module__}.{cls.__qualname__}",
        fix="add the missing methods, or pass value.as_subclass(torch.Tensor)",
    )


def refuse_layout(value: torch.Tensor, path: Path) -> UnsupportedError:
    """The error for a dense-typed tensor that has no strides. (Dynamo's graph would have it,
    too.)"""
    kind = "quantized" if value.is_quantized else "nested" if value.is_nested else str(value.layout)
    return UnsupportedError(
        f"a {kind} tensor cannot be traced",
        code="kind-of-tensor",
        path=path,
        expected="a strided tensor, or a wrapper subclass whose inner tensors are strided",
        got=f"layout {value.layout}, dtype {value.dtype}",
        fix="use a wrapper subclass (for example a jagged NestedTensor), or convert it before "
        "the call",
    )


@functools.cache
def unflatten_of(cls: type) -> Callable[[dict[str, Any], Any, Any, Any], torch.Tensor]:
    """``cls.__tensor_unflatten__`` as a function of four arguments, whatever form the author gave
    it.

    Static methods, class methods and the old form of two arguments (inner tensors, context) are
    accepted.
    """
    its_own: Any = cls
    method: Callable[..., torch.Tensor] = repaired_unflatten(cls) or its_own.__tensor_unflatten__
    try:
        inspect.signature(method).bind({}, None, (), ())
    except TypeError:
        return lambda inner, context, size, stride: method(inner, context)
    except ValueError:  # a builtin without a signature
        pass
    return method


def flattens_alike(cls: type) -> bool:
    """Does ``cls.__tensor_flatten__`` return the same names and context for every instance,
    whatever it holds?

    So does a method whose code has no names, such as ``return ["a", "b"], None``, if it does not
    hand out the instance itself. A guard on the class then makes calling it superfluous.
    """
    method = inspect.getattr_static(cls, "__tensor_flatten__", None)
    if not isinstance(method, types.FunctionType):
        return False
    if getattr(method, "is_constant", False):  # of a declared class
        return True
    code, nobody = method.__code__, object()
    if code.co_names or code.co_freevars or (code.co_argcount, code.co_kwonlyargcount) != (1, 0):
        return False
    try:
        _, context = method(nobody)
    except Exception:  # it does something with the instance
        return False
    return context is None or (type(context) in (tuple, list) and nobody not in context)
