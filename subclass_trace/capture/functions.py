"""What user code does to a tensor without an operation that the recorder could see.

A ``__torch_function__`` mode is active while the user function runs: it hands every call on
unchanged, except those that read memory (refused by name), and ``x.data = y``, which gives ``x``
the value of ``y``. It also notes how views are made (`views`), and hands traced stand-ins to calls
on closed-over tensors (`closed_over`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..errors import SubclassTraceError, UnsupportedError
from ..subclass.flatten import leaves_of
from ..subclass.protocol import is_traceable
from ..torch_api.assertions import branch_without_error, check
from ..torch_api.collectives import COLLECTIVES, collective_in_place, is_collective
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS
from ..torch_api.float_arguments import HAND_FLOATS_ON, with_symbols
from ..torch_api.kinds import is_fake
from ..torch_api.lines import asking
from ..torch_api.modes import (
    TorchFunctionMode,
    classes_are_asked,
    enable_python_dispatcher,
)
from ..torch_api.numbers import SizesAsNumbers, as_numbers, holds_symbols
from ..torch_api.operators import is_differentiated_inside
from ..torch_api.repairs.composites import assert_async
from ..torch_api.trees import pytree
from .diagnostics import MEMORY, TEXTS, refusal_of_data, refuse_memory, refuse_text
from .indexing import with_places
from .inner_backward import InnerBackward
from .inputs import StandIns
from .metadata import ASIDE, ASKING, MetadataReads
from .phase import Recording
from .recorder import Recorder, overriding
from .user_code import asking_frame

Tensor = torch.Tensor
_aten = torch.ops.aten
_HOOK_METHODS = ("register_hook", "register_post_accumulate_grad_hook")
_NUMBERS = ("item", "tolist")
_POWERS = ("pow", "pow_", "__pow__", "__rpow__", "__ipow__", "float_power", "float_power_")


class CapturedFunctions(TorchFunctionMode):
    """Hands calls on; see the module's docstring."""

    captures = True

    def __init__(self, recorder: Recorder, reads: MetadataReads, stand_ins: StandIns) -> None:
        super().__init__()
        self.recorder, self.reads, self.stand_ins = recorder, reads, stand_ins
        self.gradients = InnerBackward(recorder, stand_ins, reads, self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # torch.cond lets Dynamo look at this mode as well
            return func(*args, **(kwargs or {}))
        try:
            return self._handle(func, types, args, kwargs, asking(sys._getframe(1)))
        except SubclassTraceError as error:
            state = self.recorder.state
            if state is not None:
                state.refused(error)
            raise
        except DATA_DEPENDENT_ERRORS as error:
            if self.recorder.state is not None and self.recorder.state.is_live:
                self.recorder.state.refused(refusal_of_data(error, self.recorder.user_line()))
            raise

    def _handle(self, func: Any, types: Any, args: Any, kwargs: Any, caller: Any) -> Any:
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is Tensor.grad:
            return self.gradients.access(func, args)
        if name in ASKING and args:
            answer = self.reads.answer(func, self.stand_ins.known(args[0]), self.recorder, caller)
            if answer is not ASIDE:
                return answer
        args, kwargs = self.stand_ins.swap(func, args, kwargs or {})
        if name == "requires_grad_" or (
            name == "__set__" and func.__self__ is Tensor.requires_grad
        ):
            self.gradients.check_flag(args[0], *args[1:], **kwargs)
        if (
            name == "__set__"
            and getattr(func, "__self__", None) is Tensor.data
            and is_fake(args[0])
        ):
            raise UnsupportedError(
                "the region gives a tensor other memory (x.data = y)",
                code="memory-exchanged",
                path=self.recorder.user_line(),
            )
        if name in TEXTS and args:
            self._refuse_text(args[0], caller)
        truth = name == "__bool__" or (name == "item" and args[0].dtype is torch.bool)
        if truth and is_fake(args[0]) and self.recorder.may_look():
            if (expected := branch_without_error(caller)) is not None:
                self.recorder.met.looks_after_writes |= any(
                    map(self.recorder.memory.touches, self.reads.inputs.leaf_values)
                )
                check(args[0], expected)
                return expected
        branches = self.recorder.phase.branches
        if truth and is_fake(args[0]) and branches is not None:
            with self.recorder.below():
                if (decided := branches.of_tensor(args[0])) is not None:
                    return decided
        if name in MEMORY:
            refuse_memory(name, args, self.recorder.user_line)
        if name in _HOOK_METHODS:
            return self._register(func, args[0], (*args[1:], *kwargs.values())[0])
        # what it would be for is refused, if it comes to that
        if name == "_nested_tensor_from_mask_left_aligned":
            return True
        func, args = with_places(self.recorder, func, args)
        # autograd in C++ compares the exponent with numbers, which it cannot do with a symbol
        if name in _POWERS:
            args = tuple(int(a) if isinstance(a, torch.SymInt) else a for a in args)
        if (asks := name in _NUMBERS) is not self.recorder.phase.asks_for_numbers:
            with self.recorder.during(asks_for_numbers=asks):
                out = self._by_class(func, types, args, kwargs)
        else:
            out = self._by_class(func, types, args, kwargs)
        if name in _MAY_COPY and args:
            self.recorder.memory.note_copy(args[0], out)
        return as_numbers(out)

    def _by_class(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """By the ``__torch_function__`` of a class of the user's, which runs as a clone; or by
        torch."""
        state = self.recorder.state
        if state is not None and state.is_live and classes_are_asked():
            for cls in types:
                if (method := overriding(state, cls, "__torch_function__")) is not None:
                    with self:  # what it calls in its turn
                        out = state.call(method, func, types, args, kwargs)
                    if out is not NotImplemented:
                        return out
        return self._call(func, args, kwargs)

    def _register(self, func: Any, t: Tensor, hook: Any) -> Any:
        """A hook on a value of the region, which is traced with its backward.

        Raises:
            UnsupportedError: it is on a tensor from outside, which would keep it.
        """
        if self.reads.inputs.number_of(self.stand_ins.known(t)) is not None:
            raise UnsupportedError(
                "the region registers a hook on a tensor from outside, which would keep it",
                code="hook-on-outside",
                path=self.recorder.user_line(),
                fix="register it outside of the region, or on x * 1",
            )
        self.recorder.met.hook(t)
        return func(t, _numbered(hook, self.recorder))

    def _refuse_text(self, t: Any, frame: Any) -> None:
        """Text of a tensor is text of its values.

        Raises:
            DataDependentError: user code asks for it.
        """
        leaves = leaves_of(t) if isinstance(t, Tensor) and is_traceable(t) else [t]
        if any(is_fake(leaf) or self.recorder.knows(leaf) for leaf in leaves):
            if (asks := asking_frame(frame)) is not None:
                raise refuse_text(t, f"{asks.f_code.co_filename}:{asks.f_lineno}")

    def _refuse_derivative(self, func: Any, args: Any, kwargs: Any) -> None:
        """A kernel is one node, without what is in it.

        Raises:
            UnsupportedError: a gradient goes through it.
        """
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(t.requires_grad for t in tensors):
            raise UnsupportedError(
                "the region calls an operator that has no derivative: eager mode differentiates "
                "the operations of its kernel",
                code="operator-without-derivative",
                path=self.recorder.user_line(),
                got=str(func),
                fix="register one (torch.library.register_autograd), or call it under no_grad",
            )

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule = _RULES.get(getattr(func, "__name__", ""))
        if rule is not None:
            return rule(self.recorder, func, args, kwargs)
        if is_differentiated_inside(func) and torch.is_grad_enabled():
            self._refuse_derivative(func, args, kwargs)
        if self.recorder.met.numbers and holds_symbols((args, kwargs)):
            with enable_python_dispatcher():  # composite kernels in C++ ask for numbers
                return func(*args, **kwargs)
        return func(*args, **kwargs)


#: methods and functions, by name, that copy only where they have to
_MAY_COPY = frozenset(("contiguous", "reshape", "reshape_as", "flatten", "ravel"))


def _numbered(hook: Any, recorder: Recorder) -> Any:
    """A hook that sees symbols as numbers; the engine leaves function modes behind."""
    if not callable(hook):
        return hook

    @functools.wraps(hook, updated=())
    def numbered(*args: Any) -> Any:
        with SizesAsNumbers():
            return hook(*args)

    return numbered


# ---- rules
def _one_hot(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """With eager's check of the values, which torch leaves out for tensors without data."""
    index, classes = (*args, *kwargs.values(), -1)[:2]
    if is_fake(index):
        if index.dtype is not torch.int64 or classes <= 0:
            raise UnsupportedError(
                "one_hot whose values tell the number of classes, or that eager refuses",
                code="one-hot",
                got=classes,
            )
        if index.device.type != "cuda":  # there the kernel asserts
            assert_async(
                ((index >= 0) & (index < classes)).all(),
                "Class values must be non-negative and smaller than num_classes.",
            )
    return func(*args, **kwargs)


def _product(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """With symbolic sizes torch takes it apart in Python, where its result may be a view, which
    eager's never is."""
    out = func(*args, **kwargs)
    if kwargs.get("out") is not None or not is_fake(out) or not out._is_view():
        return out
    bias = kwargs.get("bias", (*args, None, None, None)[2])
    if getattr(func, "__name__", "") == "linear" and bias is not None and out.dim() == 1:
        return out  # of a vector, eager's is one, too
    if any(
        out._base is a or is_traceable(a)
        for a in (*args, *kwargs.values())
        if isinstance(a, Tensor)
    ):
        return out  # a view of an argument, or a wrapper's own answer
    return _aten._unsafe_view.default(out._base, out.shape)


def _attends(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A function that computes attention, whose kernels a caller may choose."""
    recorder.met.attention = True
    return func(*args, **kwargs)


def _handed_on(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A function whose floats may be symbols."""
    return with_symbols(func, *args, **kwargs)


def _collective(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """A collective that writes to its arguments."""
    known = is_collective(func)
    return collective_in_place(func, args, kwargs) if known else func(*args, **kwargs)


#: rules for functions that read values, or hide what they are made of, by the names that user code
# calls: with eager's checks
_RULES: dict[str, Callable[[Recorder, Any, Any, Any], Any]] = {
    "one_hot": _one_hot,
    **dict.fromkeys(("scaled_dot_product_attention", "multi_head_attention_forward"), _attends),
    **dict.fromkeys(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"), _attends),
    **dict.fromkeys(HAND_FLOATS_ON, _handed_on),
    **dict.fromkeys(COLLECTIVES, _collective),
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "linear"), _product),
}
