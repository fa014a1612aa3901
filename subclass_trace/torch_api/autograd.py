"""The autograd engine as seen from Python: histories, views, versions, nodes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from .modes import no_modes
from .this_thread import replaced_here


def are_transforms_active() -> bool:
    """Does code run inside of a transform of functorch's?"""
    return bool(torch._C._are_functorch_transforms_active())


def apply_function(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)``."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


def autograd_sequence_number() -> int:
    """The number that the last autograd node made on this thread carries."""
    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined]


def running_node() -> Any:
    """The autograd node that the engine runs on this thread now, if it does."""
    return torch._C._current_autograd_node()


def node_sequence_number(node: Any) -> int:
    """The sequence number of an autograd node: the engine runs the highest one first."""
    return int(node._sequence_nr())


#: the base of the nodes of custom Functions
CustomNode: Any = torch.autograd.function.BackwardCFunction


def view_function(view: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Replays on a new base exactly the view operations that made ``view`` from its own base."""
    return view._view_func_unsafe


def is_multi_output_view(t: torch.Tensor) -> bool:
    """Is this one of several views that one operation made, such as a member of ``split``?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) == meta.MULTI_OUTPUT_NODE


def is_tracked_view(t: torch.Tensor) -> bool:
    """Was this view made under autograd, by an operation that makes it alone?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) == meta.DEFAULT


def creation_forbids_inplace(t: torch.Tensor) -> bool:
    """Would eager refuse an in-place operation on this view that autograd tracks?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) not in (
        meta.DEFAULT,
        meta.NO_GRAD_MODE,
    )


_GRAD_SOURCE: list[torch.Tensor] = []


def make_nonleaf(t: torch.Tensor) -> None:
    """Give ``t`` (a leaf, any class) an autograd history of its own, so that in-place operations
    move its ``grad_fn``.

    The history ends in a node that raises when run: differentiate with respect to its gradient
    edge.
    """
    if not _GRAD_SOURCE:
        with no_modes():  # it is of the process, and no node of a trace that comes first
            _GRAD_SOURCE.append(torch.zeros((), device="cpu", requires_grad=True))
    torch._mirror_autograd_meta_to(_GRAD_SOURCE[0], t)  # type: ignore[attr-defined]


_DISABLED = torch._C._disabled_torch_function_impl
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
is_leaf: Callable[[torch.Tensor], bool] = torch.Tensor.is_leaf.__get__  # type: ignore[attr-defined]
#: the dtype of gradients that a leaf asks for
asked_grad_dtype: Callable[[torch.Tensor], Any] = operator.attrgetter(
    "grad_dtype" if hasattr(torch.Tensor, "grad_dtype") else "dtype"
)


def grad_dtypes(tensors: Sequence[torch.Tensor]) -> tuple[torch.dtype | None, ...]:
    """The dtypes of gradients that tensors ask for: their own, unless a leaf says otherwise (None:
    any). No class is asked."""
    if are_plain_leaves(tensors):
        return tuple(map(asked_grad_dtype, tensors))
    with torch._C.DisableTorchFunctionSubclass():
        return tuple([asked_grad_dtype(t) if is_leaf(t) else t.dtype for t in tensors])


def ask_no_class(tensors: Sequence[torch.Tensor]) -> bool:
    """Has none of these a ``__torch_function__`` that would be asked for their attributes?"""
    return all(type(t) is torch.Tensor or type(t).__torch_function__ is _DISABLED for t in tensors)


def are_plain_leaves(tensors: Sequence[torch.Tensor]) -> bool:
    """Are all of them autograd leaves, and of no class that could be asked? Each call does."""
    return _PLAIN.issuperset(map(type, tensors)) and False not in map(is_leaf, tensors)


