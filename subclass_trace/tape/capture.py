"""The compiler object that torch's engine talks to while it walks a tape: each of its calls becomes
steps.

Since torch 2.7 the engine runs no node while a tape is captured: it hands over a node's saved
values and asks for the results. So a tensor during capture is a *token*, an empty tensor whose
identity names a step, and a size is a `SizeNode`. No fake tensors, no shape environment, no wrapper
is looked into; what a saved value is, is known when the tape runs. The idea of the tape as a graph
is PyTorch PR 103822's, of unpacking in the graph PR 147242's.

The names and signatures of the methods of `TapeCapture` are dictated by C++.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..torch_api import tape as _door
from ..torch_api.modes import TorchDispatchMode
from ..torch_api.operators import op_schema
from . import operations, runtime
from .graph import Layout, finish
from .steps import Kind, SizeNode, Step

Tensor = torch.Tensor


class _Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that C++ itself runs during a capture, such as zeros for undefined gradients,
    become steps."""

    def __init__(self, capture: TapeCapture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture, self.paused = capture, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return func(*args, **(kwargs or {}))
        capture = self.capture
        step = capture.write(
            "aten", func, capture.steps_of(tuple(args)), capture.steps_of(kwargs or {})
        )
        count = len(op_schema(func).returns)
        return capture.token(step) if count == 1 else tuple(capture.parts(step, count))


class TapeCapture:
    """One capture. What it needs of the backward call that it belongs to, it finds in
    ``runtime.current_call()``."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.call = -1
        self.names: list[str] = []
        self.layout = Layout()
        self._of_token: dict[int, Step] = {}
        self._tokens: list[Tensor] = []  # keeps the ids in the table unique
        self._witness = _Witness(self)
        self._stack = contextlib.ExitStack()

    # ---- steps and tokens
    def write(
        self,
        kind: Kind,
        target: Callable[..., Any] | None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        note: str = "",
        meta: dict[str, Any] | None = None,
    ) -> Step:
        """Write the next step."""
        step = Step(
            kind, target, args, kwargs, call=self.call, number=len(self.steps), note=note, meta=meta
        )
        self.steps.append(step)
        return step

    def token(self, step: Step) -> Tensor:
        """A tensor that stands for the value of ``step``."""
        self._witness.paused = True
        token = torch.empty(0)
        self._witness.paused = False
        self._tokens.append(token)
        self._of_token[id(token)] = step
        return token

    def part(self, step: Step, number: int) -> Step:
        """One of several results."""
        return self.write("part", operator.getitem, (step, number))

    def parts(self, step: Step, count: int) -> list[Tensor]:
        """Tokens of several results."""
        return [self.token(self.part(step, i)) for i in range(count)]

    def steps_of(self, value: Any) -> Any:
        """``value`` with its tokens and sizes replaced by steps."""
        if isinstance(value, Tensor):
            return self._of_token[id(value)]
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return value.node.step
        if isinstance(value, list):
            return [self.steps_of(v) for v in value]
        if isinstance(value, tuple):
            return tuple([self.steps_of(v) for v in value])
        if isinstance(value, dict):
            return {k: self.steps_of(v) for k, v in value.items()}
        return value

    def given(self, what: str, number: int) -> Step:
        """What the engine hands to each run: ``inputs[3]``, ``hooks[0]``, ..."""
        return self.layout.step(what, number)

    # ---- begin and end
    def begin_capture(
        self,
        inputs: list[Tensor],
        sizes: Sequence[int],
        scalars: Sequence[int | float],
        origins: Any,
        accumulate_grad: bool,
        check_nans: bool,
    ) -> tuple[str, list[Tensor], list[Any], list[Any]]:
        """Stand-ins for all inputs. ``check_nans`` is read when the tape runs instead: it is not
        part of the cache key."""
        runtime.stats.captures += 1
        if torch.is_inference_mode_enabled():  # C++ puts the tokens in the place of saved tensors
            self._stack.enter_context(torch.inference_mode(False))
            self._stack.enter_context(torch.no_grad())
        self.layout.counts = (len(inputs), len(sizes), len(scalars))
        tokens = [self.token(self.given("inputs", i)) for i in range(len(inputs))]
        numbers = [self._number("sizes", i, v) for i, v in enumerate(sizes)]
        values = [self._number("scalars", i, v) for i, v in enumerate(scalars)]
        self._stack.enter_context(self._witness)
        return f"subclass_trace/{runtime.stats.captures}", tokens, numbers, values

    def _number(self, what: str, i: int, value: int | float) -> Any:
        number: Any = torch.SymFloat if isinstance(value, float) else torch.SymInt
        return number(SizeNode(self.given(what, i), value, self.write))

    def log_compile_reasons(self, reasons: list[str]) -> None:
        """Only with torch's verbose logger, which nobody sets for us."""

    def set_node_origin(self, name: str, index: int, pyobj: Any) -> None:
        """What follows belongs to the node with this number."""
        self.call = index
        self.names.append(name)

    def end_capture(self, outputs: list[Tensor | None]) -> tuple[Any, Any]:
        """What the engine calls in this and each later run with the same tape:
        ``wrapper(tape, inputs, ...)``."""
        self._stack.close()
        call = runtime.current_call()
        tape = finish(
            self.steps,
            self.names,
            self.layout,
            self.steps_of(list(outputs)),
            call.roots,
            call.inputs,
        )
        runtime.note(tape)
        self._of_token.clear()
        self._tokens.clear()
        return runtime.run_tape, tape

    def close(self) -> None:
        """Always called, also after errors."""
        self._stack.close()

    # ---- nodes
    def bind_function(
        self, name: str, fn: Any, is_custom_function: bool, is_traceable: bool
    ) -> str:
        """The functional form of a node type: once per process and type."""
        return _door.bind_tape_op(name, fn, is_custom_function, is_traceable)

    def apply_functional(
        self, name: str, grads: list[Any], args: Any, output_metadata: Any
    ) -> list[Tensor]:
        """A built-in node, or a C++ custom function."""
        step = self.write(
            "op", _door.tape_op(name), (self.steps_of(list(grads)), *self.steps_of(args)), note=name
        )
        return self.parts(step, len(output_metadata))

    def validate_outputs(
        self, _: Any, outputs: list[Any], args: Any, output_metadata: Any
    ) -> list[Tensor | None]:
        """After a node: broadcast gradients are summed, dtypes cast, wrong shapes refused."""
        function = _door.tape_op("validate_outputs")
        step = self.write(
            "validate", function, (self.steps_of(list(outputs)), *self.steps_of(args))
        )
        return [
            None if o is None else self.token(self.part(step, i)) for i, o in enumerate(outputs)
        ]

    def accumulate(self, old: Tensor, new: Tensor) -> Tensor:
        """A second gradient for one place."""
        return self.token(
            self.write("sum", operations.add_grads, (self.steps_of(old), self.steps_of(new)))
        )

    def accumulate_grad(
        self, variable: Tensor, variable_grad: Any, grad: Any, has_post_hooks: Any = None
    ) -> Any:
        """An AccumulateGrad node. Torch 2.11 and 2.12 pass (variable, grad, has_post_hooks) and
        take None alone."""
        before_2_13 = has_post_hooks is None
        if before_2_13:
            grad, has_post_hooks = variable_grad, bool(grad)
        args = (self.steps_of(variable), self.steps_of(grad), bool(has_post_hooks))
        self.write("accumulate", operations.accumulate_grad, args)
        return None if before_2_13 else grad

    def call_copy_slices_prologue(self, inputs: list[Any], *geometry: Any) -> list[Tensor]:
        """Before the backward of an in-place operation on a view."""
        args = (self.steps_of(list(inputs)), *self.steps_of(geometry))
        return self.parts(self.write("op", operations.begin_copy_slices, args), 3)

    def call_copy_slices_epilogue(
        self, needs: Any, result: Any, res: Any, grad_slice: Any
    ) -> list[Tensor]:
        """After the backward of an in-place operation on a view."""
        args = (
            list(needs),
            self.steps_of(result),
            self.steps_of(list(res)),
            self.steps_of(grad_slice),
        )
        return self.parts(self.write("op", operations.end_copy_slices, args), len(needs))

    def proxy_call_backward(
        self,
        inputs: Sequence[Any],
        output_metadatas: Sequence[Any],
        saved_tensors: Sequence[Any],
        backward_idx: int,
        ctx: Any,
        maybe_backward_state_idx: int | None,
        opaque_object_indices: list[int] | None = None,
    ) -> tuple[Tensor | None, ...]:
        """A Python autograd.Function: one call of ``backward``."""
        cls, saved, grads = (
            _door.forward_class(ctx),
            self.steps_of(list(saved_tensors)),
            self.steps_of(list(inputs)),
        )
        # `BackwardContext` unpacks these, when the backward asks for them
        deferred = {
            place: step
            for place, step in enumerate(saved)
            if step is not None and step.kind == "unpack"
        }
        plain = [None if place in deferred else step for place, step in enumerate(saved)]
        packed = [(place, *step.args) for place, step in deferred.items()]
        fill = all(g is not None for g in grads) and _materializes(cls)
        args = (
            self.given("hooks", backward_idx),
            plain,
            packed,
            len(output_metadatas),
            fill,
            *grads,
        )
        meta = {"deferred": [*deferred.values()]}
        step = self.write("backward", operations.run_backward, args, note=cls.__name__, meta=meta)
        results = [self.part(step, i) for i in range(len(output_metadatas))]
        return tuple(
            None if m is None else self.token(r)
            for m, r in zip(output_metadatas, results, strict=True)
        )

    def bind_backward_state(self, index: int) -> Any:
        """State that a Dynamo-compiled forward hands to its backward."""
        return self.token(self.given("hooks", index))

    # ---- hooks
    def unpack_hook(self, hook_id: int, data_id: int) -> Tensor:
        """A tensor that was saved under ``saved_tensors_hooks``."""
        args = (self.given("hooks", hook_id), self.given("packed", data_id))
        return self.token(self.write("unpack", operations.run_unpack, args))

    # An undefined gradient stays undefined, whatever a hook sees: C++ puts zeros in its place
    # afterwards.
    def tensor_pre_hook(self, inputs: Sequence[Any], hook_id: int, i: int) -> list[Any]:
        """``Tensor.register_hook``."""
        args = (self.given("hooks", hook_id), self.steps_of(inputs[i]))
        step = self.write("hook", operations.run_tensor_hook, args, note="tensor hook")
        return [self.token(step) if k == i and x is not None else x for k, x in enumerate(inputs)]

    def cpp_tensor_pre_hook(self, inputs: Sequence[Any], hook_id: int, i: int) -> list[Any]:
        """``retain_grad``, and hooks of C++."""
        args = (hook_id, self.steps_of(inputs[i]))
        step = self.write("hook", operations.run_cpp_hook, args, note="retain_grad")
        return [self.token(step) if k == i and x is not None else x for k, x in enumerate(inputs)]

    def pre_hook(self, inputs: Sequence[Any], hook_id: int) -> list[Any]:
        """``Node.register_prehook``."""
        args = (self.given("hooks", hook_id), tuple(self.steps_of(list(inputs))))
        return self._replaced(
            inputs, self.write("hook", operations.run_node_pre_hook, args, note="node pre-hook")
        )

    def post_hook(self, outputs: Sequence[Any], inputs: Sequence[Any], hook_id: int) -> list[Any]:
        """``Node.register_hook``."""
        values = (tuple(self.steps_of(list(outputs))), tuple(self.steps_of(list(inputs))))
        args = (self.given("hooks", hook_id), *values)
        return self._replaced(
            outputs, self.write("hook", operations.run_node_post_hook, args, note="node post-hook")
        )

    def _replaced(self, values: Sequence[Any], step: Step) -> list[Any]:
        return [None if v is None else self.token(self.part(step, i)) for i, v in enumerate(values)]

    def post_acc_grad_hook(self, param: Tensor, hook_id: int) -> list[Tensor]:
        """``Tensor.register_post_accumulate_grad_hook``."""
        args = (self.given("hooks", hook_id), self.steps_of(param))
        self.write(
            "post_accumulate",
            operations.run_post_accumulate_hook,
            args,
            note="post-accumulate-grad hook",
        )
        return [param]


def _materializes(cls: Any) -> bool:
    """Does the engine hand zeros to this Function where a gradient is undefined?

    It does when the capture knows of it; that another Function returned None is known in the run
    only. There is no way
    to ask a ctx: the forward's code is looked at.
    """
    return not any(
        "set_materialize_grads" in code.co_names
        for f in (cls.forward, getattr(cls, "setup_context", None))
        if (code := getattr(f, "__code__", None)) is not None
    )
