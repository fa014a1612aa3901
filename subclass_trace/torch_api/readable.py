"""What saved source needs besides torch: copied into each such file, from the imports on. It
imports nothing of this package, which imports nothing of it."""

import enum  # noqa: F401
import functools
import hashlib  # noqa: F401
import importlib
import math  # noqa: F401
import operator  # noqa: F401
import sys
import types  # noqa: F401
import weakref
from typing import Any

import torch
from torch import device, inf, nan  # noqa: F401


class NoSpecialization(RuntimeError):
    """A call, or a backward, that no specialization of this file serves."""


class Differs(Exception):
    """Why one of them does not."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def need(holds: Any, what: str) -> None:
    """A condition of a specialization."""
    if not holds:
        raise Differs(what)


# ---- what the function reads
def attribute(o: Any, name: str) -> Any:
    """What an object itself has, past its class."""
    try:
        return object.__getattribute__(o, "__dict__").get(name, MISSING)
    except AttributeError:
        return MISSING


def item(o: Any, key: Any) -> Any:
    """An item of a container."""
    if isinstance(o, dict):
        return dict.get(o, key, MISSING)
    try:
        return o[key]
    except (IndexError, KeyError):
        return MISSING


def by_class(o: Any, name: str) -> Any:
    """An attribute, by way of the class."""
    return getattr(o, name, MISSING)


def lookup(cls: Any, name: str) -> Any:
    """What a class, or a base of it, defines."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), MISSING)


def own(cls: Any, name: str) -> Any:
    """What a class itself defines."""
    return vars(cls).get(name, MISSING)


def globals_of(module: str) -> Any:
    """The names of a module that is loaded."""
    need(module in sys.modules, f"the module {module} is loaded")
    return vars(sys.modules[module])


def class_of(module: str, name: str, shape: str | None = None) -> Any:
    """A class, or a function, by its name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    need(shape in (None, shape and shape_of(found)), f"{name} has its bases, members and fields")
    return found


def same(value: Any, known: Any) -> bool:
    """Equal, and of one type, inside of containers too, which have one order. 0.0 is not -0.0, nan
    is nan."""
    if type(value) is not type(known):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(known) and all(map(same, value, known))
    if isinstance(value, dict):
        return same([*value.items()], [*known.items()])
    return repr(value) == repr(known) if isinstance(value, (float, complex)) else value == known


def is_thing(value: Any, module: Any, name: str, shape: str | None = None) -> bool:
    """Is a value the function, class or module of this name? ``shape``: and a class so made."""
    now = getattr(value, "__qualname__", getattr(value, "__name__", None))
    named = (getattr(value, "__module__", None), now) == (module, name)
    return named and (shape is None or shape_of(value) == shape)


@functools.cache
def shape_of(cls: Any) -> str:
    """The bases, members and fields of a class, as a number."""
    return str(globals()["shape_of_class"](cls))


def no_hooks(module: Any) -> bool:
    """Has a module no hooks of its own?"""
    names = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
    return not any(vars(module).get(name) for name in names)


def no_autocast() -> bool:
    """Is autocast off?"""
    return not any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


# ---- tensors
def check(t: Any, cls: Any, kind: tuple[Any, ...], size: Any, stride: Any, where: str) -> Any:
    """Class, dtype, device, requires_grad, dispatch keys, sizes and strides of a tensor.
    ``stride`` None: any."""
    need(type(t) is cls, f"{where} is a {cls.__qualname__}, got a {type(t).__qualname__}")
    now = (t.dtype, t.device, t.requires_grad)
    need(now == kind[:3], f"{where} is {kind[:3]}, got {now}")
    if len(kind) > 3:
        keys = torch._C._dispatch_keys(t).raw_repr()
        need(keys == kind[3], f"{where} is a usual tensor: dispatch keys {kind[3]}, got {keys}")
    need(tuple(t.shape) == size, f"{where} has the size {size}, got {tuple(t.shape)}")
    if stride is not None:
        need(tuple(t.stride()) == stride, f"{where} has strides {stride}, got {t.stride()}")
    return t


def flatten(t: Any, names: tuple[str, ...], context: Any, where: str) -> list[Any]:
    """The inner tensors of a wrapper, by its own ``__tensor_flatten__``."""
    found, now = t.__tensor_flatten__()
    need(tuple(found) == names, f"{where} has {names}, got {tuple(found)}")
    need(same(now, context), f"{where} has the context {context!r}, got {now!r}")
    return [getattr(t, name) for name in names]


def wrap(cls: Any, inner: dict[str, Any], context: Any, size: Any, stride: Any) -> Any:
    """A wrapper of its inner tensors, by its own ``__tensor_unflatten__``."""
    return cls.__tensor_unflatten__(inner, context, torch.Size(size), stride)


def distinct(tensors: list[Any], what: str) -> None:
    """No two of them are one."""
    need(len({*map(id, tensors)}) == len(tensors), f"no two {what} are one")


def apart(inputs: list[Any], leaves: list[Any]) -> None:
    """No two of them share memory, or are views of one tensor."""
    bases = {id(t if t._base is None else t._base) for t in inputs}
    need(len(bases) == len(inputs), "no input is a view of another one")
    held = [t.untyped_storage()._cdata for t in leaves if t.numel()]
    need(len({*held}) == len(held), "no two inputs share memory")


def fit(t: Any, stride: Any) -> Any:
    """The same numbers, laid out as a graph was traced for."""
    if tuple(t.stride()) == stride:
        return t
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)


def watch(values: tuple[Any, ...]) -> list[tuple[Any, int]]:
    """Wrappers of which an inner tensor is saved, with their versions."""
    return [(weakref.ref(t), t._version) for t in values]


def check_watched(ctx: Any) -> None:
    """As autograd says it of other tensors; no reference is left where it frees what it saved."""
    for reference, version in ctx.watched:
        t = reference()
        if t is not None and t._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation"
            )
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.watched = []


def first_that_serves(calls: tuple[Any, ...], given: tuple[Any, ...], what: str) -> Any:
    """The result of the first of these that serves ``given``."""
    why = []
    for number, call in enumerate(calls):
        try:
            ready = call(*given)
        except Differs as error:
            why.append(f"[{number}] expects: {error}")
            continue
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            why.append(f"[{number}] does not find what it reads: {error!r}")
            continue
        return ready()
    raise NoSpecialization("\n  ".join((f"no specialization serves this {what}", *why)))
