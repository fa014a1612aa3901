"""Modes and the state of the thread: what is active, and how to run without it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.eager_transforms
import torch._functorch.utils
import torch._functorch.vmap
from torch._C import DispatchKey, DispatchKeySet, _ExcludeDispatchKeyGuard
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import disable_autocast_cache as disable_autocast_cache
from torch.overrides import TorchFunctionMode as TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes

from .this_thread import replaced_here


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """No user or tracing dispatch mode sees what runs inside."""
    with _disable_current_modes():
        yield


PROXY_MODE_KEY = torch._C._TorchDispatchModeKey.PROXY


def no_transforms() -> contextlib.AbstractContextManager[Any]:
    """Inside, no transform of ``torch.func`` is active."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return contextlib.nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


@contextlib.contextmanager
def transformed_inputs(swap: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Inside, the transforms of ``torch.func``, and every ``autograd.Function``, work on
    ``swap(t)`` instead of a tensor ``t``; in this thread."""
    utils: Any = torch._functorch.utils
    unwrap: Callable[..., tuple[Any, ...]] = utils.unwrap_dead_wrappers

    def unwrapped(args: tuple[Any, ...]) -> tuple[Any, ...]:  # a Function calls this first
        return unwrap(tuple(swap(a) if isinstance(a, torch.Tensor) else a for a in args))

    def swapped(wrap: Callable[..., Any]) -> Callable[..., Any]:
        return lambda t, *rest: wrap(swap(t), *rest)

    places = [
        (torch._functorch.vmap, "_add_batch_dim"),
        (torch._functorch.eager_transforms, "_wrap_for_grad"),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced_here(utils, "unwrap_dead_wrappers", unwrapped))
        for module, name in places:
            stack.enter_context(replaced_here(module, name, swapped(getattr(module, name))))
        yield


@contextlib.contextmanager
def without_tracing() -> Iterator[None]:
    """Operations on fake tensors inside are not recorded."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing():
        yield


def innermost_tracer() -> object | None:
    """The mode that writes the innermost trace: torch's own for a branch of ``torch.cond``."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode()


def exclude_functionalize() -> Any:
    """Guard: the C++ functionalisation key does not run."""
    return _ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.Functionalize))


def disable_autocast() -> Any:
    """Guard: autocast is off inside."""
    return torch._C._DisableAutocast()


# Any, because torch's class is not annotated and could not be subclassed
DispatchMode: Any = TorchDispatchMode

# context: no __torch_function__, no function modes
no_overrides: Any = torch._C.DisableTorchFunction


@contextlib.contextmanager
def plain_dispatch() -> Iterator[None]:
    """The state in which compiled graphs run: no modes, no overrides, no autocast, no gradients, no
    inference mode."""
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


@contextlib.contextmanager
def functorch_config(**values: Any) -> Iterator[None]:
    """Options of torch's partitioner, set while inside."""
    import torch._functorch.config as config

    with config.patch(**values):
        yield


def autocast_classes() -> tuple[type, ...]:
    """The contexts that turn autocast on."""
    of_devices: Any = (torch.cpu.amp, torch.cuda.amp)
    return (torch.autocast, *(module.autocast for module in of_devices))


def autocast_state() -> tuple[Any, ...]:
    """Empty when autocast is off everywhere; else (device, dtype) pairs and whether the cache is
    on."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    devices = [d for d in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(d)]
    return (*[(d, torch.get_autocast_dtype(d)) for d in devices], torch.is_autocast_cache_enabled())


@contextlib.contextmanager
def autocast_as(state: Sequence[Any]) -> Iterator[None]:
    """Inside, autocast is as `autocast_state` has told."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(disable_autocast())
        for device, dtype in state[:-1]:
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=state[-1]))
        yield


def jit_tracing() -> bool:
    """Does ``torch.jit.trace`` record what runs in this thread?"""
    return bool(torch._C._is_tracing())


def functorch_active() -> bool:
    """Is a vmap, grad or jvp around the call?"""
    return torch._C._functorch.peek_interpreter_stack() is not None


def forward_ad_active() -> bool:
    """Is a level of forward-mode AD around the call?"""
    return bool(torch.autograd.forward_ad._current_level >= 0)


def _function_modes() -> list[Any]:
    """The ``__torch_function__`` modes that are active, outermost first."""
    from torch.overrides import _get_current_function_mode_stack

    stack: Any = _get_current_function_mode_stack
    modes: list[Any] = stack()
    return modes


def default_devices() -> tuple[torch.device, ...] | None:
    """The devices of ``torch.set_default_device`` and ``with torch.device(...)`` that are active,
    outermost first.

    None when another ``__torch_function__`` mode is active as well.
    """
    from torch.utils._device import DeviceContext

    modes = _function_modes()
    if not all(isinstance(m, DeviceContext) for m in modes):
        return None
    return tuple(m.device for m in modes)


def classes_are_asked() -> bool:
    """Is ``__torch_function__`` of classes on? It is off where one has called `torch.Tensor`'s."""
    return bool(torch._C._is_torch_function_enabled())


def functions_are_seen() -> bool:
    """Does a mode of this package (`capture.functions`) see each function of torch's?"""
    return any(hasattr(mode, "captures") for mode in _function_modes())


@contextlib.contextmanager
def backwards_under(mode: Any) -> Iterator[None]:
    """Inside, a function mode is active in the backwards of custom Functions, too: the engine
    leaves function modes behind."""
    cls = torch.autograd.function.BackwardCFunction
    apply: Any = cls.apply

    def under_mode(self: Any, *args: Any) -> Any:
        with mode:
            return apply(self, *args)

    with replaced_here(cls, "apply", under_mode):
        yield


def function_modes_active() -> bool:
    """Is a ``__torch_function__`` mode active, other than a default device?"""
    return int(torch._C._len_torch_function_stack()) > 0 and default_devices() is None


class DispatchLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that runs inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it and run it."""
        if func.namespace != "prim":
            self.operations.append(func)
        return func(*args, **(kwargs or {}))


class CallLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every call of an operation that runs inside, with its result; None while it has
    none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it and run it."""
        number = len(self.calls)
        self.calls.append((func, args, kwargs or {}, None))
        out = func(*args, **(kwargs or {}))
        self.calls[number] = (func, args, kwargs or {}, out)
        return out


peek_functorch = torch._C._functorch.peek_interpreter_stack

dispatch_stack_length = torch._C._len_torch_dispatch_stack

function_stack_length = torch._C._len_torch_function_stack

any_autocast = torch._C._is_any_autocast_enabled

deterministic_algorithms = torch._C._get_deterministic_algorithms

grad_enabled = torch.is_grad_enabled

set_grad = torch._C._set_grad_enabled

forward_ad = torch.autograd.forward_ad
