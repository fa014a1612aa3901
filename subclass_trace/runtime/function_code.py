"""Generated ``autograd.Function`` of one specialization: straight-line forward and backward.

The backward serves the tangents that the first backward was traced for; every other case (another type or context, a
missing tangent, double backward) goes to `function.run_backward`, as does the first call, which arms the fast path with
a tensor guard made from tangents that really came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from .. import torch_api
from ..plan import Plan
from ..subclass.flatten import flatten, leaves_of
from ..subclass.spec import Spec, WrapperSpec, leaf_count, spec_leaves
from ..subclass.template import Examples
from .backward import CompiledBackward
from .emit import (
    NotGenerated,
    Unwrapper,
    Wrapper,
    detached_outputs,
    dynamic_checks,
    expression_code,
    sizes_code,
    wrapped,
)
from .function import check_watched, edges, let_go, run_backward, saved_of, watch, written_since
from .guards import Ambient
from .rebuild import fit_strides, is_lazy
from .reference import Program
from .sizes import Env
from .source import Source
from .tangent_sizes import matches

Tensor = torch.Tensor


def needs_extra(plan: Plan) -> bool:
    """Does `apply` take ``extra``, the list ``[env, watched inputs, None]`` whose last item receives the sizes?"""
    return bool(plan.symbols or plan.lent or plan.watched_beside or plan.size_outputs)


#: how many sets of tangents get a straight-line backward of their own, beside those that came first
MOST_PATHS = 4


class FastPath:
    """Whether the generated code of one backward may run: ``check`` compares the tangents and their inner tensors.

    ``same``: for each tangent the place of an earlier one that is the same tensor, or None (the loss is a sum of results).
    """

    def __init__(self, entry: CompiledBackward | None, same: Sequence[int | None] = ()) -> None:
        self.entry, self.same = entry, tuple(same)
        self.expected = () if entry is None else entry.tangents
        self.check: Callable[..., bool] | None = None

    def arm(self, tangents: Sequence[Tensor | None], env: Env) -> None:
        """From now on it serves tangents like these, if they are of the kind that it is for."""
        rows: list[tuple[Tensor, Spec]] = []
        if len(tangents) != len(self.expected):
            return
        for k, (t, spec) in enumerate(zip(tangents, self.expected, strict=True)):
            if (t is None and spec is None) or (self.same and self.same[k] is not None):
                continue
            if t is None or spec is None or t.requires_grad or not matches(spec, flatten(t)[1], env):
                return
            rows.append((t, spec))
            if isinstance(spec, WrapperSpec):
                rows += zip(leaves_of(t), spec_leaves(spec), strict=True)
        if len({id(t) for t, _ in rows}) != len(rows):
            return
        sizes = [[n if type(n) is int else None for n in s.size] for _, s in rows]  # type: ignore[union-attr]
        self.check = torch_api.tensor_guard([t for t, _ in rows], sizes, [[None] * t.dim() for t, _ in rows])


class FastBackward(FastPath):
    """The straight-line backwards of one specialization.

    The generated method serves tangents of the kind that the first backward was traced for. Others that come twice (an
    absent one, one that comes for two results) get a function of their own in ``others``.
    """

    def __init__(self, program: Program, use_cpp: bool, write: Callable[[FastPath], Callable[..., Any] | None]) -> None:
        assert program.backwards is not None
        compiled = program.backwards.compiled
        super().__init__(compiled[0] if compiled else None)
        self.program, self.use_cpp, self.write = program, use_cpp, write
        self.others: tuple[Callable[..., Any], ...] = ()
        self._seen: set[Any] = set()

    def slow(self, ctx: Any, saved: list[Any], grads: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """The general backward; arms a fast one when these are tangents that it can be made for."""
        for other in self.others:
            found = other(ctx, saved, *grads)
            if found is not None:
                return found  # type: ignore[no-any-return]
        plan, backwards = self.program.plan, self.program.backwards
        assert backwards is not None
        values = saved[::-1]
        saved.clear()
        numbers = getattr(ctx, "numbers", None) or (None,) * len(plan.saved)
        named = {row.name: values.pop() if row.is_tensor else n for row, n in zip(plan.saved, numbers, strict=True)}
        tangents = [grads[k] for k in plan.differentiable]
        result = run_backward(backwards, ctx, named, tangents)
        if self.use_cpp and not torch.is_grad_enabled() and not any(map(_is_odd, tangents)):
            self._arm_for(tangents, getattr(ctx, "env", None) or {})
        return (None, None, *result) if needs_extra(plan) else (None, *result)

    def _arm_for(self, tangents: Sequence[Tensor | None], env: Env) -> None:
        assert self.program.backwards is not None
        entry = self.program.backwards.served([None if t is None else flatten(t)[1] for t in tangents], env)
        if entry is None or len(self._seen) >= 4 * MOST_PATHS:
            return
        if entry is self.entry and self.check is None:
            self.arm(tangents, env)
            if self.check is not None:
                return
        same = _same_objects(tangents)
        key = (id(entry), same)
        if key in self._seen and len(self.others) < MOST_PATHS:
            path = FastPath(entry, same)
            path.arm(tangents, env)
            written = None if path.check is None else self.write(path)
            self.others = self.others if written is None else (*self.others, written)
        self._seen.add(key)


class FunctionEmitter:
    """Writes the two methods and makes the class."""

    def __init__(
        self, program: Program, ambient: Ambient, examples: Examples, use_cpp: bool, left_out: Collection[int] = ()
    ) -> None:
        """``left_out``: values that nobody asks for; the Function returns None for them."""
        assert program.backwards is not None
        self.program, self.plan, self.ambient, self.examples = program, program.plan, ambient, examples
        self.use_cpp, self.left_out = use_cpp, left_out
        self.dynamic = bool(self.plan.symbols)
        self._nones = "None, None, " if needs_extra(self.plan) else "None, "

    def emit(self) -> type[torch.autograd.Function]:
        """The Function: ``apply(graph inputs, extra, *differentiated inputs)``; ``extra`` as in `needs_extra`."""
        # It holds this emitter, to write more; so this one does not hold it.
        fast = FastBackward(self.program, self.use_cpp, self._other)
        forward, backward = self._forward(), self._backward(fast)
        members: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        members["program"] = self.program  # compiled autograd finds the backward graph there
        function = type("RegionFunction", (torch.autograd.Function,), members)
        torch_api.call_backward_directly(function)
        return function

    # ---------------------------------------------------------------- forward
    def _forward(self) -> Callable[..., Any]:
        s, plan = Source(), self.plan
        s.bind("graph", self.program.forward)
        s.line(f"def forward(ctx, p, {'extra, ' if needs_extra(plan) else ''}*inputs):")
        s.depth = 1
        if self.ambient.autocast:
            s.bind("no_autocast", torch_api.disable_autocast)
            s.line("with no_autocast(): o = graph(p)")
        else:
            s.line("o = graph(p)")
        symbols: dict[Any, str] = {}
        if self.dynamic:
            s.line("env = extra[0]")
            for row in plan.symbols:
                symbols[row.symbol] = str(row.symbol)
                s.line(f"{row.symbol} = env[{s.constant(row.symbol, 'symbol')}]")
        count = plan.forward_leaves
        flat = detached_outputs(s, plan, count, self.left_out)
        self._save(s, count + plan.size_outputs)
        if plan.size_outputs:
            s.line(f"extra[2] = o[{count}:{count + plan.size_outputs}]")
        s.line(f"ctx.edges = {s.bind('edges', edges)}(inputs)")
        if self.dynamic:
            s.line("ctx.env = extra[0]")
        wrapper = Wrapper(s, self.examples, symbols, lambda mark: f"extra[0][{s.constant(mark, 'lent')}]")
        values = wrapped(wrapper, plan.values, iter(flat), self.left_out)
        fixed = [f"v{k}" for k in range(len(values)) if k not in plan.differentiable and k not in self.left_out]
        for k, value in enumerate(values):
            if value != f"v{k}" and k not in self.left_out:
                s.line(f"v{k} = {value}")
        self._watch(s)
        s.line("ctx.set_materialize_grads(False)")
        if fixed:
            s.line(f"ctx.mark_non_differentiable({', '.join(fixed)})")
        names = ["None" if k in self.left_out else f"v{k}" for k in range(len(values))]
        s.line(f"return {names[0]}" if len(names) == 1 else f"return {', '.join(names)}")
        return s.build("forward", "forward")

    def _save(self, s: Source, first: int) -> None:
        """Keep the saved activations, as `function.save` does it: see Note [What is saved]."""
        plan = self.plan
        places = [k for k, row in enumerate(plan.saved) if row.is_tensor]
        tensors = [f"o[{first + k}]" for k in places]
        if len(tensors) != len(plan.saved):
            numbers = ["None" if row.is_tensor else f"o[{first + k}]" for k, row in enumerate(plan.saved)]
            s.line(f"ctx.numbers = ({_tuple(numbers)})")
        if not tensors:
            s.line("ctx.saved = []")
            return
        kept = [f"{t}.detach()" if k in plan.saved_results else t for k, t in zip(places, tensors, strict=True)]
        s.bind("saved_tensor_hooks_active", torch_api.saved_tensor_hooks_active)
        s.line("ctx.saved = None")
        s.line("if not saved_tensor_hooks_active():")
        s.line("    try:")
        s.line(f"        ctx.versions = ({_versions(tensors)})")
        s.line(f"        ctx.saved = [{', '.join(kept)}]")
        s.line("    except (RuntimeError, AttributeError): pass  # an inference tensor, or None from a kernel")
        s.line(f"if ctx.saved is None: ctx.save_for_backward({', '.join(tensors)})")

    def _watch(self, s: Source) -> None:
        """Note the versions of wrappers of which a leaf is saved."""
        plan = self.plan
        place = {number: f"inputs[{k}]" for k, number in enumerate(plan.differentiated)}
        place |= {number: f"extra[1][{k}]" for k, number in enumerate(plan.watched_beside)}
        names = [place[i] for i in plan.watched_inputs]
        names += [f"v{k}" for k in plan.watched_values if k not in self.left_out]
        s.line(f"ctx.watched = {s.bind('watch', watch)}(({_tuple(names)}))" if names else "ctx.watched = ()")

    def _unsave(self, s: Source) -> None:
        """``saved``: the saved activations as a list, compared with the forward's versions and released."""
        plan = self.plan
        count = sum(row.is_tensor for row in plan.saved)
        if not count:
            s.line("saved = []")
            return
        names, known = [f"saved[{k}]" for k in range(count)], s.constant(plan, "plan")
        s.bind("keeps", torch_api.keeps_graph_now)
        s.line("saved = ctx.saved")
        s.line(f"if saved is None: saved = {s.bind('saved_of', saved_of)}(ctx, {known})")
        s.line("else:")
        s.line(
            f"    if ({_versions(names)}) != ctx.versions: raise {s.bind('written_since', written_since)}(ctx, {known})"
        )
        s.line(f"    if ctx.watched: {s.bind('check_watched', check_watched)}(ctx)")
        s.line("    if keeps(): saved = [*saved]")
        s.line(f"    else: {s.bind('let_go', let_go)}(ctx)  # a second backward is for saved_tensors to refuse")

    # ---------------------------------------------------------------- backward
    def _backward(self, fast: FastBackward) -> Callable[..., Any]:
        s = Source()
        s.bind("fast", fast)
        names = [f"g{k}" for k in range(len(self.plan.values))]
        s.line(f"def backward(ctx, {', '.join(names)}):")
        s.depth = 1
        self._unsave(s)
        slow = f"return fast.slow(ctx, saved, ({''.join(f'{n}, ' for n in names)}))"
        assert self.program.backwards is not None
        prologue = len(s.lines)
        if not self.program.backwards.compiled:
            s.line(slow)
        else:
            try:
                self._fast_path(s, self.program.backwards.compiled[0], slow)
            except NotGenerated:
                del s.lines[prologue:]
                s.depth = 1
                s.line(slow)
        return s.build("backward", "backward")

    def _other(self, path: FastPath) -> Callable[..., Any] | None:
        """``(ctx, saved, *tangents)`` -> gradients, or None where the tangents are not of this kind."""
        s = Source()
        s.bind("fast", path)
        s.line(f"def backward(ctx, saved, {', '.join(f'g{k}' for k in range(len(self.plan.values)))}):")
        s.depth = 1
        assert path.entry is not None
        try:
            self._fast_path(s, path.entry, "return None", path.same)
        except NotGenerated:
            return None
        return s.build("backward", "backward")

    def _fast_path(self, s: Source, entry: CompiledBackward, slow: str, same: Sequence[int | None] = ()) -> None:
        symbols = self._conditions(s, entry, slow)
        unwrapper = Unwrapper(s, slow)
        tangents = [(f"g{k}", t) for k, t in zip(self.plan.differentiable, entry.tangents, strict=True)]
        unwrapper.shortcut_value = _shortcut_of({g: t for g, t in tangents if t is not None}, self.examples)
        leaves: list[str] = []
        s.line("try:")
        s.depth = 2
        for name, spec in tangents:
            if spec is None:
                s.line(f"if {name} is not None: {slow}")
            else:
                leaves += unwrapper.unwrap(name, spec)
        s.line("pass")
        s.depth = 1
        s.line(f"except AttributeError: {slow}")
        first = {k: place for k, place in enumerate(same) if place is not None}
        for k, place in first.items():
            s.line(f"if {tangents[k][0]} is not {tangents[place][0]}: {slow}")
        checks = [f"check({', '.join(self._checked(entry.tangents, leaves, first))})"]
        for name, spec in unwrapper.checks.tensors:
            checks += dynamic_checks(name, spec, symbols, strides=False)
        s.line(f"if not ({' and '.join(checks)}): {slow}")
        # Under names of their own: a dense leaf may be brought to other strides, and its name goes before the graph runs.
        handed = {source: f"h{k}" for k, source in enumerate(entry.passed) if source and source[0] == "tangent"}
        for (_, place), name in handed.items():
            s.line(f"{name} = {self._tangent_names()[place]}")
        self._fit(s, entry, leaves, symbols)
        args = self._arguments(entry, leaves, symbols)
        s.line(f"p = [{', '.join(args)}]")
        s.line("saved.clear()")  # who called may hold the list
        s.line(f"del saved{''.join(f', {n}' for n in dict.fromkeys([*leaves, *self._tangent_names()]))}")
        s.bind("graph", entry.call)
        s.line("r = graph(p)")
        parts = iter([f"r[{k}]" for k in range(sum(leaf_count(g) for g in entry.grads if g is not None))])
        wrapper = Wrapper(s, self.examples, symbols)
        grads: list[str] = []
        for made, source in zip(entry.grads, entry.passed, strict=True):
            own = [next(parts) for _ in range(0 if made is None else leaf_count(made))]
            if source is not None:
                grads.append(grads[source[1]] if source[0] == "gradient" else handed[source])
            else:
                grads.append("None" if made is None else wrapper.wrap(made, iter(own)))
        s.line(f"return {self._nones}{''.join(f'{g}, ' for g in grads)}")

    def _conditions(self, s: Source, entry: CompiledBackward, slow: str) -> dict[Any, str]:
        """Emit what is compared beside the tangents; returns the local names of symbols."""
        s.bind("grad_enabled", torch_api.grad_enabled)
        s.bind("any_autocast", torch_api.any_autocast)
        s.line("check = fast.check")
        state = ["check is None", "grad_enabled()", "any_autocast()"]
        if entry.create_graph or entry.autocast:
            raise NotGenerated("a backward that is differentiated again, or that runs under autocast")
        if entry.guards is not None:
            state.append(f"not {s.constant(entry.guards.still_holds, 'state')}()")
        if entry.dtensor is not None:
            state.append(
                torch_api.other_dtensor_modes_code(s.bind("dtensor", torch_api.dtensor_dispatcher()), entry.dtensor)
            )
        s.line(f"if {' or '.join(state)}: {slow}")
        symbols = {row.symbol: str(row.symbol) for row in self.plan.symbols}
        for symbol, name in symbols.items():
            s.line(f"{name} = ctx.env[{s.constant(symbol, 'symbol')}]")
        if entry.conditions:
            holds = " and ".join(f"({expression_code(c, symbols)})" for c in entry.conditions)
            s.line("try:")
            s.line(f"    if not ({holds}): {slow}")
            s.line(f"except ArithmeticError: {slow}")
        return symbols

    def _fit(self, s: Source, entry: CompiledBackward, leaves: Sequence[str], symbols: dict[Any, str]) -> None:
        """Emit bringing the leaves of the tangents to the strides that the graph was traced for."""
        wanted = [leaf.stride for spec in entry.tangents if spec is not None for leaf in spec_leaves(spec)]
        for name, stride in zip(leaves, wanted, strict=True):
            if stride:
                code = sizes_code(stride, symbols)
                s.line(f"if {name}.stride() != {code}: {name} = {s.bind('fit_strides', fit_strides)}({name}, {code})")

    def _arguments(self, entry: CompiledBackward, leaves: Sequence[str], symbols: dict[Any, str]) -> list[str]:
        """The inputs of the backward graph."""
        number = {row.name: k for k, row in enumerate(r for r in self.plan.saved if r.is_tensor)}
        given: dict[tuple[str, Any], str] = {
            ("saved", row.name): f"ctx.numbers[{k}]" for k, row in enumerate(self.plan.saved) if not row.is_tensor
        }
        given |= {("saved", name): f"saved[{k}]" for name, k in number.items()}
        given |= {("size", symbol): name for symbol, name in symbols.items()}
        given |= {("tangent", k): name for k, name in enumerate(leaves)}
        args = [given[key] for key in entry.inputs]
        if args[: len(number)] == [f"saved[{k}]" for k in range(len(number))]:
            args[: len(number)] = ["*saved"]
        return args

    def _tangent_names(self) -> list[str]:
        return [f"g{k}" for k in self.plan.differentiable]

    def _checked(self, tangents: Any, leaves: list[str], skip: Collection[int]) -> list[str]:
        """The names that `FastPath.check` takes, in the order in which it was armed; none of tangents number ``skip``."""
        rows, parts = [], iter(leaves)
        for place, (k, spec) in enumerate(zip(self.plan.differentiable, tangents, strict=True)):
            own = [next(parts) for _ in range(0 if spec is None else leaf_count(spec))]
            if place not in skip:
                rows += [f"g{k}", *own] if isinstance(spec, WrapperSpec) else own
        return rows


