"""What each output of the user function is, read off the live tensors: docs/notes/views.md explains the kinds."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import torch_api
from ..errors import NeedsEager, UnsupportedError
from ..plan import (
    ConstantOutput,
    GradientOutput,
    InputOutput,
    MutationPlan,
    OutputPlan,
    Replay,
    SameOutput,
    SizeOutput,
    SymbolicView,
    ValueOutput,
    ViewOutput,
)
from ..subclass.attributes import attributes_inside, attributes_of_wrapper
from ..subclass.context import OfInput, is_atom, parts_of, same_context
from ..subclass.flatten import flatten, leaves_of, map_leaves
from ..subclass.paths import Path
from ..subclass.protocol import Kind, flattens_alike, is_traceable, kind_of, refuse
from ..subclass.spec import Spec, WrapperSpec, is_ragged
from ..subclass.visit import rebuild
from .aliasing import family, laid_out_alike, share_counter
from .diagnostics import kept_number
from .facts import SIMPLE, holds_traced, refuse_traced
from .inputs import Inputs
from .recorder import Recorder
from .replays import aside, fresh, gives, share_memory, tried, unseen

Tensor = torch.Tensor


def leaf_inside(t: Tensor) -> UnsupportedError:
    """What to say of a result that is, or is a view of, an autograd leaf of the region's own making."""
    return UnsupportedError(
        "the region makes an autograd leaf, and returns it",
        expected="requires_grad_() on arguments, or on values that are not returned",
        got=f"requires_grad_() on a tensor of shape {tuple(t.shape)}",
        fix="call requires_grad_() on the result",
    )


def lost_history(view: Tensor, line: str | None) -> NeedsEager:
    """What to say of a view whose history, or whose way from its base, is not that of the traced one."""
    return NeedsEager(
        "the region uses a view that requires grad after the shape of its base, or its own, was changed in place",
        path=line,
        expected="views that are made after the change, or not used after it",
        got=f"a view of shape {tuple(view.shape)}",
        fix="change the shape out of place: y = x.t() instead of x.t_()",
    )


def is_own_leaf(t: Tensor) -> bool:
    """Is it an autograd leaf that requires grad by itself, not through the base that it is a view of?

    A view that was made under no_grad says that it requires grad as its base does, and is none that gradients get to.
    """
    try:
        if not t.requires_grad or t.grad_fn is not None:
            return False
    except RuntimeError as error:
        if "multiple views" in str(error):  # a member of a split whose base was written; so does eager
            raise
        raise lost_history(t, None) from error
    if t._base is None or not t._base.requires_grad:
        return True
    try:
        with torch_api.without_dispatch(), torch.inference_mode(False), torch.enable_grad():
            return torch.autograd.graph.get_gradient_edge(t).node is not None
    except (RuntimeError, AssertionError):
        return False


def check_escapes(spec: Spec, path: Path) -> None:
    """Numbers that differ between calls may stand in containers and dataclasses of a result's context, where a call finds
    them; traced tensors nowhere.

    Raises:
        UnsupportedError: there is one, or an object with one inside.
    """
    if not isinstance(spec, WrapperSpec):
        return
    for name, inner in zip(spec.names, spec.inners, strict=True):
        check_escapes(inner, path.attr(name))
    todo = [] if flattens_alike(spec.cls) or torch_api.context_shortcut(spec.cls) is not None else [spec.context]
    while todo:
        value = todo.pop()
        parts = [part for _, part in parts_of(value)]
        todo += parts
        if parts or isinstance(value, (OfInput, *torch_api.SYM_TYPES)) or is_atom(value):
            continue
        if isinstance(value, Tensor) and not is_traceable(value) and not torch_api.is_fake(value):
            continue
        for name, held in () if isinstance(value, Tensor) else attributes_inside(value):
            if isinstance(held, torch_api.SYM_TYPES):
                raise kept_number(held, path.attr(name))  # the size is fixed then
        if holds_traced(value):
            raise UnsupportedError(
                "the region puts a value that it computes into the flatten context of a result",
                path=path,
                expected="contexts of values that are known while tracing, and sizes in containers and dataclasses",
                got=f"a {type(value).__qualname__}",
                fix="let __tensor_flatten__ name the tensor as an inner tensor, or return it beside the wrapper",
            )


