"""What a running tape calls besides autograd's own functions: hooks, unpacking, Python backwards,
accumulation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..torch_api import tape as _door

Tensor = torch.Tensor


# ---- hooks
def _name(hook: Any) -> str:
    return getattr(hook, "__name__", None) or str(hook)


def check_hook_result(original: Tensor | None, result: Any, hook: Any) -> None:
    """What eager mode demands of a gradient that a hook returns.

    Raises:
        TypeError: it is no tensor.
        RuntimeError: it has another dtype, device or size than the gradient.
    """
    if not isinstance(result, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
    if original is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if result.dtype != original.dtype or result.layout != original.layout:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the type of value (was {original.type()} got "
            f"{result.type()})"
        )
    if result.device.type != original.device.type:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the type of value")
    if result.shape != original.shape:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the size of value")


def run_tensor_hook(hook: Callable[[Any], Any], grad: Any) -> Any:
    """``Tensor.register_hook``: None keeps the gradient."""
    result = hook(grad)
    if result is None:
        return grad
    check_hook_result(grad, result, hook)
    return result


def run_cpp_hook(hook_id: int, grad: Any) -> Any:
    """``retain_grad``, and hooks of C++: the running backward knows them by number."""
    return None if grad is None else _door.call_cpp_tensor_pre_hooks(hook_id, grad)


def _checked(values: tuple[Any, ...], result: Any, hook: Any) -> tuple[Any, ...]:
    if result is None:
        return values
    results = result if isinstance(result, tuple) else (result,)
    if len(results) != len(values):
        raise RuntimeError(
            f"hook '{_name(hook)}' has returned an incorrect number of values (got "
            f"{len(results)}, but expected {len(values)})"
        )
    for old, new in zip(values, results, strict=True):
        if new is not None or old is not None:
            check_hook_result(old, new, hook)
    return results


def run_node_pre_hook(hook: Callable[[Any], Any], grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """``Node.register_prehook``."""
    return _checked(grads, hook(grads), hook)


def run_node_post_hook(
    hook: Callable[[Any, Any], Any], results: tuple[Any, ...], grads: tuple[Any, ...]
) -> Any:
    """``Node.register_hook``."""
    return _checked(results, hook(results, grads), hook)


def run_post_accumulate_hook(hook: Callable[[Any], Any], param: Tensor) -> None:
    """``Tensor.register_post_accumulate_grad_hook``."""
    if hook(param) is not None:
        raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def run_unpack(hook: Callable[[Any], Any], packed: Any) -> Tensor:
    """The unpack half of ``saved_tensors_hooks``."""
    result = hook(packed)
    if not isinstance(result, Tensor):
        raise TypeError(
            "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
            f"{type(result)}"
        )
    return result


# ---- Python backwards
class BackwardContext:
    """What a Python backward sees as ``ctx``: the real one, with the saved tensors of this run.

    Tensors that were saved under hooks are unpacked when ``saved_tensors`` is read, each time, as
    in eager mode.
    """

    def __init__(
        self, real: Any, saved: Sequence[Any], packed: Sequence[tuple[int, Any, Any]]
    ) -> None:
        self.__dict__.update(_real=real, _saved=saved, _packed=packed)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The saved tensors."""
        values = list(self._saved)
        for place, hook, data in self._packed:
            values[place] = run_unpack(hook, data)
        return tuple(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


def run_backward(
    ctx: Any,
    saved: Sequence[Any],
    packed: Sequence[tuple[int, Any, Any]],
    count: int,
    fill: bool,
    *grads: Any,
) -> tuple[Any, ...]:
    """``backward`` (or ``vjp``) of an autograd.Function.

    Args:
        saved: the saved tensors, None where ``packed`` has a row (place, unpack hook, packed
            value).
        count: how many gradients the forward's arguments ask for.
        fill: zeros stand for undefined gradients.
    """
    if fill and None in [g if g is None else 0 for g in grads]:
        grads = tuple(_door.zeros_for(ctx, i) if g is None else g for i, g in enumerate(grads))
    cls = _door.forward_class(ctx)
    stand_in = BackwardContext(ctx, saved, packed)
    function = cls.backward if cls.vjp is torch.autograd.Function.vjp else cls.vjp
    boxed = getattr(cls, "boxed_grads_call", False)
    out = function(stand_in, list(grads)) if boxed else function(stand_in, *grads)
    results = out if isinstance(out, tuple) else (out,)
    if len(results) < count or any(r is not None for r in results[count:]):
        raise RuntimeError(
            f"function {cls.__name__}Backward returned an incorrect number of gradients "
            f"(expected {count}, got {len(results)})"
        )
    for result in results:
        if result is not None and not isinstance(result, Tensor):
            raise RuntimeError(f"expected Variable or None (got {type(result).__name__})")
    return results


# ---- in-place on views
def begin_copy_slices(inputs: Sequence[Any], *geometry: Any) -> Sequence[Any]:
    """Before the backward of an in-place operation on a view; an undefined gradient goes through as
    such."""
    return (
        (None, None, None) if inputs[0] is None else _door.copy_slices_steps()[0](inputs, *geometry)
    )


def end_copy_slices(
    needs: Sequence[bool], result: Any, res: Sequence[Any], grad_slice: Any
) -> Sequence[Any]:
    """After the backward of an in-place operation on a view."""
    return (
        [None] * len(needs)
        if result is None
        else _door.copy_slices_steps()[1](needs, result, res, grad_slice)
    )


# ---- accumulation
def accumulate_grad(param: Tensor, grad: Tensor | None, has_post_hooks: bool) -> None:
    """Add ``grad`` to ``param.grad``."""
    if grad is not None:
        (param.grad,) = _accumulate()([grad], param, param.grad, has_post_hooks)


@functools.cache
def _accumulate() -> Callable[..., Any]:
    return _door.without_layer(_door.tape_op("AccumulateGrad"))  # type: ignore[no-any-return]


def add_grads(a: Any, b: Any) -> Any:
    """The sum of two gradients for one place."""
    if a is None or b is None:
        return b if a is None else a
    return b + a if a.is_sparse and not b.is_sparse else a + b
