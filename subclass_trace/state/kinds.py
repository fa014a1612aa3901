"""Kinds of values that the walk meets: what is walked how, what is no source, what is refused.

Each rare kind is one line of `cannot_be_put_back`.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import threading
import types
import weakref
from typing import Any

import torch

from .. import torch_api
from ..errors import SideEffectError, UnsupportedError
from ..subclass.attributes import members_of
from .values import ATOMS, is_a, is_walked

_ENDINGS = ("_with_kwargs", "_always_called", "_dict_hooks", "_dict_pre_hooks", "_post_hooks", "_buffers_set")
#: tables of a module that say nothing that others do not
MODULE_TABLES = frozenset(name for name in vars(torch.nn.Module()) if name.endswith(_ENDINGS))
CONTAINERS = {list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter}
_ITERABLE: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(1))
_ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    types.CoroutineType,
    *{type(iter(of)) for of in _ITERABLE},
    *(enumerate, zip, map, filter, reversed),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
)
_WEAK = (weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, weakref.ProxyType)
LOCKS = (type(threading.Lock()), type(threading.RLock()))
_SHARED_MEMORY = ("ndarray", "bytearray", "memoryview", "array", "mmap")
CALLABLES = {
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.BuiltinMethodType,
    types.MethodWrapperType,
    functools.partial,
    property,
    staticmethod,
    classmethod,
    functools._lru_cache_wrapper,
    functools.cached_property,
}
OF_C = ("builtins", "_operator", "functools", "collections", "_collections", "itertools")
#: the objects of this package hold no state of a region
OWN_PACKAGE = __name__.partition(".")[0] + "."
#: torch's C++ code keeps the sizes of a traced tensor in these; and marks of sizes, which decide a trace and no call
_CAPSULES = (f"{sym}_{what}_capsule" for sym in ("", "_sym") for what in ("sizes", "strides"))
_KEPT_BY_TORCH = torch_api.MARKS | {name + length for name in _CAPSULES for length in ("", "_len")}


def cannot_be_put_back(value: Any) -> str | None:
    """Why a value may stand in no source that code names: each rare kind is one line."""
    kind = type(value)
    of_library = hasattr(kind, "__next__") and not is_walked(kind.__module__) and kind.__module__ != "_io"
    if is_a(value, _ITERATORS) or of_library:
        return f"a {kind.__name__}, which cannot be put back once something was taken from it"
    if is_a(value, _WEAK) or kind.__name__.startswith(("WeakTensor", "WeakIdKey")):
        return f"a {kind.__name__}: weak references do not outlive the trace as they would a call"
    if kind.__module__.startswith("numpy.random"):
        return f"a {kind.__name__}, whose draws are not seen"
    if kind.__name__ in _SHARED_MEMORY:
        return f"a {kind.__name__}, whose memory Python code writes without notice"
    if kind is threading.local or kind in LOCKS:
        return f"a {kind.__name__}, which is the state of a thread"
    if is_walked(kind.__module__) and not issubclass(kind, (torch.nn.Module, torch.Tensor)) and members_of(kind):
        return f"a {kind.__name__}, which has __slots__: leave them out (slots=True)"
    return None


def is_kept_by_torch(kind: type) -> bool:
    """What torch keeps for itself while it traces."""
    return kind.__module__.startswith(("torch.fx", "torch._"))


def set_by_class(stand_in: torch.Tensor) -> frozenset[str]:
    """The attributes of a tensor that is just made which follow from its inner tensors and its context; a fake's own."""
    if torch_api.is_fake(stand_in):
        return frozenset(vars(stand_in)) | _KEPT_BY_TORCH
    held = vars(stand_in).items()
    return _KEPT_BY_TORCH | {name for name, value in held if type(value) not in ATOMS or type(value) is torch.Size}


def parts_of_c(value: Any) -> list[Any]:
    """What an object of C holds (a method, a partial, a property, a view, a proxy); of a cache the function alone."""
    if type(value) is functools._lru_cache_wrapper:
        return [value.__wrapped__]
    held = [value.func] if type(value) is functools.cached_property else gc.get_referents(value)
    return [part for part in held if not is_a(part, type)]


def check_cache(path: str, function: Any, calls: tuple[int, int]) -> None:
    """A function behind ``functools.lru_cache`` may have been called: what it keeps outlives the trace.

    Raises:
        SideEffectError: it keeps a tensor that the region computes.
    """
    if function.cache_info()[:2] == calls:
        return
    found = gc.get_referents(function)
    for _ in range(4):  # a dict of links, links, results in containers
        if any(torch_api.is_fake(t) for t in found if is_a(t, torch.Tensor)):
            function.cache_clear()
            raise SideEffectError(
                "functools.lru_cache keeps a tensor that the region computes",
                path=path,
                expected="cached numbers, texts and the like",
                fix="call the function once before the region, and hold what it returns in a variable",
            )
        found = gc.get_referents(*[v for v in found if not is_a(v, (torch.Tensor, type, types.FunctionType))])


#: of torch's own code, what would be done once, while the region is traced
_IN_EACH_CALL = ("torch.distributed.fsdp", "torch.distributed._composable.replicate", "torch.nn.parallel.distributed")


def refuse_managed(code: types.CodeType, space: dict[str, Any]) -> None:
    """Refuse Python code of torch's that has to run in each call.

    Raises:
        UnsupportedError: it is.
    """
    managed = space.get("__name__", "").startswith(_IN_EACH_CALL)
    if managed and code.co_name != "_get_active_ddp_module":  # which Dynamo asks, in branches of control flow
        raise UnsupportedError(
            "the region calls a module that torch manages in Python, in each call: it moves the memory of parameters, "
            "or tells its reducer of gradients",
            path=f"{space['__name__']} ({code.co_name})",
            expected="what manages the module around the region",
            fix="compile the layers inside of it: layer.forward = subclass_trace.compile(layer.forward)",
        )
