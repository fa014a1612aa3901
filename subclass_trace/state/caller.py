"""The recorder that calls: Python functions as clones, all else by `calls`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..errors import UnsupportedError
from ..subclass.values import is_a
from ..torch_api.owners import Owner, owner_of
from ..torch_api.this_thread import before_replacement
from . import attributes, calls, classes
from .boundary import (
    AUTHORING,
    OURS,
    TORCH,
    is_managed,
    kind_of,
)
from .instrument import Uninstrumentable, clone, is_instrumented
from .kinds import (
    C_CALLABLES,
    Function,
    Method,
)
from .net import watch
from .recorder import instance_dict
from .running import Running
from .values import MISSING


class Caller(Running):
    """A recorder that calls."""

    def call(self, f: Any, /, *args: Any, **kwargs: Any) -> Any:
        """``f(*args, **kwargs)``, recorded."""
        kind = type(f)
        if kind is Function:
            return self.call_function(f, args, kwargs)
        if kind is Method:
            return self.call(f.__func__, f.__self__, *args, **kwargs)
        if is_a(f, type):
            return classes.call_class(self, f, args, kwargs)
        if is_a(f, C_CALLABLES):
            return calls.call_c(self, f, args, kwargs)
        handler = calls.BY_TYPE.get(kind)
        if handler is not None:
            return handler(self, f, args, kwargs)
        if calls.is_of_package(kind) and not issubclass(kind, torch.nn.Module):
            return _call_ours(self, f, args, kwargs)
        method = self.special(kind, "__call__")
        if type(method) is Function:
            is_module = issubclass(kind, torch.nn.Module)
            if is_module and before_replacement(method) is not method:
                method = torch.nn.Module.__call__  # of one of torch.compile, see `compiled_inside`
            return self.call_function(method, (f, *args), kwargs)
        if owner_of(type(f)) is Owner.TORCH and not issubclass(kind, torch.nn.Module):
            return calls.torch_call(self, f, args, kwargs)
        return calls.opaque(self, f, args, kwargs)

    def call_function(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of Python's."""
        special = calls.FUNCTIONS.get(f)
        if special is None:
            special = calls.FUNCTIONS.get(f.__code__)
        if special is not None:
            return special(self, f, args, kwargs)
        kind = kind_of(f.__code__)
        if is_managed(f):
            self._refuse_managed(f)
        if kind == TORCH:
            handler = calls.of_disabled if calls.is_of_disabled(f.__code__) else calls.torch_call
            return handler(self, f, args, kwargs)
        if kind == OURS or is_instrumented(f.__code__):
            return f(*args, **kwargs)
        if kind == AUTHORING:
            return _call_authoring(self, f, args, kwargs)
        if self.place_of(f) is not None:
            args, kwargs = self._with_defaults(f, args, kwargs)
        try:
            made = clone(f)
        except Uninstrumentable as error:
            self.refuse(
                UnsupportedError(
                    f"the code of a function cannot be read: {error}",
                    code="code-not-readable",
                    path=f"{f.__code__.co_filename}:{f.__code__.co_firstlineno} ({f.__qualname__})",
                    fix="call it outside of the region",
                )
            )
        if sys.getprofile() is not watch:
            return made(*args, **kwargs)
        sys.setprofile(None)  # called back by C code, which is watched
        try:
            return made(*args, **kwargs)
        finally:
            sys.setprofile(watch)

    def _refuse_managed(self, f: Any) -> None:
        self.refuse(
            UnsupportedError(
                "the region calls a module that torch manages in Python, in each call: it "
                "moves the memory of parameters, or tells its reducer of gradients",
                code="managed-module",
                path=f"{f.__globals__['__name__']} ({f.__name__})",
                expected="what manages the module around the region",
                fix="compile its layers: layer.forward = subclass_trace.compile(layer.forward)",
            )
        )

    def _with_defaults(self, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The cells of a function that was there before, and the defaults that the call takes, are
        read. What stands for a default in the trace (a stand-in, a symbol) is handed in by name."""
        place = self.place_of(f)
        assert place is not None
        self.at(place, f)  # in a backward, the forward has met it
        self.cells_of(f)
        code = f.__code__
        if len(args) < code.co_argcount:
            args, kwargs = self._positional_defaults(f, code, args, kwargs)
        if code.co_kwonlyargcount:
            held = f.__kwdefaults__
            self.step(f, "inner", "__kwdefaults__", held)
            for name in (
                code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
                if held
                else ()
            ):
                if name not in kwargs:
                    value = held.get(name, MISSING)
                    given = self.item(held, name, value)
                    if given is not value:
                        kwargs = {**kwargs, name: given}
        return args, kwargs

    def _positional_defaults(
        self, f: Any, code: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        held = f.__defaults__
        self.step(f, "inner", "__defaults__", held)
        if not held:
            return args, kwargs
        names = code.co_varnames[: code.co_argcount]
        self.row(held, "len", len(held))
        for k, value in enumerate(held):
            at = code.co_argcount - len(held) + k
            if at < len(args) or names[at] in kwargs:
                continue
            given = self._item(held, k, value)
            if at == len(args) and at < code.co_posonlyargcount:
                args = (*args, given)
            elif given is not value:
                kwargs = {**kwargs, names[at]: given}
        return args, kwargs

    def attribute(self, o: Any, name: str) -> Any:
        """``o.name``, recorded."""
        return attributes.get(self, o, name)

    def item_of(self, o: Any, key: Any) -> Any:
        """``o[key]``, recorded."""
        return calls.operations.item((o, key))


def _call_authoring(rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Code that declared wrappers are made with: what it is given is read; code of authors it calls
    by `current.call_kept`."""
    for value in (*args, *kwargs.values()):
        calls.read_argument(rec, value)
    return rec.give(
        f(*map(rec.mapped, args), **{name: rec.mapped(v) for name, v in kwargs.items()})
    )


def _call_ours(rec: Running, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A region inside of this one is what it was made of."""
    space = instance_dict(f) or {}
    if "__wrapped__" not in space:
        return f(*args, **kwargs)
    return rec.call(
        rec.step(f, "attr", "__wrapped__", space["__wrapped__"], space), *args, **kwargs
    )
