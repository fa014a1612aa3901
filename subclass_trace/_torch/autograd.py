"""The autograd engine as seen from Python: histories, views, versions, nodes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


def apply_function(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)``."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


def autograd_sequence_number() -> int:
    """The number that the last autograd node made on this thread carries."""
    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined]


def node_sequence_number(node: Any) -> int:
    """The sequence number of an autograd node."""
    return int(node._sequence_nr())


def set_node_sequence_number(node: Any, number: int) -> None:
    """Let an autograd node run as if it had been made when it had this sequence number."""
    node._set_sequence_nr(number)


def view_function(view: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Replays on a new base exactly the view operations that made ``view`` from its own base."""
    return view._view_func_unsafe


def is_multi_output_view(t: torch.Tensor) -> bool:
    """Is this one of several views that one operation made, such as a member of ``split``?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) == meta.MULTI_OUTPUT_NODE


def mark_multi_output_view(t: torch.Tensor) -> None:
    """Let autograd protect ``t`` as it protects a member of ``split``."""
    torch._C._autograd._set_creation_meta(t, torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE)


def creation_forbids_inplace(t: torch.Tensor) -> bool:
    """Would eager refuse an in-place operation on this view that autograd tracks?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) not in (meta.DEFAULT, meta.NO_GRAD_MODE)


_GRAD_SOURCE: list[torch.Tensor] = []


def make_nonleaf(t: torch.Tensor) -> None:
    """Give ``t`` (a leaf, any class) an autograd history of its own, so that in-place operations move its ``grad_fn``.

    The history ends in a node that raises when run: differentiate with respect to its gradient edge.
    """
    if not _GRAD_SOURCE:
        _GRAD_SOURCE.append(torch.zeros((), requires_grad=True))
    torch._mirror_autograd_meta_to(_GRAD_SOURCE[0], t)  # type: ignore[attr-defined]


def set_version(t: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor."""
    set_versions((t,), (version,))


#: ``(tensors, versions)``: set the version counters of some tensors
set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = (
    torch._C._autograd._unsafe_set_version_counter
)


#: move the version counters of some tensors by one, each after the other: two may share one
move_versions: Callable[[list[torch.Tensor]], None] = torch.autograd.graph.increment_version


@contextlib.contextmanager
def original_views() -> Iterator[None]:
    """Views keep the whole chain of operations that made them."""
    with torch.autograd._force_original_view_tracking(True):  # type: ignore[attr-defined]
        yield


def saved_tensor_hooks_active() -> bool:
    """Has the caller set default saved-tensor hooks?"""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def keeps_graph() -> bool:
    """Inside a backward: does the running graph task retain the graph?"""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def is_custom_function_output(t: torch.Tensor) -> bool:
    """Was this made by a user's autograd.Function (Python or C++)?"""
    fn = t.grad_fn
    return isinstance(fn, torch.autograd.function.BackwardCFunction) or type(fn).__name__ == "CppFunction"


#: the generator behind non-reentrant ``torch.utils.checkpoint.checkpoint``
CHECKPOINT_GENERATOR = "_checkpoint_without_reentrant_generator"


def call_backward_directly(function: type[torch.autograd.Function]) -> None:
    """Let the engine call ``function.backward`` without the frame that looks it up on each call.

    The engine calls ``apply`` of the node's class; torch's version of it serves ``vjp`` and boxed gradients as well.
    """
    node_class: Any = function._backward_cls
    node_class.apply = function.backward


def base_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its Python prologue; only right when no functorch transform is active."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


keeps_graph_now = torch._C._autograd._get_current_graph_task_keep_graph


@contextlib.contextmanager
def accumulating_engine(instead: Callable[..., bool]) -> Iterator[None]:
    """Inside, backwards that add to ``.grad`` are offered to ``instead(roots, tangents, retain_graph, create_graph, inputs)``.

    It returns False to leave one to the engine. (`torch.autograd.grad` is none of them; nor are those of other threads.)
    """
    thread = threading.get_ident()
    module: Any = torch.autograd
    engine = module._engine_run_backward

    def run(*args: Any, **kinds: Any) -> Any:
        mine = kinds.get("accumulate_grad") and threading.get_ident() == thread
        return None if mine and instead(*args) else engine(*args, **kinds)

    module._engine_run_backward = run
    try:
        yield
    finally:
        module._engine_run_backward = engine


def says_freed(error: BaseException) -> bool:
    """Does autograd say that a backward without ``retain_graph`` came before?"""
    return isinstance(error, RuntimeError) and str(error).startswith(
        "Trying to backward through the graph a second time"
    )


def hooks_of_leaf(t: torch.Tensor) -> bool:
    """Has somebody registered hooks on the gradient of this leaf?"""
    return bool(t._backward_hooks) or bool(getattr(t, "_post_accumulate_grad_hooks", None))


def any_hooks_code(name: str) -> str:
    """The condition that `hooks_of_leaf` holds for the tensor of this name, as source."""
    return f"{name}._backward_hooks or {name}._post_accumulate_grad_hooks"
