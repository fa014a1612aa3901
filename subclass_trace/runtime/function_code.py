"""Generated ``autograd.Function`` of one specialization: straight-line forward and backward.

The backward serves the tangents that the first backward was traced for; every other case (another type or context, a
missing tangent, double backward) goes to `function.run_backward`, as does the first call, which arms the fast path with
a tensor guard made from tangents that really came.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import torch

from .. import _torch
from .._torch.tape import saves_for_torch
from ..plan import Plan
from ..subclass.flatten import flatten, leaves_of
from ..subclass.spec import LeafSpec, SizeExpr, Spec, WrapperSpec, leaf_count, same_spec, spec_leaves
from ..subclass.template import Examples
from .backward import CompiledBackward
from .emit import NotGenerated, Unwrapper, Wrapper, detached_outputs, set_versions, wrapped
from .function import (
    Read,
    changed_since_forward,
    check_of,
    check_watched,
    pending,
    read_for,
    run_backward,
    save,
    saved_of,
)
from .guards import Ambient
from .inlined import make_inlinable
from .rebuild import fit_strides, is_lazy
from .reference import Program
from .sizes import Env
from .source import Source

Tensor = torch.Tensor


def needs_extra(plan: Plan) -> bool:
    """Does `apply` take ``extra``, the list ``[env, watched inputs, None]`` whose last item receives the sizes?"""
    return bool(plan.symbols or plan.lent or plan.kept_inputs or plan.size_outputs)


#: how many layouts and sets of tangents get a straight-line backward of their own, beside those that came first
MOST_PATHS = 4


class FastPath:
    """Whether the generated code of one backward may run: ``check`` compares the tangents and their inner tensors.

    ``same``: for each tangent the place of an earlier one that is the same tensor, or None (the loss is a sum of results).
    """

    def __init__(self, entry: CompiledBackward | None, same: Sequence[int | None] = ()) -> None:
        self.entry, self.same = entry, tuple(same)
        self.expected = () if entry is None else entry.tangents
        self.check: Callable[..., bool] | None = None
        self.fit: Callable[..., Sequence[Tensor]] | None = None  # brings leaves to the strides of the trace

    def arm(self, tangents: Sequence[Tensor | None]) -> None:
        """From now on it serves tangents like these, if they are of the kind that it is for."""
        rows: list[tuple[Tensor, Spec]] = []
        if len(tangents) != len(self.expected):
            return
        for k, (t, spec) in enumerate(zip(tangents, self.expected, strict=True)):
            if (t is None and spec is None) or (self.same and self.same[k] is not None):
                continue
            if t is None or spec is None or any(isinstance(n, SizeExpr) for s in spec_leaves(spec) for n in s.size):
                return
            if not same_spec(flatten(t)[1], spec, strides=False) or t.requires_grad:
                return
            rows.append((t, spec))
            if isinstance(spec, WrapperSpec):
                rows += zip(leaves_of(t), spec_leaves(spec), strict=True)
        if len({id(t) for t, _ in rows}) != len(rows):
            return
        sizes = [list(s.size) for _, s in rows]  # type: ignore[union-attr]
        strides = [list(t.stride()) for t, _ in rows]
        wanted = [s.stride for spec in self.expected if spec is not None for s in spec_leaves(spec)]
        real = [leaf for t in tangents if t is not None for leaf in leaves_of(t)]
        if any(tuple(t.stride()) != tuple(w) for t, w in zip(real, wanted, strict=True)):
            self.fit = lambda *leaves: list(map(fit_strides, leaves, wanted))
        self.check = _torch.tensor_guard([t for t, _ in rows], sizes, strides)


class FastBackward(FastPath):
    """The straight-line backwards of one specialization.

    The generated method serves tangents of the kind that the first backward was traced for, laid out as those that came
    first. Other tangents that come twice (an absent one, another layout) get a function of their own in ``others``.
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
        kept = ctx.kept is not None or getattr(ctx, "beside", None) is not None
        for other in self.others:
            found = other(ctx, saved, kept or _torch.keeps_graph_now(), *grads)
            if found is not None:
                return found  # type: ignore[no-any-return]
        program = self.program
        assert program.backwards is not None
        values = saved[::-1]
        saved.clear()
        numbers = getattr(ctx, "numbers", None) or (None,) * len(program.plan.saved)
        rows = zip(program.plan.saved, numbers, strict=True)
        named = {row.name: values.pop() if n is None else n for row, n in rows}
        values.clear()
        tangents = [grads[k] for k in program.plan.differentiable]
        env = getattr(ctx, "env", None) or {}
        check = check_of(ctx, program.plan)
        result = run_backward(program.backwards, ctx.inputs, named, tangents, env, check)
        if (
            self.use_cpp
            and not torch.is_grad_enabled()
            and not program.plan.symbols
            and not any(map(_is_odd, tangents))
        ):
            self._arm_for(tangents, getattr(ctx, "env", None) or {})
        if not kept and not _torch.keeps_graph():
            ctx.inputs = ()
        return (None, None, *result) if needs_extra(program.plan) else (None, *result)

    def read(self, ctx: Any, tangents: Sequence[Tensor | None]) -> Read:
        """Tells which saved activations the backward for these tangents reads."""
        assert self.program.backwards is not None
        env = getattr(ctx, "env", None) or {}
        return functools.partial(read_for, self.program.backwards, tangents, env)

    def _arm_for(self, tangents: Sequence[Tensor | None], env: Env) -> None:
        assert self.program.backwards is not None
        entry = self.program.backwards.served([None if t is None else flatten(t)[1] for t in tangents], env)
        if entry is None or entry.conditions or len(self._seen) >= 4 * MOST_PATHS:
            return
        if entry is self.entry and self.check is None:
            self.arm(tangents)
            if self.check is not None:
                return
        layout = tuple(None if t is None else [x.stride() for x in (t, *leaves_of(t))] for t in tangents)
        same = _same_objects(tangents)
        key = (id(entry), str(layout), same)
        if key in self._seen and len(self.others) < MOST_PATHS:
            path = FastPath(entry, same)
            path.arm(tangents)
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
        _torch.call_backward_directly(function)
        program = self.program
        make_inlinable(function, lambda ctx: program, 2 if needs_extra(self.plan) else 1)
        return function

    # ---------------------------------------------------------------- forward
    def _forward(self) -> Callable[..., Any]:
        s, plan = Source(), self.plan
        s.bind("graph", self.program.forward)
        s.line(f"def forward(ctx, p, {'extra, ' if needs_extra(plan) else ''}*inputs):")
        s.depth = 1
        if self.ambient.autocast:
            s.bind("no_autocast", _torch.disable_autocast)
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
        starts = [0, *accumulate(map(leaf_count, plan.values))]
        set_versions(s, plan.leaf_versions, flat)
        dense = [(starts[k], version) for k, version in plan.versions if isinstance(plan.values[k], LeafSpec)]
        set_versions(s, dense, flat)  # before they are noted for the backward
        self._save(s, count + plan.size_outputs)
        if plan.size_outputs:
            s.line(f"extra[2] = o[{count}:{count + plan.size_outputs}]")
        s.line("ctx.inputs = inputs")
        if self.dynamic:
            s.line("ctx.env = extra[0]")
        wrapper = Wrapper(s, self.examples, symbols, lambda mark: f"extra[0][{s.constant(mark, 'lent')}]")
        values = wrapped(wrapper, plan.values, iter(flat), self.left_out)
        fixed = [f"v{k}" for k in range(len(values)) if k not in plan.differentiable and k not in self.left_out]
        for k, value in enumerate(values):
            if value != f"v{k}" and k not in self.left_out:
                s.line(f"v{k} = {value}")
        wrappers = [(k, version) for k, version in plan.versions if not isinstance(plan.values[k], LeafSpec)]
        set_versions(s, wrappers, [f"v{k}" for k in range(len(values))])
        if plan.watched_results:
            s.bind("ref", weakref.ref)  # as `watch` does it
            s.line(f"ctx.watched = ({''.join(f'(ref(v{k}), v{k}._version), ' for k in plan.watched_results)})")
        s.line("ctx.set_materialize_grads(False)")
        if fixed:
            s.line(f"ctx.mark_non_differentiable({', '.join(fixed)})")
        names = ["None" if k in self.left_out else f"v{k}" for k in range(len(values))]
        s.line(f"return {names[0]}" if len(names) == 1 else f"return {', '.join(names)}")
        return s.build("forward", "forward")

    def _save(self, s: Source, first: int) -> None:
        """Keep the saved activations: as plain references of the node, with their versions compared as autograd would.

        That is half of what ``save_for_backward`` and ``saved_tensors`` cost. Autograd's own variables serve where they do
        more: when saved-tensor hooks are active, when torch's compiled autograd is to see them, and for what has no
        version. A result that is saved is kept as an alias (which shares its version): itself it would be a cycle.
        """
        plan = self.plan
        tensors = [f"o[{first + k}]" for k, row in enumerate(plan.saved) if row.is_tensor]
        aliases = {f"o[{first + k}]": f"o[{first + k}].detach()" for k in plan.saved_results}
        numbers = ["None" if row.is_tensor else f"o[{first + k}]" for k, row in enumerate(plan.saved)]
        watched = [f"extra[1][{k}]" for k in range(len(plan.kept_inputs))]
        compared = [f"inputs[{k}]" for k in plan.compared_inputs]
        if not all(row.is_tensor for row in plan.saved):
            s.line(f"ctx.numbers = ({_tuple(numbers)})")
        if plan.independent:
            s.line("ctx.done = frozenset()")
        s.bind("saved_tensor_hooks_active", _torch.saved_tensor_hooks_active)
        everything = [*tensors, *watched, *compared]
        s.line("kept = None")
        s.bind("saves_for_torch", saves_for_torch)
        s.line("if not (saves_for_torch or saved_tensor_hooks_active()):")
        s.line("    try:")
        s.line(f"        ctx.versions = ({_versions(everything)})")
        s.line(f"        kept = [{', '.join(aliases.get(n, n) for n in everything)}]")
        s.line("    except (RuntimeError, AttributeError): pass  # an inference tensor, or None from a kernel")
        s.line("ctx.kept = kept")
        s.line("if kept is None:")
        s.depth += 1
        s.line(f"ctx.versions = ({_versions(compared)})")
        s.bind("save", save)
        s.line(f"save(ctx, {s.constant(plan, 'plan')}, [{', '.join([*tensors, *watched])}])")
        s.depth = 1

    def _unsave(self, s: Source) -> None:
        """``saved``: the saved activations as a list, compared with the forward's versions and released."""
        plan = self.plan
        s.bind("changed_since_forward", changed_since_forward)
        tangents = ", ".join(self._tangent_names())
        read = f"fast.read(ctx, ({tangents}{',' * bool(tangents)}))"
        changed = f"changed_since_forward({s.constant(plan, 'plan')}, ctx.versions, ({{}}), {read})"
        s.bind("keeps", _torch.keeps_graph_now)
        s.line("keep = keeps()")
        count = sum(row.is_tensor for row in plan.saved) + len(plan.kept_inputs)
        names = [f"saved[{k}]" for k in range(count + len(plan.compared_inputs))]
        s.line("saved = ctx.kept")
        s.line("if saved is not None:")
        s.line(f"    if ({_versions(names)}) != ctx.versions: {changed.format(_versions(names))}")
        s.line(f"    saved = saved[:{count}]")
        s.depth += 1
        self._check_watched(s, read)  # before anything is released: another backward may be asked for after the error
        s.depth -= 1
        present = _tuple([f"{name} is not None" for name in self._tangent_names()])
        if plan.independent:
            s.bind("pending", pending)
            s.line(f"    keep = pending(ctx, {s.constant(plan, 'plan')}, keep, ({present}))")
        s.line("    if not keep: ctx.kept = None  # a second backward is for saved_tensors to refuse")
        s.line("else:")
        s.depth += 1
        if compared := [f"ctx.inputs[{k}]" for k in plan.compared_inputs]:
            s.line(f"if ctx.inputs and ({_versions(compared)}) != ctx.versions: {changed.format(_versions(compared))}")
        s.bind("saved_of", saved_of)
        s.line(f"saved, keep = saved_of(ctx, {s.constant(plan, 'plan')}, keep, ({present}))")
        self._check_watched(s, read)
        s.depth = 1

    def _check_watched(self, s: Source, read: str) -> None:
        """Was a result written since the forward?"""
        if not self.plan.watched_results:
            return
        s.bind("check_watched", check_watched)
        s.line("for ref, version in ctx.watched:")
        s.line("    v = ref()")
        names = s.constant(self.plan.watched_names, "names")
        s.line(f"    if v is not None and v._version != version: check_watched(ctx.watched, {names}, {read})")

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
        if self.dynamic or not self.program.backwards.compiled:
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
        """``(ctx, saved, keep, *tangents)`` -> gradients, or None where the tangents are not of this kind."""
        s = Source()
        s.bind("fast", path)
        s.line(f"def backward(ctx, saved, keep, {', '.join(f'g{k}' for k in range(len(self.plan.values)))}):")
        s.depth = 1
        assert path.entry is not None
        try:
            self._fast_path(s, path.entry, "return None", path.same)
        except NotGenerated:
            return None
        return s.build("backward", "backward")

    def _fast_path(self, s: Source, entry: CompiledBackward, slow: str, same: Sequence[int | None] = ()) -> None:
        s.bind("grad_enabled", _torch.grad_enabled)
        s.bind("any_autocast", _torch.any_autocast)
        s.line("check = fast.check")
        state = ["check is None", "grad_enabled()", "any_autocast()"]
        if entry.user_code.names:
            state.append(f"not {s.bind('user_code', entry.user_code)}.holds()")
        if entry.dtensor is not None:
            state.append(_torch.other_dtensor_modes_code(s.bind("dtensor", _torch.dtensor_dispatcher()), entry.dtensor))
        s.line(f"if {' or '.join(state)}: {slow}")
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
        rows = self._checked(entry.tangents, leaves, first)
        s.line(f"if not check({', '.join(rows)}): {slow}")
        # Under names of their own: a dense leaf may be brought to other strides, and its name goes before the graph runs.
        handed = {source: f"h{k}" for k, source in enumerate(entry.passed) if source and source[0] != "gradient"}
        for (kind, place), name in handed.items():
            s.line(f"{name} = {self._tangent_names()[place] if kind == 'tangent' else f'ctx.inputs[{place}]'}")
        if leaves:
            s.line(f"if fast.fit is not None: {', '.join(leaves)}, = fast.fit({', '.join(leaves)})")
        number = {row.name: k for k, row in enumerate(r for r in self.plan.saved if r.is_tensor)}
        if any(kind == "size" or (kind == "saved" and name not in number) for kind, name in entry.inputs):
            raise NotGenerated("a saved size")
        args = [leaves[key] if kind == "tangent" else f"saved[{number[key]}]" for kind, key in entry.inputs]
        if args[: len(number)] == [f"saved[{k}]" for k in range(len(number))] and not self.plan.kept_inputs:
            args[: len(number)] = ["*saved"]
        s.line(f"p = [{', '.join(args)}]")
        s.line("saved.clear()")  # who called may hold the list
        s.line(f"del saved{''.join(f', {n}' for n in dict.fromkeys([*leaves, *self._tangent_names()]))}")
        s.bind("graph", entry.call)
        s.line("r = graph(p)")
        s.line("if not keep: ctx.inputs = ()")
        parts = iter([f"r[{k}]" for k in range(sum(leaf_count(g) for g in entry.grads if g is not None))])
        wrapper = Wrapper(s, self.examples, {})
        grads: list[str] = []
        for made, source in zip(entry.grads, entry.passed, strict=True):
            own = [next(parts) for _ in range(0 if made is None else leaf_count(made))]
            if source is not None:
                grads.append(grads[source[1]] if source[0] == "gradient" else handed[source])
            else:
                grads.append("None" if made is None else wrapper.wrap(made, iter(own)))
        s.line(f"return {self._nones}{''.join(f'{g}, ' for g in grads)}")

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
    return t is not None and (_torch.is_batched(t) or any(map(is_lazy, leaves_of(t))))


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
        attribute = _torch.context_shortcut(spec.cls)
        assert attribute is not None
        return getattr(examples.make(spec), attribute)

    return shortcut


def _tuple(names: Sequence[str]) -> str:
    return "".join(f"{n}, " for n in names)


def _versions(names: Sequence[str]) -> str:
    return _tuple([f"{n}._version" for n in names])
