"""How each result of a call is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..subclass.spec import RaggedSize, SizeExpr, Spec


@dataclass(frozen=True, eq=False)
class ConstantOutput:
    """Not a tensor, or a real tensor that the region only passed through."""

    value: Any


@dataclass(frozen=True)
class SizeOutput:
    """Symbolic number ``index`` of the forward graph."""

    index: int


@dataclass(frozen=True)
class RaggedOutput:
    """The ragged size (a nested int) of a jagged input."""

    size: Any


@dataclass(frozen=True)
class InputOutput:
    """The very object that came in at this position of the flat arguments."""

    position: int


@dataclass(frozen=True)
class GradientOutput:
    """The very object that is input number ``input``: the ``.grad`` of a tensor, which is no argument."""

    input: int


@dataclass(frozen=True)
class SameOutput:
    """The very object that is result number ``result``."""

    result: int


@dataclass(frozen=True, eq=False)
class ViewStep:
    """One call of the user's that leads from a tensor to a view of it, or that changes the shape of a view in place.

    ``grad``: grad mode at the call; ``item``: which of several results.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grad: bool
    item: int | None
    in_place: bool


@dataclass(frozen=True)
class ViewSteps:
    """Replays calls one after the other, each in its own grad mode: where one function of autograd is not enough."""

    steps: tuple[ViewStep, ...]

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The view of ``base``."""
        value: Any = base
        for step in self.steps:
            with torch.set_grad_enabled(step.grad):
                out = step.function(value, *step.args, **step.kwargs)
            value = out if step.item is None else out[step.item]
        return value  # type: ignore[no-any-return]

    @property
    def version_bumps(self) -> int:
        """How many of the calls move the version counter."""
        return sum(step.in_place for step in self.steps)


@dataclass(frozen=True)
class StridedView:
    """A view of a dense base by its place in the memory, ``delta`` elements after the start of the base."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    delta: int

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The view of ``base``."""
        return base.as_strided(self.size, self.stride, base.storage_offset() + self.delta)


@dataclass(frozen=True, eq=False)
class SymbolicView:
    """Autograd's function of a view whose sizes differ between calls; ``sizes`` in the order in which it asks for them."""

    function: Callable[..., torch.Tensor]
    sizes: tuple[Any, ...]

    def at(self, env: Mapping[Any, int]) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function with the sizes of one call."""
        sizes = [s.evaluate(env) if isinstance(s, (SizeExpr, RaggedSize)) else s for s in self.sizes]

        def replay(base: torch.Tensor) -> torch.Tensor:
            following = iter(sizes)
            return self.function(base, symint_visitor_fn=lambda _: next(following))

        return replay

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """With the sizes of the trace."""
        return self.function(base)


@dataclass(frozen=True, eq=False)
class Given:
    """What an operation gives for one tensor of its result: forward value ``value``, or one that nobody sees (None)."""

    value: int | None
    spec: Spec


@dataclass(frozen=True, eq=False)
class ViewCall:
    """One operation that autograd knows to make views. Results that come of the same call have this very object.

    Attributes:
        args: those after the tensor.
        given: what it gives, where that does not lie in the memory of the tensor (DTensor gathers rows): autograd books a
            view, and the region has computed its contents. Else None.
        has_sizes: some of its arguments are computed of the sizes of a call.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    given: tuple[Given, ...] | None
    has_sizes: bool = False


@dataclass(frozen=True, eq=False)
class ViewCalls:
    """Repeats operations, each with which of its results (None: the only one) goes on: several views have them in common."""

    calls: tuple[tuple[ViewCall, int | None], ...]

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """The view of ``base``, with nothing given, and with the sizes of the trace."""
        value: Any = base
        for call, item in self.calls:
            out = call.function(value, *call.args, **call.kwargs)
            value = out if item is None else out[item]
        return value  # type: ignore[no-any-return]

    @property
    def given(self) -> frozenset[int]:
        """The forward values that hold what some of the operations give."""
        rows = (row for call, _ in self.calls for row in call.given or ())
        return frozenset(row.value for row in rows if row.value is not None)