def are_leaves(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which of these are autograd leaves. No class is asked."""
    with torch._C.DisableTorchFunctionSubclass():
        return [*map(is_leaf, tensors)]


def grad_dtype(t: torch.Tensor) -> torch.dtype | None:
    """That of one."""
    return grad_dtypes((t,))[0]


def track(t: torch.Tensor, dtype: torch.dtype | None) -> None:
    """Let ``t``, of any class, require grad: with a history of its own, or as a leaf that asks for
    gradients of ``dtype``."""
    with torch._C.DisableTorchFunctionSubclass():
        if dtype is t.dtype:
            make_nonleaf(t)
        else:
            t.requires_grad_().grad_dtype = dtype


#: ``(tensors, versions)``: set the version counters of some tensors
set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = (
    torch._C._autograd._unsafe_set_version_counter
)


is_autograd_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view
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


def is_custom_node(fn: Any) -> bool:
    """Is this the node of a user's autograd.Function (Python or C++)?"""
    return (
        isinstance(fn, torch.autograd.function.BackwardCFunction)
        or type(fn).__name__ == "CppFunction"
    )


_GENERATOR = "_checkpoint_without_reentrant_generator"
_BY_NAME = hasattr(torch.utils.checkpoint, f"{_GENERATOR}_impl")
#: the generator behind non-reentrant ``torch.utils.checkpoint.checkpoint``
CHECKPOINT_GENERATOR = f"{_GENERATOR}_impl" if _BY_NAME else _GENERATOR


def checkpoint_contexts(positional: tuple[Any, ...], named: dict[str, Any]) -> Callable[[], Any]:
    """The ``context_fn`` among what `CHECKPOINT_GENERATOR` gets after the function; by name from
    torch 2.15 on."""
    found: Callable[[], Any] = named["context_fn"] if _BY_NAME else positional[1]
    return found


def call_backward_directly(function: type[torch.autograd.Function]) -> None:
    """Let the engine call ``function.backward`` without the frame that looks it up on each call.

    The engine calls ``apply`` of the node's class; torch's version of it serves ``vjp`` and boxed
    gradients as well.
    """
    node_class: Any = function._backward_cls
    node_class.apply = function.backward


def base_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its Python prologue; only right when no functorch transform is
    active."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def is_last_backward() -> bool:
    """Does the engine free, after this backward, what its nodes have saved, and does nothing
    differentiate it?"""
    return (
        not torch._C._autograd._get_current_graph_task_keep_graph() and not torch.is_grad_enabled()
    )


@contextlib.contextmanager
def watched_engine(
    instead: Callable[..., bool],
    before: Callable[[Sequence[Any], Sequence[Any]], None],
) -> Iterator[None]:
    """Inside, backwards that add to ``.grad`` are offered to
    ``instead(roots, tangents, retain_graph, create_graph, inputs)``, which returns False to leave
    one to the engine. Before the others, `torch.autograd.grad`, ``before(roots, inputs)`` is
    called. (Those of other threads are left alone.)
    """
    module: Any = torch.autograd
    engine = module._engine_run_backward

    def run(
        roots: Any, tangents: Any, retain: Any, create: Any, inputs: Any, *more: Any, **kinds: Any
    ) -> Any:
        call = (roots, tangents, retain, create, inputs, *more)
        if kinds.get("accumulate_grad"):
            return None if instead(*call) else engine(*call, **kinds)
        before(roots, inputs)
        return engine(*call, **kinds)

    with replaced_here(module, "_engine_run_backward", run):
        yield


def says_spent(error: BaseException, *, freed: bool = False) -> bool:
    """Does autograd say that what a backward needs is not there any more: freed by another one, or
    written?"""
    says = (
        "Trying to backward through the graph a second time",
        "one of the variables needed for gradient",
    )
    return isinstance(error, RuntimeError) and str(error).startswith(says[:1] if freed else says)


def says_no_derivative(error: BaseException) -> bool:
    """Does autograd say that nobody has written the derivative of an operation?"""
    return str(error).startswith("the derivative for ")


#: the attributes that are true of a tensor with hooks on its gradient, of a leaf with such that run
# when it has been added up
GRADIENT_HOOKS, ACCUMULATION_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"


def run_when_ready(node: Any) -> None:
    """Let the engine run a node as soon as it can, as it does with the one that adds to the
    ``.grad`` of a leaf."""
    node._set_sequence_nr(2**64 - 1)


def runs_answered_by(
    runs: Callable[[torch.Tensor], bool | None],
) -> contextlib.AbstractContextManager[Any]:
    """Inside, `register_multi_grad_hook`, which asks the engine for the nodes that it will run, is
    told by ``runs(leaf)`` for those that add to the ``.grad`` of leaves (None: the engine says
    it)."""
    name = "_will_engine_execute_node"
    engine = getattr(torch._C, name)

    def answer(node: Any) -> Any:
        leaf = getattr(node, "variable", None)
        found = None if leaf is None else runs(leaf)
        return engine(node) if found is None else found

    return replaced_here(torch._C, name, answer)


def is_reached(t: torch.Tensor) -> bool:
    """Would a backward come to this tensor? A view that is made under no_grad says that it requires
    grad, as its base does."""
    if t.grad_fn is not None or not t.requires_grad:
        return t.requires_grad
    with torch.enable_grad(), no_modes():
        node = t.view_as(t).grad_fn  # None from torch 2.15 on
        return node is not None and node.next_functions[0][0] is not None


def versions_kept(t: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """Inside, writes to ``t`` do not move its version counter."""
    kept: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
    return kept(t)  # type: ignore[no-any-return]


@contextlib.contextmanager
def saved_hooks_refused(refuse: Callable[[], None]) -> Iterator[None]:
    """Inside, ``refuse`` is called where this thread sets default saved-tensor hooks."""

    def push(*hooks: Any) -> None:
        refuse()

    with replaced_here(torch._C._autograd, "_push_saved_tensors_default_hooks", push):
        yield


# Tangents may stand for several ones at once. With ``is_grads_batched`` the engine runs once,
# inside of a vmap of torch's older kind, whose tensors hide a dimension.
def is_batched(grad: torch.Tensor | None) -> bool:
    """Does a gradient stand for several ones at once (``is_grads_batched``, ``torch.vmap``)?"""
    asks = (
        torch._C._functorch.is_legacy_batchedtensor,
        torch._C._functorch.is_functorch_wrapped_tensor,
    )
    return grad is not None and any(ask(grad) for ask in asks)


def is_of_vmap(t: torch.Tensor) -> bool:
    """Does a tensor stand for those of a ``torch.vmap`` around, perhaps inside of a ``grad``?"""
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(t):
        if functorch.is_batchedtensor(t):
            return True
        t = functorch.get_unwrapped(t)
    return False


@contextlib.contextmanager
def outside_of_vmap(batched: bool) -> Iterator[None]:
    """Inside, the innermost vmap of the older kind around is none."""
    if not batched:
        yield
        return
    torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        torch._C._vmapmode_increment_nesting()


def is_legacy_batched(grad: torch.Tensor | None) -> bool:
    """Is it a tensor of the vmap of ``is_grads_batched``?"""
    return grad is not None and bool(torch._C._functorch.is_legacy_batchedtensor(grad))