class OutputClassifier:
    """Classifies outputs one by one; ``emit`` adds a live tensor to the forward values and returns its number."""

    def __init__(
        self,
        inputs: Inputs,
        handed: Sequence[Any],
        mutations: Sequence[MutationPlan],
        recorder: Recorder,
        results: Sequence[Any],
        emit: Callable[[Tensor], int],
    ) -> None:
        self.inputs, self.before = inputs, inputs.before
        self.recorder, self.emit = recorder, emit
        self.sizes: list[Any] = []
        self._input_of = {id(i.traced): n for n, i in enumerate(inputs.inputs)}
        self._gradients = {id(i.traced): n for n, i in enumerate(inputs.inputs) if i.gradient_of is not None}
        self._position_of = {id(t): k for k, t in reversed(list(enumerate(handed))) if isinstance(t, Tensor)}
        self._reshaped = {m.input for m in mutations if m.metadata is not None}
        self._assigned = {m.input for m in mutations if m.attributes}
        tensors = [o for o in results if isinstance(o, Tensor)]
        self._edges = {id(i.traced): i.edge.node for i in inputs.inputs if i.edge is not None}
        self._sources: dict[Any, dict[int, Tensor]] = {}  # what the call has in a storage
        for t in (*(i.traced for i in inputs.inputs), *filter(self._is_traced, tensors)):
            for storage in _storages(leaves_of(t)):
                self._sources.setdefault(storage, {}).setdefault(id(whole := family(t)), whole)
        self.unbacked: dict[Any, int] = {}
        self._emitted: dict[int, int] = {}
        self._value_of: dict[int, Tensor] = {}
        self._result_of: dict[int, int] = {}
        self._count = 0

    def classify(self, o: Any) -> OutputPlan:
        """The plan of one output. Call it for the outputs in order."""
        plan = self._classify(o)
        if isinstance(plan, ViewOutput) and isinstance(plan.spec, WrapperSpec):
            self._check_handed_on(plan, o)
        if isinstance(plan, (ViewOutput, ValueOutput)):
            first = self._result_of.setdefault(id(o), self._count)
            if first != self._count:
                plan = SameOutput(first)
        self._count += 1
        return plan

    def _classify(self, o: Any) -> OutputPlan:
        if is_ragged(o):
            raise NeedsEager("a result is the ragged size of a jagged tensor", fix="return the tensor, or its offsets")
        if isinstance(o, torch_api.SYM_TYPES):
            self.sizes.append(o)
            return SizeOutput(len(self.sizes) - 1)
        if not isinstance(o, Tensor) or not self._is_traced(o):
            return ConstantOutput(o)
        if id(o) in self._position_of:
            return InputOutput(self._position_of[id(o)])
        if id(o) in self._gradients:
            return GradientOutput(self._gradients[id(o)])
        if o.retains_grad:
            raise UnsupportedError(
                "the region calls retain_grad() on a result, whose gradient it would have to see from inside",
                path=str(Path("result").item(self._count)),
                got=f"a tensor of shape {tuple(o.shape)} that retains its gradient",
                fix="call it on the result, outside of the region, and compute the rest from that result",
            )
        if is_own_leaf(o):
            raise leaf_inside(o)
        leaves, spec = flatten(o)
        if (plan := self._detached_view(o, leaves, spec)) is not None:
            return plan
        base = o._base
        if base is None:
            return self._value(o, leaves, spec)
        number = self._input_of.get(id(base))
        if not share_memory(leaves, leaves_of(base)):
            return self._protected(o, leaves, spec)  # its data was set, or the class has gathered what it shows
        if self._goes_through_custom(o, base):
            return self._protected(o, leaves, spec)
        if is_traceable(o) and o.grad_fn is not None and torch_api.is_multi_output_view(o) and self._refuses_zeros(o):
            return self._protected(o, leaves, spec)
        if o.grad_fn is not None and not base.requires_grad:  # a view of it became a leaf
            raise leaf_inside(o)
        if o.is_nested and not base.is_nested:  # autograd's function of such a view holds the traced offsets
            return self._protected(o, leaves, spec)
        return self._view(o, number, leaves, spec, self._replay(o, base, number, spec))

    def need(self, sizes: Iterable[Any]) -> None:
        """The run time needs these numbers: symbols of data-dependent ones become size outputs."""
        for n in sizes if self.recorder.symbols.data_dependent else ():
            for symbol, value in self.recorder.symbols.data_dependent_parts(n):
                if symbol not in self.unbacked:
                    self.unbacked[symbol] = len(self.sizes)
                    self.sizes.append(value)

    # ---------------------------------------------------------------- views
    def _detached_view(self, o: Tensor, leaves: list[Tensor], spec: Spec) -> ViewOutput | None:
        """``o`` as ``detach()`` of a tensor that the call has: they share a version counter."""
        root = family(o)
        if o.grad_fn is not None or id(root) in self._input_of or torch_api.is_custom_function_output(o):
            return None
        sources = [t for storage in _storages(leaves) for t in self._sources.get(storage, {}).values()]
        for source in sources:
            number = self._input_of.get(id(source))
            if number is None and id(source) not in self._emitted:  # that will be made of this one
                continue
            if source is root or number in self._reshaped or not share_counter(root, source):
                continue
            alike = laid_out_alike(o, source)
            way: Replay = Tensor.detach if alike else operator.methodcaller("view", o.dtype)  # of another kind, here
            if alike or (o.dtype != source.dtype and gives(way, source, spec, self.recorder)):
                rest = (self._attributes(o, leaves, spec), torch_api.is_multi_output_view(o))
                return ViewOutput(self._place(source, number), number is not None, way, False, spec, *rest)
            if is_traceable(o) and 0 not in o.stride():  # nobody writes to what is expanded
                raise NeedsEager(
                    "a result is a part of a detached wrapper, with which it shares a version counter",
                    path=str(Path("result").item(self._count)),
                    expected="x.detach() itself, or a part of x",
                    fix="detach the part: x[0].detach()",
                )
        return None

    def _check_handed_on(self, plan: ViewOutput, o: Tensor) -> None:
        """A view that is made again takes attributes from its base as that is then.

        Raises:
            NeedsEager: the region has changed them before or after it made the view.
        """
        mine, base = attributes_of_wrapper(o, plan.spec), self._live(plan)
        theirs = attributes_of_wrapper(base, flatten(base)[1])
        if all(k in theirs and v is theirs[k] for k, v in mine.items()) and plan.base not in self._assigned:
            return
        with unseen(self.recorder):
            again = tried(plan.replay, fresh(base, self.recorder))
            known = {} if again is None else attributes_of_wrapper(again, flatten(again)[1])
        other = any(_is_another(v, known[k]) for k, v in mine.items() if k in known and k not in plan.attributes)
        if other or (plan.of_input and plan.base in self._assigned):
            raise NeedsEager(
                "a result is a view of a wrapper whose attributes the region changes",
                path=str(Path("result").item(self._count)),
                expected="attributes that are set before the region",
                fix="set the attribute outside of the region",
            )

    def _live(self, plan: ViewOutput) -> Tensor:
        return self.inputs.inputs[plan.base].traced if plan.of_input else self._value_of[plan.base]

    def _replay(self, o: Tensor, base: Tensor, number: int | None, spec: Spec) -> Replay:
        """How ``o`` is made of ``base``.

        Raises:
            UnsupportedError: autograd does not know how it is made of the base as that is now.
        """
        way, reshaped = torch_api.view_function(o), bool(self.recorder.reshaped)
        known = self._leads_to(o, base) and number not in self._reshaped
        if known and reshaped:  # a member of a split is taken unseen, though there may be fewer members now
            known = not torch_api.is_multi_output_view(o) and gives(way, base, spec, self.recorder)
        if not known or (o.grad_fn is None and base.requires_grad and torch_api.is_tracked_view(o)):
            raise lost_history(o, None)
        return way if reshaped else self._with_numbers(way, base)

    def _with_numbers(self, way: Callable[..., Tensor], base: Tensor) -> Replay:
        """Autograd's function of a view, with the numbers of the call for what depends on values inside tensors."""
        if not self.recorder.symbols.data_dependent:
            return way
        numbers: list[Any] = []

        def note(n: Any) -> Any:
            numbers.append(n)
            return n

        # A class whose code reads values fails here; the numbers are asked for before it runs.
        unread = contextlib.suppress(*torch_api.DATA_DEPENDENT_ERRORS)
        with aside(self.recorder), torch_api.without_tracing(), torch.no_grad(), unread:
            way(fresh(base, self.recorder), symint_visitor_fn=note)
        self.need(numbers)
        return SymbolicView(way, tuple(numbers)) if self.unbacked else way

    def _goes_through_custom(self, o: Tensor, base: Tensor) -> bool:
        """Does a user's autograd.Function lie between a view and its base? Its backward would be lost in a replay."""
        ends, node = self._nodes_of(base), o.grad_fn
        while node is not None and node not in ends:
            if torch_api.is_custom_node(node):
                return True
            node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
        return False

    def _leads_to(self, o: Tensor, base: Tensor) -> bool:
        """Does the history of ``o`` lead to its base? A view of a view that was made under no_grad has one of its own."""
        if o.grad_fn is None or not base.requires_grad:
            return True
        ends = self._nodes_of(base)
        todo, seen = [o.grad_fn], set()
        while todo:
            node = todo.pop()
            if node in ends or getattr(node, "variable", None) is base:
                return True
            if node not in seen:
                seen.add(node)
                todo.extend(n for n, _ in node.next_functions if n is not None)
        return False

    def _nodes_of(self, base: Tensor) -> set[Any]:
        """The autograd nodes at which the history of a base begins."""
        return {base.grad_fn, self._edges.get(id(base))} - {None}

    def _value(self, o: Tensor, leaves: list[Tensor], spec: Spec) -> ValueOutput:
        return ValueOutput(self._emit_once(o), spec, self._attributes(o, leaves, spec))

    def _view(self, o: Tensor, number: int | None, leaves: list[Tensor], spec: Spec, way: Replay) -> ViewOutput:
        base: Any = o._base
        rest = (self._attributes(o, leaves, spec), torch_api.is_multi_output_view(o))
        return ViewOutput(self._place(base, number), number is not None, way, o.grad_fn is not None, spec, *rest)

    def _protected(self, o: Tensor, leaves: list[Tensor], spec: Spec) -> ValueOutput:
        """A view whose history is the region's: writes to it, of which its base would know nothing, are refused."""
        return replace(self._value(o, leaves, spec), protected=o.grad_fn is not None)

    def _refuses_zeros(self, o: Tensor) -> bool:
        """Does a gradient for this member of a split alone fail?

        Made by itself at run time, each has a node that fills in dense zeros for the others, which some classes do not take.
        """
        with torch_api.without_tracing(), torch.no_grad():
            tangent = map_leaves(torch.empty_like, o)
            tangent = tangent.requires_grad_(False) if tangent.requires_grad else tangent
            try:
                edge = torch.autograd.graph.get_gradient_edge(o._base)  # type: ignore[arg-type]
                torch.autograd.grad([o], [edge], [tangent], retain_graph=True, allow_unused=True)
            except Exception:  # whatever the class raises
                return True
        return False

    def _attributes(self, o: Tensor, leaves: list[Tensor], spec: Spec) -> dict[str, Any]:
        """Python attributes that a freshly rebuilt value would not have: the region set them."""
        with torch_api.without_tracing(), torch.no_grad():
            fresh = rebuild(spec, iter(leaves)) if isinstance(spec, WrapperSpec) else self.recorder.bare(o)
        state = getattr(o, "__dict__", {})
        if state.get("_is_param") is True and not isinstance(spec, WrapperSpec):
            raise UnsupportedError(
                "the region returns an nn.Parameter that it makes",
                path=str(Path("result").item(self._count)),
                expected="tensors; only a wrapper can be made a Parameter afterwards",
                got=f"a Parameter of shape {tuple(o.shape)}",
                fix="return the tensor, and call nn.Parameter(...) on the result",
            )
        symbolic = (Tensor, *torch_api.SYM_TYPES)
        mine = {k: v for k, v in attributes_of_wrapper(o, spec).items() if not isinstance(v, symbolic)}
        known = attributes_of_wrapper(fresh, spec)
        for name, value in attributes_of_wrapper(o, spec).items():
            if isinstance(value, torch_api.SYM_TYPES) and not isinstance(known.get(name), torch_api.SYM_TYPES):
                raise kept_number(value, Path("result").item(self._count).attr(name))
            if isinstance(value, Tensor) and not isinstance(known.get(name), Tensor):
                raise UnsupportedError(
                    "the region sets an attribute of a result to a tensor",
                    path=str(Path("result").item(self._count).attr(name)),
                    expected="attributes that are plain values",
                    fix="return it beside the result, and set it outside of the region",
                )
        found = {k: v for k, v in mine.items() if k not in known or _is_another(v, known[k])}
        if found.keys() & known.keys():  # such as a number that is another one in each wrapper
            with torch_api.without_tracing(), torch.no_grad():
                again = attributes_of_wrapper(rebuild(spec, iter(leaves)), spec)
            found = {k: v for k, v in found.items() if k not in known or not _is_another(known[k], again[k])}
        refuse_traced(found, Path("result").item(self._count))
        return found

    def _is_traced(self, o: Tensor) -> bool:
        if kind_of(type(o)) is Kind.REFUSED and any(map(torch_api.is_fake, vars(o).values())):
            raise refuse(o, Path("result"))
        if not is_traceable(o):
            return torch_api.is_fake(o)
        leaves = leaves_of(o)
        return not leaves or any(map(torch_api.is_fake, leaves))

    def _place(self, base: Tensor, number: int | None) -> int:
        """The number of an input that is a base, or of the forward value that it becomes."""
        return self._emit_once(base) if number is None else number

    def _emit_once(self, t: Tensor) -> int:
        if id(t) not in self._emitted:
            if is_own_leaf(t):
                raise leaf_inside(t)
            self._emitted[id(t)] = number = self.emit(t)
            self._value_of[number] = t
        return self._emitted[id(t)]


def _storages(leaves: Iterable[Tensor]) -> set[Any]:
    return {torch_api.storage_ref(t) for t in leaves if t.layout is torch.strided}


def _is_another(value: Any, known: Any) -> bool:
    """Do two attributes differ, one of which is a number or a string? Other objects a class may make anew each time."""
    if isinstance(known, (Tensor, *torch_api.SYM_TYPES)) or not (type(value) in SIMPLE or type(known) in SIMPLE):
        return False
    return not same_context(value, known)