Replay: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class ViewOutput:
    """A view of an input, or of a forward value: the recorded view operations are replayed on the real base.

    ``one_of_several``: a member of ``split`` and the like, which autograd protects from in-place operations.
    ``before_grad``: made under autograd of an input that requires grad only afterwards.
    ``early``: made of an input as it comes in, before the region's change of its shape is delivered.
    ``dangling``: its history leads to no input, but to a leaf of the region's own, which nobody sees.
    ``layouts``: the base is a wrapper whose shape the region changes after this view was made of it: its layout then, and
    its layout afterwards. It is laid out so again while the view is made.
    ``counted``: for so many of its calls in place another result has moved the version counter.
    ``inner_versions``: (attribute names with dots, version) of tensors inside that were written by themselves.
    ``base`` counts inputs, or forward values and after these the rows of ``Plan.detached``; ``replay`` None: that itself.
    """

    base: int
    of_input: bool
    replay: Replay | None
    requires_grad: bool
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)
    one_of_several: bool = False
    starts_grad: bool = False
    early: bool = False
    dangling: bool = False
    layouts: tuple[Spec, Spec] | None = None
    counted: int = 0
    inner_versions: tuple[tuple[str, int], ...] = ()
    before_grad: bool = False

    @property
    def values(self) -> frozenset[int]:
        """The forward values (and rows of ``Plan.detached`` after these) that it is made of."""
        return _made_of(self)

    @property
    def version_bumps(self) -> int:
        """By how much making it moves the version counter that it shares with its base."""
        return self.replay.version_bumps - self.counted if isinstance(self.replay, ViewSteps) else 0


@dataclass(frozen=True, eq=False)
class Detached:
    """``detach()`` of an input, of a forward value, or (``replay``) of a view of one: it shares its version counter.

    ``of_history``: that view has one.
    """

    base: int
    of_input: bool
    replay: Replay | None
    of_history: bool = False

    @property
    def values(self) -> frozenset[int]:
        """The forward values that it is made of."""
        return _made_of(self)


@dataclass(frozen=True, eq=False)
class CustomView:
    """What a result of a custom autograd.Function is a view of, an input or a forward value; ``replay`` makes it of that."""

    base: int
    of_input: bool
    replay: Replay

    @property
    def values(self) -> frozenset[int]:
        """The forward values that it is made of."""
        return _made_of(self)


def _made_of(view: ViewOutput | CustomView | Detached) -> frozenset[int]:
    given = view.replay.given if isinstance(view.replay, ViewCalls) else frozenset()
    return given if view.of_input else given | {view.base}


def views_in(
    outputs: Iterable[OutputPlan], detached: Iterable[Detached] = ()
) -> Iterator[ViewOutput | CustomView | Detached]:
    """All that says how a result is made of a base."""
    yield from detached
    for o in outputs:
        view = o.view_of if isinstance(o, ValueOutput) else o
        if isinstance(view, (ViewOutput, CustomView)):
            yield view


@dataclass(frozen=True, eq=False)
class ValueOutput:
    """Forward value ``value``. ``attributes`` are Python attributes that the region set on it.

    ``view_of``: autograd knows it as a view, whose history is that of the value all the same.
    """

    value: int
    spec: Spec
    attributes: Mapping[str, Any] = field(default_factory=dict)
    view_of: CustomView | None = None


@dataclass(frozen=True)
class LeafAlias:
    """Where a dense leaf of a forward value lies: in the memory of another tensor of the call.

    Attributes:
        value: the forward value that holds the other tensor; None for an input leaf.
        leaf: which leaf of that value, or of the inputs.
        delta: bytes from the start of the other tensor to the start of this one.
        same: it is that very tensor.
        counted: it shares the version counter of the other one.
        lazy: are its conjugate bit and its negative bit set?
    """

    value: int | None
    leaf: int
    delta: Any
    same: bool
    counted: bool = False
    lazy: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, eq=False)
class ValueAlias:
    """A forward value that shares memory with an input or with another value.

    Attributes:
        value: its number.
        spec: with the layout of its leaves.
        leaves: for each leaf the tensor whose memory it lies in, or None.
        holder: (input number, attribute names) when the value is a wrapper inside that input: the very object.
        within: it has a history, so that the memory is shared before autograd sees the value.
        version: of the value, which has a counter of its own.
    """

    value: int
    spec: Spec
    leaves: tuple[LeafAlias | None, ...]
    holder: tuple[int, tuple[str, ...]] | None = None
    within: bool = False
    version: int = 0


OutputPlan: TypeAlias = (
    ConstantOutput | SizeOutput | RaggedOutput | InputOutput | GradientOutput | SameOutput | ViewOutput | ValueOutput
)
