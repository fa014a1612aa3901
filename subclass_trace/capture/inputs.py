"""Inputs of a capture: real tensors become traced ones, over fake leaves that are graph inputs.

In: the distinct tensors of a call with their paths, and which sizes are dynamic. Out: `Inputs`.
Leaves are deduplicated by identity over all inputs, so ``TwoTensor(a, a)``, and a wrapper together
with its own inner tensor, need nothing else; leaves of one storage become fakes of one storage.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan.descriptors import Descriptor, Input, Size, leaves_of
from ..state.kinds import set_by_class
from ..state.place import Place
from ..subclass.flatten import flatten, guarded_spec, wrappers_inside
from ..subclass.paths import Path
from ..subclass.spec import Spec, WrapperSpec, leaf_paths, moved
from ..subclass.visit import rebuild
from ..torch_api.autograd import grad_dtype as torch_grad_dtype
from ..torch_api.kinds import is_fake, is_jagged_example
from ..torch_api.modes import no_modes
from ..torch_api.symbols import size_symbol
from .input_sizes import DynamicDims, SizeSymbols, traced_value
from .session import Session

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Argument:
    """One distinct tensor of a call.

    Attributes:
        position: where it stands among the flat arguments; of a gradient: where its owner does.
        place, kind: see `plan.descriptors.Input`.
        gradient_of: the number of the input whose ``.grad`` it is.
    """

    value: Tensor
    path: Path
    position: int
    place: Place | None = None
    kind: str = "argument"
    gradient_of: int | None = None

    @property
    def descriptor(self) -> Input:
        """What it is."""
        return Input(str(self.path), kind=self.kind, place=self.place)


@dataclass(frozen=True, eq=False)
class TracedInput:
    """One input: the real tensor's spec (with symbolic sizes), its leaves' graph inputs, and the
    traced value.

    ``own``: the Python attributes that its class sets by itself. ``grad_dtype``: see `InputPlan`.
    The rest: see `Argument`.
    """

    path: Path
    spec: Spec
    leaves: tuple[int, ...]
    is_leaf: bool
    traced: Tensor
    edge: Any  # gradient edge, or None when it does not require grad
    own: frozenset[str]
    grad_dtype: torch.dtype | None
    position: int
    gradient_of: int | None
    descriptor: Input


class Inputs:
    """The inputs of a capture, which grow while the function runs: its arguments first, then what
    its names lead to.

    Attributes:
        rows: one for each distinct tensor; ``before``: its state then, as ``remember`` tells it.
        leaf_values: the live fake of each dense leaf; ``originals``: the same as it came in, and
            stays so.
        leaf_paths, leaf_primals: where the leaves are, and the numbers of their graph inputs.
        sizes: number of a graph input -> the symbol that it is, for sizes that no dense leaf
            carries.
        inference_leaves: numbers of the leaves that are inference tensors; ``with_gradients``:
            inner ones that require grad.
    """

    def __init__(self, session: Session, remember: Callable[[Tensor], Any]) -> None:
        self.session, self.remember = session, remember
        self.rows: list[TracedInput] = []
        self.before: list[Any] = []
        self.leaf_values: list[Tensor] = []
        self.originals: list[Tensor] = []
        self.leaf_paths: list[Path] = []
        self.leaf_primals: list[int] = []
        self.sizes: dict[int, Any] = {}
        self.inference_leaves: set[int] = set()
        self.with_gradients: list[Tensor] = []
        self._leaf_of: dict[int, int] = {}  # id of a real leaf -> its number
        self._real_leaves: list[Tensor] = []  # so that an id stays what it is
        self._number_of_real: dict[int, int] = {}
        self._reals: list[Callable[[], Tensor | None]] = []
        self._number_of_traced: dict[int, int] = {}
        # wrappers inside of inputs, with where they are
        self._inside: dict[int, tuple[Tensor, Path]] = {}

    def add(self, arguments: Sequence[Argument], dynamic: DynamicDims) -> list[Tensor]:
        """Make graph inputs and traced values for tensors that are new: inside of
        ``session.modes()``, at any moment.

        Raises:
            ProtocolError: a class breaks the protocol.
        """
        session, first = self.session, len(self.rows)
        with session.untraced():
            places = [self._leaves(a, dynamic) for a in arguments]
            symbols = SizeSymbols(session, dynamic)
            with no_modes():
                specs = [
                    symbols.spec(a.value, spec, a.path, iter([self.originals[k] for k in own]))
                    for a, (spec, own) in zip(arguments, places, strict=True)
                ]
            self.bind_sizes(symbols.unbound(specs, self.originals))
            for argument, spec, (_, own) in zip(arguments, specs, places, strict=True):
                self._add_row(argument, spec, own)
                self._refuse_joined(argument.value)
        return [row.traced for row in self.rows[first:]]

    def bind_sizes(self, sizes: Sequence[Any]) -> None:
        """Symbols that no leaf carries (sizes, numbers of the call) are graph inputs."""
        known = {size_symbol(s) for s in self.sizes.values()}
        for size in sizes:
            if size_symbol(size) not in known:
                self.sizes[self.session.recorder.primal(size)] = size

    def _leaves(self, argument: Argument, dynamic: DynamicDims) -> tuple[Spec, tuple[int, ...]]:
        """The spec of a real tensor, and the numbers of its dense leaves, each of which is a graph
        input."""
        # real tensors: nothing here is part of the trace
        with torch.no_grad(), no_modes():
            leaves, spec = flatten(argument.value, argument.path)
            guarded_spec(spec, argument.path)  # refuses contexts that no guard could compare
            if self.session.device is not None:
                spec = moved(spec, torch.device("meta"), self.session.device)
            paths = map(Path, leaf_paths(spec, str(argument.path)))
            aliases = [t.detach() for t in leaves]
        places = []
        for leaf, alias, path in zip(leaves, aliases, paths, strict=True):
            if is_fake(leaf):
                raise UnsupportedError(
                    "a region was called with a FakeTensor",
                    code="fake-tensor",
                    path=path,
                    fix="call it with real tensors; to compile without weights, put them on meta "
                    "and say compile(..., device=)",
                )
            if id(leaf) not in self._leaf_of:
                self._leaf_of[id(leaf)] = len(self.originals)
                self._real_leaves.append(leaf)
                if leaf.is_inference():
                    self.inference_leaves.add(len(self.originals))
                fake = self.session.fake(alias, str(path), dynamic.sizes(path, leaf))
                self.originals.append(fake)
                self.leaf_paths.append(path)
                self.leaf_primals.append(self.session.recorder.primal(fake))
                self.leaf_values.append(self.session.tracked(fake))
                self.session.recorder.adopt(leaf, self.leaf_values[-1])
                if leaf.requires_grad and leaf is not argument.value:
                    self.with_gradients.append(self.leaf_values[-1].requires_grad_())
            places.append(self._leaf_of[id(leaf)])
        return spec, tuple(places)

    def _add_row(self, argument: Argument, spec: Spec, leaves: tuple[int, ...]) -> None:
        real, number = argument.value, len(self.rows)
        # In inference mode too, a view of an input is as the input is.
        inference = torch.is_inference_mode_enabled() and real.is_inference()
        with torch.no_grad(), no_modes():
            dtype = torch_grad_dtype(real)
        values = [self.leaf_values[k] for k in leaves]
        traced = traced_value(self.session, spec, values, argument.path, inference, dtype)
        own = set_by_class(traced) if hasattr(traced, "__dict__") else frozenset()
        if isinstance(real, torch.nn.Parameter):
            traced.__dict__["_is_param"] = True
        edge = torch.autograd.graph.get_gradient_edge(traced) if traced.requires_grad else None
        rest = own, dtype, argument.position, argument.gradient_of, argument.descriptor
        row = TracedInput(argument.path, spec, leaves, real.is_leaf, traced, edge, *rest)
        self.rows.append(row)
        if isinstance(spec, WrapperSpec):
            self.session.wrappers.append((argument.path, traced))
        self.before.append(self.remember(traced))
        # torch swaps no tensor (``module.to``) that a capture holds
        self._reals.append(weakref.ref(real))
        self._number_of_real[id(real)] = self._number_of_traced[id(traced)] = number

    def _refuse_joined(self, real: Tensor) -> None:
        """An input that is inside of another one would be two tensors of the trace; but where
        autograd tracks it, it is."""
        row = self.rows[-1]
        for names, inner in wrappers_inside(real) if isinstance(row.spec, WrapperSpec) else ():
            self._inside[id(inner)] = inner, row.path.attr(".".join(names))
            if id(inner) in self._number_of_real:
                _refuse_joined(inner, self._inside[id(inner)][1])
        if id(real) in self._inside:
            _refuse_joined(*self._inside[id(real)])

    def describe(self) -> tuple[Descriptor, ...]:
        """What each graph input is, in their order; each placeholder has it as well."""
        found: dict[int, list[Input]] = {}
        for row in self.rows:
            for k, leaf in zip(row.leaves, leaves_of([row.descriptor], [row.spec]), strict=True):
                found.setdefault(self.leaf_primals[k], []).append(leaf)
        described: dict[int, Descriptor] = {n: Size(str(size)) for n, size in self.sizes.items()}
        described |= {n: replace(first, also=tuple(rest)) for n, (first, *rest) in found.items()}
        for number, node in enumerate(self.session.recorder.graph.find_nodes(op="placeholder")):
            node.meta["descriptor"] = described[number]
        return tuple(described[n] for n in sorted(described))

    # ---- looking up
    def number_of(self, traced: Any) -> int | None:
        """The number of the input that this tensor stands for, if it is one."""
        return self._number_of_traced.get(id(traced))

    def real(self, number: int) -> Tensor | None:
        """The tensor of the call that is captured, while it is alive and the capture is not
        done."""
        return self._reals[number]()

    def real_leaf(self, number: int) -> Tensor:
        """The dense tensor of the call that a leaf stands for, while the capture is not done."""
        return self._real_leaves[number]

    def row_of(self, traced: Any) -> TracedInput | None:
        """The input that this tensor stands for, if it is one."""
        number = self.number_of(traced)
        return None if number is None else self.rows[number]

    def of_real(self, real: Any) -> TracedInput | None:
        """The input that is this very tensor of the call."""
        number = self._number_of_real.get(id(real))
        return self.rows[number] if number is not None and self.real(number) is real else None

    def forget(self) -> None:
        """From now on nothing leads to the tensors of the call."""
        self._leaf_of, self._real_leaves, self._number_of_real, self._inside = {}, [], {}, {}
        self.session.recorder.forget_inputs()
        self._reals = [lambda: None] * len(self.rows)


def _refuse_joined(inner: Tensor, path: Path) -> None:
    if not inner.requires_grad:
        raise UnsupportedError(
            "a wrapper is an input, and is inside of another input",
            code="wrapper-in-wrapper",
            path=path,
            fix="take the inner one from the outer one inside of the region",
        )


# ---- stand-ins
#: what is asked of a real tensor itself
_OWN = frozenset(
    {
        "__get__",
        "__set__",
        "__delete__",
        "__hash__",
        "__repr__",
        "__format__",
        "__deepcopy__",
        "__reduce_ex__",
    }
)


class StandIns:
    """The traced tensors for real ones, in one capture.

    They are put where names lead (`state`), but a real tensor may be met otherwise: an object of C,
    the constructor of a class. It is known by identity. One that no source holds is refused, by the
    recorder: the graph would have it for ever.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.recorder, self.inputs = inputs.session.recorder, inputs

    def swap(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a call, with stand-ins for real tensors."""
        if getattr(func, "__name__", "") in _OWN:
            return args, kwargs
        return tuple(map(self.swapped, args)), {k: self.swapped(v) for k, v in kwargs.items()}

    def swapped(self, value: Any) -> Any:
        """The stand-in for a real tensor, also inside of lists and tuples; anything else itself."""
        if isinstance(value, Tensor):
            traced = self.known(value)
            return self._constant(value) if traced is value and is_jagged_example(value) else traced
        return type(value)(map(self.swapped, value)) if type(value) in (list, tuple) else value

    def known(self, value: Any) -> Any:
        """The traced tensor for a real one that is an input, or the value itself."""
        row = self.inputs.of_real(value) if isinstance(value, Tensor) else None
        return value if row is None else row.traced

    def _constant(self, real: Tensor) -> Tensor:
        """A jagged tensor that torch itself holds, and of which it reads the class alone."""
        with torch.no_grad(), no_modes():
            leaves, spec = flatten(real)
        assert isinstance(spec, WrapperSpec)
        size: Any = self.recorder.symbols.ragged_sizes(spec.size)
        spec = replace(spec, size=size)
        with torch.no_grad():
            traced: Tensor = rebuild(spec, iter([self.recorder.constant(t) for t in leaves]))
        return traced
