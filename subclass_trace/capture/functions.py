"""What user code does to a tensor without an operation that the recorder could see.

A ``__torch_function__`` mode is active while the user function runs: it hands every call on
unchanged, except those that read memory (refused by name), and ``x.data = y``, which gives ``x``
the value of ``y``. It also notes how views are made (`views`), and hands traced stand-ins to calls
on closed-over tensors (`closed_over`).
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from ..errors import SubclassTraceError, UnsupportedError
from ..subclass.flatten import leaves_of
from ..subclass.protocol import is_traceable
from ..torch_api.assertions import branch_without_error, check
from ..torch_api.eager_errors import error_in_eager
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS
from ..torch_api.kinds import is_fake
from ..torch_api.lines import asking
from ..torch_api.modes import (
    classes_are_asked,
)
from ..torch_api.numbers import as_numbers
from .diagnostics import MEMORY, TEXTS, refusal_of_data, refuse_memory, refuse_text
from .function_rules import FunctionRules
from .indexing import with_places
from .inner_backward import InnerBackward
from .inputs import StandIns
from .metadata import ASIDE, ASKING, MetadataReads
from .recorder import Recorder, overriding
from .user_code import asking_frame

Tensor = torch.Tensor
_aten = torch.ops.aten
_HOOK_METHODS = ("register_hook", "register_post_accumulate_grad_hook")
#: what kernels raise, and who takes their arguments apart
_OF_KERNELS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
_NUMBERS = ("item", "tolist")
_POWERS = ("pow", "pow_", "__pow__", "__rpow__", "__ipow__", "float_power", "float_power_")


class CapturedFunctions(FunctionRules):
    """Hands calls on; see the module's docstring."""

    captures = True

    def __init__(self, recorder: Recorder, reads: MetadataReads, stand_ins: StandIns) -> None:
        super().__init__(recorder)
        self.reads, self.stand_ins = reads, stand_ins
        self.gradients = InnerBackward(recorder, stand_ins, reads, self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():
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
        except _OF_KERNELS as error:
            told = error_in_eager(error, func, args, kwargs or {})
            if told is error:
                raise
            raise told from None

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
        one = truth and args[0].numel() == 1
        if one and is_fake(args[0]) and self.recorder.may_look():
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
        return self.call(func, args, kwargs)

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
        return func(t, _traced(hook, self.recorder))

    def _refuse_text(self, t: Any, frame: Any) -> None:
        """Text of a tensor is text of its values.

        Raises:
            DataDependentError: user code asks for it.
        """
        leaves = leaves_of(t) if isinstance(t, Tensor) and is_traceable(t) else [t]
        if any(is_fake(leaf) or self.recorder.knows(leaf) for leaf in leaves):
            if (asks := asking_frame(frame)) is not None:
                raise refuse_text(t, f"{asks.f_code.co_filename}:{asks.f_lineno}")


#: methods and functions, by name, that copy only where they have to
_MAY_COPY = frozenset(("contiguous", "reshape", "reshape_as", "flatten", "ravel"))


def _traced(hook: Any, recorder: Recorder) -> Any:
    """A hook whose calls of functions are seen; the engine leaves function modes behind."""
    if not callable(hook):
        return hook

    @functools.wraps(hook, updated=())
    def traced(*args: Any) -> Any:
        with FunctionRules(recorder):
            return hook(*args)

    return traced
