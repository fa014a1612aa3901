"""Functions of torch's with a meaning of their own: calls of modules, custom autograd Functions,
checkpoints, what is kept out of Dynamo's graphs."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint

from ..errors import UnsupportedError
from ..subclass.values import is_a
from ..torch_api.autograd import apply_function, are_transforms_active
from ..torch_api.compiled_inside import not_compiled_code
from ..torch_api.hooks import ScriptMethod, hooks_of_all
from ..torch_api.modes import DispatchMode, TorchFunctionMode, jit_tracing
from ..torch_api.owners import Owner, owner_of_file
from . import attributes, calls
from .boundary import ENTER, kind_of
from .c_methods import APPLY
from .calls import FUNCTIONS, callback, torch_call
from .current import current
from .instrument import clone
from .kinds import Function, Method
from .recorder import instance_dict, user_line
from .rows import HOOKS
from .running import Running
from .values import lookup
from .world import refuse_disabled

Args: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any]
_Module = torch.nn.Module


def _call_module(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """``module(...)``: where nothing is hooked, its ``forward``. One row says so."""
    with _inside(rec, a[0]):
        return _called_module(rec, a[0], a, k)


@contextlib.contextmanager
def _inside(rec: Running, module: Any) -> Iterator[None]:
    """What runs inside is code of this module."""
    before, place = rec.modules, rec.place_of(module)
    if place is not None:  # the region has not made it
        text = str(place)
        rec.modules = {**before, text: (_path_from(next(iter(before), text), text), type(module))}
    try:
        yield
    finally:
        rec.modules = before


def _path_from(outermost: str, place: str) -> str:
    """``layers.0.attention``, as `torch.nn.Module.get_submodule` takes it."""
    rest = place.removeprefix(outermost)
    return re.sub(r"\[['\"]?([^]'\"]*)['\"]?\]", r".\1", rest).lstrip(".")


def _called_module(rec: Running, module: Any, a: Args, k: Named) -> Any:
    if is_a(module, torch.jit.ScriptModule):
        _script_method(rec, module, a, k)
    space = instance_dict(module) or {}
    tables = hooks_of_all()
    hooked = any(space.get(name) for name in HOOKS) or any(table for *_, table in tables)
    if type(lookup(type(module), HOOKS[0])) is property:  # a region has hooks of its own
        hooked = hooked or any(getattr(module, name) for name in HOOKS)
    if hooked or any(id(space.get(name)) in rec.written for name in HOOKS) or jit_tracing():
        return _entered(rec, _Module._call_impl, a, k)
    rec.row(module, "hooks", None)
    for space, name, table in tables:
        if rec.place_of(table) is None:
            rec.known[id(table)] = table, rec.child(rec.root(space), "item", name)
        rec.row(table, "truth", False)
    compiled = attributes.get(rec, module, "_compiled_call_impl")
    if compiled is not None:
        return rec.call(compiled, *a[1:], **k)
    return rec.call(attributes.get(rec, module, "forward"), *a[1:], **k)


def _script_function(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A function of TorchScript: its code does not change, and no row would tell of it."""
    rec.row(f, "is", f)
    return torch_call(rec, f, a, k)


