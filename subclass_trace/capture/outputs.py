"""What each output of the user function is, read off the live tensors: docs/notes/views.md explains
the kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from ..errors import UnsupportedError
from ..plan import (
    ConstantOutput,
    InputOutput,
    OutputPlan,
    SameOutput,
    SharedLeaf,
    SizeOutput,
    ValueOutput,
    ViewOutput,
    ViewStep,
    gradient_of,
)
from ..subclass.attributes import attributes_of_wrapper
from ..subclass.context import is_copied, is_fixed, parts_of, same_context
from ..subclass.flatten import flatten, leaves_of, wrappers_inside
from ..subclass.paths import Path
from ..subclass.protocol import Kind, is_traceable, kind_of, refuse
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, is_ragged
from ..subclass.visit import rebuild
from ..torch_api.autograd import (
    is_custom_node,
    is_multi_output_view,
    is_reached,
    is_tracked_view,
    view_function,
)
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS, quiet_fake_errors
from ..torch_api.kinds import SYM_TYPES, is_fake, storage_ref
from ..torch_api.modes import without_tracing
from ..torch_api.symbols import is_data_dependent, unbound_symbols_set_aside
from ..torch_api.wrappers import context_shortcut
from .aliasing import one_storage
from .inputs import Inputs
from .mutation import places, same_but_for_grad
from .recorder import Recorder

Tensor = torch.Tensor


class OutputClassifier:
    """Classifies outputs one by one; ``emit`` adds a live tensor to the forward values and returns
    its number."""

    def __init__(
        self,
        inputs: Inputs,
        handed: Sequence[Any],
        recorder: Recorder,
        emit: Callable[[Tensor], int],
    ) -> None:
        self.inputs, self.recorder, self.emit = inputs, recorder, emit
        self.sizes: list[Any] = []
        self.unbacked: dict[Any, int] = {}
        self._position_of = {
            id(t): k for k, t in reversed(list(enumerate(handed))) if isinstance(t, Tensor)
        }
        self._edges = {id(i.traced): i.edge.node for i in inputs.rows if i.edge is not None}
        self._emitted: dict[int, int] = {}
        self._result_of: dict[int, int] = {}
        self._count = 0

    def classify(self, o: Any) -> OutputPlan:
        """The plan of one output. Call it for the outputs in order."""
        plan = self._classify(o)
        if isinstance(plan, (ViewOutput, ValueOutput)):
            self._result_of[id(o)] = self._count
        self._count += 1
        return plan

    def _classify(self, o: Any) -> OutputPlan:
        if is_ragged(o):
            raise UnsupportedError(
                "a result is the ragged size of a jagged tensor",
                code="ragged-result",
                fix="return the tensor, or its offsets",
            )
        if isinstance(o, SYM_TYPES):
            self.sizes.append(o)
            return SizeOutput(len(self.sizes) - 1)
        if not isinstance(o, Tensor) or not self._is_traced(o):
            return ConstantOutput(o)
        if self.inputs.session.materialise:
            return ValueOutput(self._emit_once(o), flatten(o)[1])
        if id(o) in self._position_of:
            return InputOutput(self._position_of[id(o)])
        if self.inputs.number_of(o) is not None:
            raise UnsupportedError(
                "a result is the .grad of a tensor from outside",
                code="grad-as-result",
                path=self._path,
                fix="return a clone of it",
            )
        if id(o) in self._result_of:
            return SameOutput(self._result_of[id(o)])
        self._check_usable(o)
        self._refuse_kept_gradient(o)
        self._refuse_own_leaf(o)
        return self._made_inside(o)

    def _made_inside(self, o: Tensor) -> OutputPlan:
        """A tensor that the region makes: a value, or a view of one, or of an input."""
        base = o._base
        leaves, spec = flatten(o)
        self.recorder.memory.refuse_lent(leaves, self.recorder.user_line)
        # (What a wrapper shares with another one moves their version counters alike: so such a
        # Parameter runs eagerly.)
        dense = base is None and not is_traceable(o)
        parameter = dense and not o.requires_grad and vars(o).get("_is_param") is True
        self._check_attributes(o, leaves, spec, "_is_param" if parameter else "")
        if parameter:
            return ValueOutput(self._emit_once(o), spec, parameter=True)
        if base is None or not self._is_made_of(o, base, leaves):
            return ValueOutput(
                self._emit_once(o), spec, protected=base is not None and o.grad_fn is not None
            )
        return self._view(o, base, spec)

    def _check_usable(self, o: Tensor) -> None:
        """Raise where autograd lets nobody use a result: a member of a split whose base was written
        since."""
        try:
            o.grad_fn  # noqa: B018
        except RuntimeError as error:
            got = str(error).split(".")[0]
            raise UnsupportedError(
                "a result is a view that autograd does not let be used",
                code="view-as-result",
                path=self._path,
                got=got,
            ) from error

    def _refuse_kept_gradient(self, o: Tensor) -> None:
        set_inside = any(id(t) in self.recorder.met.graded for t in (o, o._base))
        if o.retains_grad or set_inside or gradient_of(o) is not None:
            raise UnsupportedError(
                "the region calls retain_grad() on a result, or sets its .grad: its gradient "
                "inside of the region",
                code="gradient-kept-on-result",
                path=self._path,
                fix="do so with the result, outside of the region, and compute the rest from "
                "that result",
            )

    def need(self, sizes: Iterable[Any]) -> None:
        """The run time needs these numbers: symbols of data-dependent ones become size outputs."""
        for n in sizes if self.recorder.symbols.data_dependent else ():
            for symbol, value in self.recorder.symbols.data_dependent_parts(n):
                if symbol not in self.unbacked:
                    self.unbacked[symbol] = len(self.sizes)
                    self.sizes.append(value)

    @property
    def _path(self) -> Path:
        return Path("result").item(self._count)

    # ---- views
    def _is_made_of(self, o: Tensor, base: Tensor, leaves: Sequence[Tensor]) -> bool:
        """Can ``o`` be replayed on its base, with the history that it has? Else what the graph
        computes is handed out."""
        storages = {storage_ref(t) for t in leaves_of(base) if t.layout is torch.strided}
        if any(t.layout is torch.strided and storage_ref(t) not in storages for t in leaves):
            return False  # its data was set, or the class has gathered what it shows
        # autograd's function of such a view holds the traced offsets
        if o.is_nested and not base.is_nested:
            return False
        if o.grad_fn is None:
            return True
        if is_traceable(o) and is_multi_output_view(o):
            # each made by itself has a node that fills in zeros for the others, which some classes
            # do not take
            return False
        return self._leads_to(o, base)

    def _leads_to(self, o: Tensor, base: Tensor) -> bool:
        """Does the history of ``o`` lead to its base, past no ``autograd.Function`` of the user's?

        Raises:
            UnsupportedError: it leads elsewhere, as where a view of a view was made under no_grad,
                or past hooks.
        """
        ends = {base.grad_fn, self._edges.get(id(base))} - {None}
        todo, seen, found = [o.grad_fn], set(), False
        while todo:
            node = todo.pop()
            if node in ends or getattr(node, "variable", None) is base:
                found = True
            elif node in self.recorder.met.hooked:
                raise UnsupportedError(
                    "a result is a view of a view with hooks, which would not run",
                    code="view-as-result",
                    path=self._path,
                )
            elif is_custom_node(node):
                return False
            elif node not in seen:
                seen.add(node)
                following = node.next_functions  # type: ignore[union-attr]
                todo.extend(n for n, _ in following if n is not None)
        if not found:
            raise self._refused_view(o)
        return True

    def _view(self, o: Tensor, base: Tensor, spec: Spec) -> OutputPlan:
        number, way = self.inputs.number_of(base), view_function(o)
        sizes: list[Any] = []
        if o._backward_hooks:
            raise UnsupportedError(
                "a result is a view with hooks, which would not see its gradient",
                code="view-as-result",
                path=self._path,
            )
        moved = o.grad_fn is None and base.requires_grad and is_tracked_view(o)
        gives = not moved and self._gives(way, base, spec, sizes)
        if not gives or any(map(_is_unknown, sizes)):
            raise self._refused_view(o)
        if number is None:
            self._check_attributes(base, *flatten(base))
        place = self._emit_once(base) if number is None else number
        # as a whole, until the plan is made: its symbols may become numbers
        steps = (ViewStep(way),)
        return ViewOutput(place, number is not None, steps, o.grad_fn is not None, spec)

    def _gives(
        self, way: Callable[..., Tensor], base: Tensor, spec: Spec, sizes: list[Any]
    ) -> bool:
        """Does ``way`` make such a view of ``base`` as that is now? Shapes and contexts may have
        changed since.

        It is tried on fresh aliases, of which the graph has nothing. ``sizes`` gets what it asks
        for, if numbers from inside tensors may be among that.
        """

        def note(n: Any) -> Any:
            sizes.append(n)
            return n

        asks = {"symint_visitor_fn": note} if self.recorder.symbols.data_dependent else {}
        aside = unbound_symbols_set_aside(self.recorder.mode.shape_env)
        with aside, without_tracing(), quiet_fake_errors(), torch.no_grad():
            leaves, base_spec = flatten(base)
            fresh = rebuild(base_spec, iter([self.recorder.bare(leaf) for leaf in leaves]))
            try:
                made = flatten(
                    way(fresh.requires_grad_(False) if fresh.requires_grad else fresh, **asks)
                )[1]
            except (
                RuntimeError,
                IndexError,
                ValueError,
                NotImplementedError,
                *DATA_DEPENDENT_ERRORS,
            ):
                return False
        # fresh offsets have a ragged size of their own
        if base.is_nested or any(map(_is_unknown, sizes)):
            return True
        return (
            type(made) is type(spec)
            and places(made) == places(spec)
            and same_but_for_grad(made, spec)
        )

    def _refused_view(self, view: Tensor) -> UnsupportedError:
        return UnsupportedError(
            "a result is a view that cannot be replayed on its base",
            code="view-as-result",
            path=self._path,
            got=f"a view of shape {tuple(view.shape)}",
            fix="return a clone of it",
        )

    # ---- values
    def _emit_once(self, t: Tensor) -> int:
        if id(t) not in self._emitted:
            self._refuse_own_leaf(t)
            self._emitted[id(t)] = self.emit(t)
        return self._emitted[id(t)]

    def _refuse_own_leaf(self, t: Tensor) -> None:
        # A view that was made under no_grad may say so as its base does. (No operation is issued on
        # a wrapper.)
        as_base = t._base is not None and t._base.requires_grad
        own = t.requires_grad and t.grad_fn is None
        if own and (not as_base if is_traceable(t) else is_reached(t)):
            raise UnsupportedError(
                "the region makes an autograd leaf, and returns it",
                code="leaf-made-inside" if t._base is None else "leaf-of-a-view",
                got=f"requires_grad_() on a tensor of shape {tuple(t.shape)}",
                fix="call requires_grad_() on the result",
            )

    def _check_attributes(
        self, o: Tensor, leaves: Sequence[Tensor], spec: Spec, known_as: str = ""
    ) -> None:
        """A call makes a value of its inner tensors and its context, but for one attribute.

        Raises:
            UnsupportedError: the region has set other attributes of it, which a fresh one would
                not have.
        """

        def fresh() -> dict[str, Any]:
            with without_tracing(), torch.no_grad():
                made = (
                    rebuild(spec, iter(leaves))
                    if isinstance(spec, WrapperSpec)
                    else self.recorder.bare(o)
                )
            return attributes_of_wrapper(made, spec)

        known = fresh()
        for name, value in attributes_of_wrapper(o, spec).items():
            if name == known_as:
                continue
            if name in known and not _is_another(value, known[name]):
                continue
            if name in known and _is_another(known[name], fresh()[name]):
                continue  # the class makes another one for each wrapper
            raise UnsupportedError(
                "the region sets an attribute of a result, or makes an nn.Parameter of what "
                "is shown elsewhere",
                code="attributes-of-result",
                path=self._path.attr(name),
                fix="set it on the result, outside of the region",
            )

    def _is_traced(self, o: Tensor) -> bool:
        if kind_of(type(o)) is Kind.REFUSED and any(map(is_fake, vars(o).values())):
            raise refuse(o, Path("result"))
        if not is_traceable(o):
            return is_fake(o)
        leaves = leaves_of(o)
        return not leaves or any(map(is_fake, leaves))


def _is_unknown(n: Any) -> bool:
    return isinstance(n, torch.SymInt) and is_data_dependent(n)


def _is_another(value: Any, known: Any) -> bool:
    """Do two attributes differ, one of which is a number or a string? Other objects a class may
    rebuild each time."""
    if isinstance(known, (Tensor, *SYM_TYPES)) or not (is_fixed(value) or is_fixed(known)):
        return isinstance(value, Tensor) and not isinstance(known, Tensor)
    return not same_context(value, known)


def shared_leaves(
    values: Sequence[Tensor], contents: Collection[int], inputs: Inputs, recorder: Recorder
) -> dict[int, SharedLeaf]:
    """Place among the leaves of the forward values -> the tensor of the call that it is, or shares
    its memory with.

    Autograd knows nothing of memory that is shared through ``detach()``, an inner tensor, or a
    wrapper that the region makes of tensors that it has. Where nothing is written, what the graph
    returns lies in that memory already.

    Args:
        contents: numbers of the values that are new contents of inputs.

    Raises:
        UnsupportedError: the region writes to memory that such a result shows in part.
    """
    inside = {id(wrapper) for row in inputs.rows for _, wrapper in wrappers_inside(row.traced)}
    leaf_of = {id(t): k for k, t in enumerate(inputs.leaf_values)}
    # in any part: the graph recomputes all of it
    written = recorder.memory.storages
    found: dict[int, SharedLeaf] = {}
    first: dict[int, int] = {}
    place = 0
    for number, value in enumerate(values):
        leaves, spec = flatten(value)
        if number not in contents and id(value) in inside:
            raise UnsupportedError(
                "a result is a wrapper that is inside of an input",
                code="wrapper-in-wrapper",
                fix="take it out of the input outside",
            )
        for k, t in enumerate(leaves, place):
            if number in contents:
                continue
            if id(t) in leaf_of:
                found[k] = SharedLeaf("input", leaf_of[id(t)])
            elif isinstance(spec, WrapperSpec) and id(t) in first:
                found[k] = SharedLeaf("value", first[id(t)])
            elif t.layout is torch.strided and storage_ref(t) in written:
                others = [n for n, leaf in enumerate(inputs.leaf_values) if one_storage(leaf, t)]
                whole = [n for n in others if _same_elements(inputs.originals[n], t)]
                if whole:  # `detach()` counts versions with it, `data` alone
                    together = t._version == inputs.leaf_values[whole[0]]._version
                    found[k] = SharedLeaf("detach()" if together else "data", whole[0])
                elif others:
                    raise UnsupportedError(
                        "a result shares memory with an input that the region writes, and "
                        "autograd does not know",
                        code="shared-memory-written",
                        path=Path("result").item(number),
                        fix="return a clone",
                    )
            if not isinstance(spec, LeafSpec):
                first.setdefault(id(t), k)
        place += len(leaves)
    return found


def _same_elements(a: Tensor, b: Tensor) -> bool:
    """Do two tensors in one storage show the same, in the same way?"""
    layouts = [(t.shape, t.stride(), t.storage_offset(), t.dtype) for t in (a, b)]
    return layouts[0] == layouts[1]


def refuse_handed_on(values: Sequence[Tensor], contents: Collection[int], inputs: Inputs) -> None:
    """A class may hand what its context holds on to its results (``cls(out, x.config)``): what
    changes one changes the other.

    Raises:
        UnsupportedError: a result has a list, dict, array or dataclass that is in the context of an
            input.
    """
    specs = [flatten(row.traced)[1] for row in inputs.rows]  # kept, so that ids stay theirs
    held = {id(o) for spec in specs for o in _objects(spec)}
    for number, value in enumerate(values if held else ()):
        if number not in contents and any(id(o) in held for o in _objects(flatten(value)[1])):
            raise UnsupportedError(
                "the context of a result holds an object of that of an input, which can be "
                "changed in place",
                code="context-shared",
                path=Path("result").item(number),
                fix="make it immutable (@dataclass(frozen=True)), or let the class copy it",
            )


def _objects(spec: Spec) -> list[Any]:
    """What can be changed in place of the contexts of a wrapper, and of those inside of it."""
    if not isinstance(spec, WrapperSpec):
        return []
    found: list[Any] = [] if context_shortcut(spec.cls) is not None else [spec.context]
    for value in found:
        found += parts_of(value)
    return [o for o in found if is_copied(o)] + [
        o for inner in spec.inners for o in _objects(inner)
    ]