def _is_odd(t: Tensor | None) -> bool:
    """A tangent that only `run_backward` knows how to take."""
    return t is not None and (torch_api.is_batched(t) or any(map(is_lazy, leaves_of(t))))


def _same_objects(tangents: Sequence[Tensor | None]) -> tuple[int | None, ...]:
    """For each tangent the place of an earlier one that is the same tensor."""
    places: dict[int, int] = {}
    found = [places.setdefault(id(t), k) for k, t in enumerate(tangents)]
    return tuple(
        None if t is None or first == k else first for k, (t, first) in enumerate(zip(tangents, found, strict=True))
    )


def _shortcut_of(specs: dict[str, Spec], examples: Examples) -> Callable[[str], Any]:
    """The one attribute that tells a class's context (DTensor's ``_spec``), for tangents by their local names."""

    def shortcut(variable: str) -> Any:
        spec = specs.get(variable)
        if not isinstance(spec, WrapperSpec):
            raise NotGenerated("a wrapper with a shortcut inside another one")
        attribute = torch_api.context_shortcut(spec.cls)
        assert attribute is not None
        return getattr(examples.make(spec), attribute)

    return shortcut


def _tuple(names: Sequence[str]) -> str:
    return "".join(f"{n}, " for n in names)


def _versions(names: Sequence[str]) -> str:
    return _tuple([f"{n}._version" for n in names])