def _script_method(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A module of TorchScript, or a method of one: what it reads of itself is not seen."""
    rec.refuse(
        UnsupportedError(
            "a module of TorchScript keeps its code and its attributes in C++",
            code="torchscript",
            path=user_line(),
            fix="call the module that it was made of",
        )
    )


def _entered(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A Python function of torch's, as a clone."""
    return clone(f)(*a, **k)


def _apply(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A custom autograd Function: its methods instrumented, in a subclass of its own."""
    cls, *rest = a
    own: dict[str, Any] = {}
    for name in ("forward", "backward", "setup_context", "jvp", "vjp"):
        method = lookup(cls, name)
        function = method.__func__ if is_a(method, (staticmethod, classmethod)) else method
        if type(function) is Function and kind_of(function.__code__) == ENTER:
            rec.lookup(cls, name)
            if function is not method:
                rec.step(method, "inner", "__func__", function)
            own[name] = staticmethod(_method_of(cls, name))
    if not own:
        return torch_call(rec, cls.apply, tuple(rest), k)
    twin = type(cls)(cls.__name__, (cls,), own)
    base = torch.autograd.Function
    passes = not are_transforms_active() and all(
        name in own or lookup(cls, name) is lookup(base, name)
        for name in ("forward", "setup_context")
    )
    if not passes:
        for value in (*rest, *k.values()):
            if is_a(value, (list, tuple, dict)):
                rec.touch(value)
    hand = rec.handed if passes else rec.mapped
    return rec.give(twin.apply(*map(hand, rest), **{name: hand(v) for name, v in k.items()}))


def _method_of(cls: Any, name: str) -> Any:
    """The method that a class has when it is called: ``backward`` in a backward."""

    def method(*args: Any, **kwargs: Any) -> Any:
        rec = current()
        if rec is None:
            return getattr(cls, name)(*args, **kwargs)
        return rec.call(attributes.get(rec, cls, name), *args, **kwargs)

    return method


def _first_is_called(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A torch function that calls its first argument, a function or a module."""
    if a and not (type(a[0]) is Function and kind_of(a[0].__code__) != ENTER):
        a = (_callable(a[0]), *a[1:])
    for value in (*a[1:], *k.values()):
        calls.read_argument(rec, value)
    named = {name: callback(v, called_only=False) for name, v in k.items()}
    hand = rec.handed if f is _checkpoint else rec.mapped
    return rec.give(f(*map(hand, a), **{name: hand(v) for name, v in named.items()}))


_checkpoint = torch.utils.checkpoint.checkpoint
#: what calls it at once (others give a function that does: see `calls.torch_call`)
_CALL_THE_FIRST = (
    _checkpoint,
    *(getattr(torch.func, name) for name in ("vjp", "jvp", "linearize")),
    *(f for f in vars(torch.autograd.functional).values() if inspect.isfunction(f)),
)


def _callable(f: Any) -> Any:
    return callback(f) if is_a(f, _Module) else callback(f, called_only=False)


def _not_compiled(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """`torch._disable_dynamo`: the function itself."""
    return rec.call(f.__wrapped__, *a, **k)


def _disabled(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """`torch.compiler.disable`: the user's is refused, torch's own is the function itself."""
    function = dict(zip(f.__code__.co_freevars, f.__closure__, strict=True))["fn"].cell_contents
    code = getattr(inspect.unwrap(function), "__code__", None)
    users = code is not None and owner_of_file(code.co_filename) is Owner.USER
    if users and getattr(function, "__module__", None):
        refuse_disabled(rec, function)
    return rec.call(function, *a, **k)


def _enter_mode(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """A mode of the user's would be called by torch, at each operation."""
    for name in ("__torch_function__", "__torch_dispatch__"):
        method = lookup(type(a[0]), name)
        if type(method) is Function and kind_of(method.__code__) == ENTER:
            rec.refuse(
                UnsupportedError(
                    "torch calls Python code that is not read: of a mode that the region enters",
                    code="unread-python-code",
                    path=f"{type(a[0]).__qualname__} at {user_line()}",
                    fix="enter it around the region",
                )
            )
    return torch_call(rec, f, a, k)


def _zero_grad(rec: Running, f: Any, a: Args, k: Named) -> Any:
    """``zero_grad()`` of an optimizer or a module: gradients are dropped, and nobody asks whether
    there were any."""
    to_none = (*a[1:], *k.values())
    space = instance_dict(a[0]) or {}
    is_module = is_a(a[0], _Module)
    plain = "_is_replica" not in space if is_module else "_zero_grad_profile_name" in space
    if to_none not in ((), (True,)) or not plain:
        return _entered(rec, f, a, k)
    drop: Any = _drop_of_module if is_module else _drop_of_optimizer
    return clone(drop)(a[0])


def _drop_of_module(module: Any) -> None:
    for p in module.parameters():
        p.grad = None


def _drop_of_optimizer(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None


def _child_of_module(rec: Running, f: Any, a: Args, k: Named) -> Any:
    return attributes.child_of_module(rec, *a, **k)


FUNCTIONS.update(
    {
        _Module.__getattr__: _child_of_module,
        _Module._wrapped_call_impl: _call_module,
        _Module._call_impl: _call_module,
        _Module.zero_grad: _zero_grad,
        torch.optim.Optimizer.zero_grad: _zero_grad,
        APPLY: _apply,
        **dict.fromkeys((TorchFunctionMode.__enter__, DispatchMode.__enter__), _enter_mode),
        **dict.fromkeys(_CALL_THE_FIRST, _first_is_called),
        not_compiled_code(): _not_compiled,
        apply_function: _apply,
        torch.Tensor.is_shared: lambda rec, f, a, k: calls.tensor_method(
            rec, f, rec.give(a[0]), a, k
        ),
    }
)
if type(torch.autograd.Function.apply) is Method:
    FUNCTIONS[torch.autograd.Function.apply.__func__] = _apply
calls.of_disabled = _disabled
calls.BY_TYPE[torch.jit.ScriptFunction] = _script_function
calls.BY_TYPE[ScriptMethod] = _script_method
