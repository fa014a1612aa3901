"""The recorder: one dispatch mode directly above FakeTensorMode that writes dense operations into
an fx graph.

In goes every dense operation that the user function, its wrappers' ``__torch_dispatch__`` and the
autograd engine issue; out comes a graph node for it, with these keys in ``node.meta``:

    val                a FakeTensor (or a list of them) without history
    partitioner_tag    "is_forward" or "is_backward"
    seq_nr             number of the autograd node; a backward node carries its forward node's
                       (PyTorch PR 103129)
    phase              "forward", or "backward": of the region's own backward, too
    frames             the user's frames, turned into ``stack_trace`` text when the graph is
                       finished
    nn_module_stack    the modules that were being called, as torch.export has them: place -> (path,
                       class), outermost first
    custom             what `torch.fx.traceback.annotate` says
    recompute, ac_graph_id   tags of selective activation checkpointing

In-place operations are recorded as they run; `functionalize` replays the finished graph when there
were any.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.fx as fx

from ..errors import SubclassTraceError, UnsupportedError
from ..state.boundary import ENTER, kind_of
from ..subclass.protocol import REAL
from ..subclass.spec import is_ragged
from ..torch_api.autograd import autograd_sequence_number, node_sequence_number, running_node
from ..torch_api.exact_numbers import steps_written_by
from ..torch_api.fake_results import FakeResults
from ..torch_api.float_arguments import symbols_back
from ..torch_api.graphs import user_annotations
from ..torch_api.kinds import FAKE_TYPES, is_fake, is_zeros, storage_ref
from ..torch_api.modes import (
    disable_autocast,
    function_stack_length,
    innermost_tracer,
    no_modes,
    no_overrides,
)
from ..torch_api.operators import HigherOrderOperator, view_form
from .aliasing import is_from_outside, shows_elsewhere
from .diagnostics import refuse_branch
from .higher_order import record_higher_order
from .known import known_value
from .operators import RULES
from .phase import Met
from .traced_graph import TracedGraph
from .user_code import line_text, user_frames
from .writes import WrittenMemory, check_kernels, collective, refused_write

aten = torch.ops.aten
Tensor = torch.Tensor
_DENSE = (*FAKE_TYPES, Tensor, torch.nn.Parameter)
_DEVICE = torch.ops.prim.device.default
#: what C++ asks a tensor for whose sizes are symbols: numbers, for which no class is asked in eager
_LAYOUT: dict[Any, Callable[[Tensor], Any]] = {
    aten.size.default: lambda t: tuple(map(int, t.shape)),
    aten.stride.default: lambda t: tuple(map(int, t.stride())),
    aten.storage_offset.default: lambda t: int(t.storage_offset()),
}
#: constants that a region makes itself arrive through these
_CONSTANT_OPS = (aten.lift_fresh.default, aten.lift_fresh_copy.default)


class Recorder(TracedGraph):
    """Writes the graph. One instance per capture; it is entered again to trace further backwards
    into the same graph."""

    def __init__(self, mode: Any, decompositions: dict[Any, Callable[..., Any]]) -> None:
        super().__init__(mode, decompositions, FakeResults(mode))
        steps_written_by(mode.shape_env, self.step, self._decide)
        self.met, self.memory = Met(), WrittenMemory()
        #: node of a tensor since its shape was changed in place -> the one before
        self._same: dict[Any, Any] = {}
        self.around = running_node()  # a backward may call a region
        #: `state.run.StateRun` of the forward, while a backward is traced with it
        self.forward_state: Any = None

    # ---- where the trace stands
    @property
    def state(self) -> Any:
        """The `state.run.StateRun` of the code that runs."""
        return self.phase.state

    @contextlib.contextmanager
    def during(self, **changes: Any) -> Iterator[None]:
        """Inside, the phase has these values."""
        before = {name: getattr(self.phase, name) for name in changes}
        self.phase = replace(self.phase, **changes)
        try:
            yield
        finally:
            self.phase = replace(self.phase, **before)

    def seal(self) -> None:
        """The user function has run."""
        self.phase = replace(self.phase, sealed=True)

    # ---- values and their nodes
    def node_of_real(self, value: Tensor) -> fx.Node:
        """The node of a tensor that no operation of the trace has given.

        Raises:
            UnsupportedError: it is a fake tensor of another trace.
        """
        if not is_fake(value):
            return self._nodes[id(self.lift(value))][0]
        raise UnsupportedError(
            "the region met a fake tensor that was made outside of it",
            code="fake-tensor",
            got=f"{value}",
            fix="do not keep tensors from an earlier trace in Python state that the region reads",
        )

    def may_look(self) -> bool:
        """May the call be made eagerly instead, where a value is another one than the trace takes
        it for?

        Not once the function has run (in a later backward), nor where it has drawn from a generator
        of its own.
        """
        if self.phase.sealed:
            return False
        given = (a for n in self.graph.nodes for a in (*n.args, *n.kwargs.values()))
        return not any(isinstance(a, torch.Generator) for a in given)

    # ---- real tensors
    def lift(self, real: Tensor) -> Tensor:
        """The fake that stands for a real dense tensor: of an input, or of a plain tensor in the
        context of one.

        One that is first met in a backward, or later, is read from where it is when the backward
        runs, as in eager.

        Raises:
            UnsupportedError: the function comes upon it by a path that has no name.
        """
        # a batching rule in C++ has made a view of them past this mode
        if is_zeros(real):
            raise UnsupportedError(
                "the region takes forward-mode derivatives under vmap",
                code="forward-mode",
                path=self.user_line(),
            )
        unknown = id(real) not in self._lifted and self.state is not None and self.state.follows
        if unknown and self.tag == "is_forward" and not self.phase.sealed:
            raise UnsupportedError(
                "the region uses a tensor that no argument, name or attribute leads to",
                code="nameless-tensor",
                path=self.user_line(),
                fix="pass it as an argument, or hold it in an attribute",
            )
        made = self.constant(real)
        if self.tag == "is_backward" and made.layout is torch.strided:
            outliving = self.phase.outliving | {storage_ref(made)}
            self.phase = replace(self.phase, outliving=outliving)
        return made

    # ---- the dispatch
    @contextlib.contextmanager
    def below(self) -> Iterator[None]:
        """What runs inside is not the user's; no ``except Exception`` of the user's can swallow a
        refusal of it."""
        state = self.state
        if state is None or not state.is_live:
            yield
            return
        state.off()
        try:
            yield
        except SubclassTraceError as error:
            raise state.refused(error) from error.__cause__
        finally:
            state.on()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and is_fake(args[0]):
            return args[0].fake_device  # the autograd engine asks about twice per node
        given, named = symbols_back(args, kwargs or {})
        out = self._by_class(func, types, given, named)
        if out is not NotImplemented:
            return out
        with self.below():
            out = self._dispatch(func, types, given, named)
        # for code that is not looked into they are numbers
        if out is NotImplemented and given is not args:
            with self:
                return func(*given, **named)
        return out

    def _by_class(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """By the ``__torch_dispatch__`` of a class of the user's, which C++ would call: it runs as
        a clone."""
        state = self.state
        if state is None or not state.is_live or func in _LAYOUT or func is _DEVICE:
            return NotImplemented
        for cls in types:
            if (
                cls not in _DENSE
                and (method := overriding(state, cls, "__torch_dispatch__")) is not None
            ):
                self.met.classes.add(cls)
                with self:
                    out = state.call(method, func, types, args, kwargs)
                if out is not NotImplemented:
                    return out
        return NotImplemented

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, HigherOrderOperator):
            if func in self.decompositions:
                with self:
                    return self.decompositions[func](*args, **(kwargs or {}))
            return record_higher_order(self, func, args, kwargs or {})
        for t in types:
            if t not in _DENSE:
                if func in _LAYOUT and not any(map(is_ragged, args[0].shape)):
                    return _LAYOUT[func](args[0])
                self.met.classes.add(t)
                return NotImplemented
        # what looks at the calls of Python code is not asked about ours
        if function_stack_length():
            with no_overrides():
                return self._run_dense(func, types, args, kwargs or {})
        return self._run_dense(func, types, args, kwargs or {})

    def _run_dense(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operation on dense tensors."""
        # an error message of autograd asks for numbers, of symbols too
        if func.namespace == "prim" or func in _LAYOUT:
            return func(*args, **kwargs)
        if func.namespace == "c10d":
            raise collective(func, self.user_line())
        state = self.phase.state
        if state is not None and state.flags.of_kernels:
            check_kernels(func, state.flags.of_kernels, self.user_line)
        if func is aten._local_scalar_dense.default:
            return self._local_scalar(func, args[0])
        given = (*args, *kwargs.values())
        real = [
            t for a in given for t in (a if type(a) in (list, tuple) else (a,)) if type(t) in REAL
        ]
        if real:
            return self._with_lifted(func, types, args, kwargs, real)
        rule = RULES.get(func)
        if rule is not None:
            out = rule(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if func in self.decompositions and not func._schema.is_mutable:
            with self:
                out = self.decompositions[func](*args, **kwargs)
            if out is not NotImplemented:
                return out
        if self.results.is_composite(func, args, kwargs):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return self._record(func, args, kwargs)

    def _local_scalar(self, func: Any, t: Tensor) -> Any:
        """``t.item()``: a number that only the call knows, as a symbol of the graph, unless it
        follows from constants.

        Raises:
            DataDependentError: its use is control flow.
        """
        t = self.lift(t) if type(t) in REAL else t
        if (known := known_value(self, t)) is not None:
            with no_modes():
                return func(known)
        truth = t.dtype is torch.bool
        if truth and not self.phase.asks_for_numbers:
            raise refuse_branch(t, self.user_line())
        with self:
            t = t.to(torch.int64) if truth else t
        self.met.numbers = True
        number = self._record(func, (t,), {})
        return number != 0 if truth else number

    def step(self, function: Callable[..., Any], numbers: tuple[Any, ...], whole: bool) -> Any:
        """What Python computes of a float from inside of a tensor; see
        `torch_api.exact_numbers.steps_written_by`."""
        if innermost_tracer() not in (None, self):
            return None
        node = self.symbols.computed(function, numbers, whole, self.tag)
        self.annotate(node)
        return node.meta["val"]

    def _decide(self, compare: Callable[..., int], numbers: tuple[Any, ...]) -> bool | None:
        """The truth of a comparison of numbers from inside of tensors, where the state of the
        region tells it."""
        branches = self.phase.branches
        if branches is None:
            return None
        with self.below():
            return branches.of_numbers(compare, numbers)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def writing_before(self, node: fx.Node) -> Iterator[None]:
        """What runs inside is written in front of this node."""
        with (
            self.below(),
            self.graph.inserting_before(node),
            no_overrides(),
            disable_autocast(),
            torch.no_grad(),
        ):
            yield

    def _with_lifted(
        self, func: Any, types: Any, args: Any, kwargs: Any, real: list[Tensor]
    ) -> Any:
        """Run ``func`` with the fakes that stand for real tensors; hand real ones back where it
        returns its argument."""
        stand_in = self.constant if func in _CONSTANT_OPS else self.lift
        back = {}
        for t in real:
            back[id(stand_in(t))] = t

        def swap(a: Any) -> Any:
            return (
                stand_in(a)
                if type(a) in REAL
                else type(a)(map(swap, a))
                if type(a) in (list, tuple)
                else a
            )

        fakes = tuple(FAKE_TYPES[0] if t in REAL else t for t in types)
        out = self.__torch_dispatch__(
            func, fakes, tuple(map(swap, args)), {k: swap(v) for k, v in kwargs.items()}
        )
        return back.get(id(out), out)

    def _record(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.native_batch_norm.default and args[3] is not None and args[5]:
            # The same, with a schema that says it writes the running statistics.
            func = aten._native_batch_norm_legit.default
        if torch.Tag.inplace_view in func.tags:
            return self._change_shape(func, args, kwargs)
        written: list[Tensor] = []
        if func._schema.is_mutable:
            outliving = self.phase.outliving
            written = self.memory.note(func, args, kwargs, outliving, self.user_line)
        if self.state is not None and torch.Tag.nondeterministic_seeded in func.tags:
            for a in (*args, *kwargs.values()):
                if isinstance(a, torch.Generator):
                    self.state.check_generator(a)
        before = [(t.shape, 0 if t.is_inference() else t._version) for t in written]
        out = self.results.run(func, args, kwargs)
        for t, (size, _) in zip(written, before, strict=True):
            if t.shape != size:
                raise refused_write(
                    func, t, self.user_line(), "a tensor that gets another size by that"
                )
        # the fake kernels do not move the counters, the real ones do
        if func._schema.name.startswith("aten::_foreach"):
            still = zip(written, before, strict=True)
            torch.autograd.graph.increment_version(
                [t for t, (_, n) in still if not t.is_inference() and t._version == n]
            )
        target = func
        if func is aten.lift_fresh.default:
            held = (real for fake, real in self._lifted.values() if fake is args[0])
            target = self.memory.copied(next(held, args[0]), out, self.user_line)
        node = self.call(target, args, kwargs)
        self.annotate(node, func, args, kwargs)
        if torch.get_default_dtype() is not self.phase.default_dtype:
            raise UnsupportedError(
                "the region runs operations under a default dtype that it has set itself",
                code="default-dtype-set",
                path=self.user_line(),
                fix="set the default dtype outside of the region, or name dtypes",
            )
        if _is_factory(func) and isinstance(out, Tensor) and node.kwargs.get("dtype") is None:
            # a backward may run under another default dtype
            node.kwargs = {**node.kwargs, "dtype": out.dtype}
        self.note_results(node, out, args)
        return out

    def annotate(self, node: fx.Node, func: Any = None, args: Any = (), kwargs: Any = None) -> None:
        """Give a node its tag, sequence number, phase, frames, modules, annotations and checkpoint
        tags."""
        meta = node.meta
        meta["partitioner_tag"] = self.tag
        node_of_engine, number = running_node(), autograd_sequence_number
        if node_of_engine is None or node_of_engine is self.around:
            meta["phase"], meta["seq_nr"] = "forward", number()
        else:
            meta["phase"], meta["seq_nr"] = (
                "backward",
                node_sequence_number(node_of_engine),
            )
        if annotations := user_annotations():
            meta["custom"] = annotations
        if self.state is not None and self.state.modules:
            meta["nn_module_stack"] = self.state.modules
        if (
            self.state is not None
            and self.state.compiled_by is not None
            and self.tag == "is_forward"
        ):
            meta["compiled_by"] = self.state.compiled_by
        if self.tag == "is_forward":
            meta["frames"] = self.user_frames()
        part = self.phase.checkpoint
        if part is not None and self.tag == "is_forward":
            meta["recompute"] = part.policy(func, args, kwargs or {})
            meta["ac_graph_id"] = part.graph_id

    def _change_shape(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``t.squeeze_()``: from now on the tensor is the view that ``t.squeeze()`` gives.

        Raises:
            UnsupportedError: it shares memory with what comes from outside, or autograd knows it
                and others that share its memory.
        """
        t, view = args[0], view_form(func)
        own = self.node_of(t)
        elsewhere = t.requires_grad and (t.grad_fn is None or shows_elsewhere(own, self._same))
        if view is None or elsewhere or is_from_outside(own):
            raise refused_write(func, t, self.user_line(), "the shape or the memory of a tensor")
        before, node = own, self.call(view, args, kwargs)
        self._same[node] = before
        if before.meta["val"] is t:
            before.meta["val"] = self.bare(t)
        out = self.results.run(func, args, kwargs)
        self.annotate(node, view, args, kwargs)
        self.track(t, node)
        return out

    # ---- where the user is
    def user_frames(self) -> tuple[tuple[Any, int], ...]:
        """(code object, line) of the frames of the user function that are running, innermost
        first."""
        return user_frames(sys._getframe(1), self.phase.stop_frame)

    def user_line(self) -> str | None:
        """``file:line`` of the innermost user frame."""
        return line_text(self.user_frames())


def overriding(state: Any, cls: type, name: str) -> Any:
    """The method of this name of a class of the user's, bound to it; None where torch's own, or
    none, is called."""
    found = state.lookup(cls, name)
    function = getattr(found, "__func__", None)
    if type(function) is not FunctionType or kind_of(function.__code__) != ENTER:
        return None
    state.step(found, "inner", "__func__", function)
    return found if type(found) is MethodType else found.__get__(None, cls)


@functools.cache
def _is_factory(func: Any) -> bool:
    """Does the operation make a tensor from no tensor, with a dtype that may be left out?"""
    arguments = func._schema.arguments
    takes = any("Tensor" in str(a.type) for a in arguments)
    return not takes and any(a.name == "dtype" and a.kwarg_only for a in arguments)
