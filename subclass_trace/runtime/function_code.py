"""Generated ``autograd.Function`` of one specialization: straight-line forward and backward.

The backward serves the tangents that the first backward was traced for; every other case (another type or context, a
missing tangent, double backward) goes to `function.run_backward`, as does the first call, which arms the fast path with
a tensor guard made from tangents that really came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _torch
from ..subclass.flatten import flatten, leaves_of
from ..subclass.spec import SizeExpr, Spec, WrapperSpec, leaf_count, same_spec, spec_leaves
from ..subclass.template import Examples
from .emit import NotGenerated, Unwrapper, Wrapper
from .function import changed_since_forward, run_backward
from .guards import Ambient
from .reference import Program
from .source import Source

Tensor = torch.Tensor


class FastBackward:
    """Whether the generated backward may run: ``check`` compares the tangents and their inner tensors."""

    def __init__(self, program: Program, use_cpp: bool) -> None:
        assert program.backwards is not None
        self.program, self.use_cpp = program, use_cpp
        compiled = program.backwards.compiled
        self.expected = compiled[0].tangents if compiled else ()
        self.check: Callable[..., bool] | None = None

    def slow(self, ctx: Any, saved: list[Any], grads: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
        """The general backward; arms the fast one when these are the tangents that it was made for."""
        program = self.program
        assert program.backwards is not None
        values = saved[::-1]
        saved.clear()
        numbers = getattr(ctx, "numbers", None) or (None,) * len(program.plan.saved)
        rows = zip(program.plan.saved, numbers, strict=True)
        named = {row.name: values.pop() if n is None else n for row, n in rows}
        values.clear()
        tangents = [grads[k] for k in program.plan.differentiable]
        if self.check is None and not torch.is_grad_enabled():
            self._arm(tangents)
        result = run_backward(program.backwards, ctx.inputs, named, tangents, getattr(ctx, "env", None) or {})
        if not _torch.keeps_graph():
            ctx.inputs = ()
        return (None, None, *result)

    def _arm(self, tangents: list[Tensor | None]) -> None:
        rows: list[tuple[Tensor, Spec]] = []
        if len(tangents) != len(self.expected):
            return
        for t, spec in zip(tangents, self.expected, strict=True):
            if t is None or spec is None or any(isinstance(n, SizeExpr) for s in spec_leaves(spec) for n in s.size):
                return
            if not same_spec(flatten(t)[1], spec) or t.requires_grad:
                return
            rows.append((t, spec))
            if isinstance(spec, WrapperSpec):
                rows += zip(leaves_of(t), spec_leaves(spec), strict=True)
        if len({id(t) for t, _ in rows}) != len(rows) or not self.use_cpp:
            return
        sizes = [list(s.size) for _, s in rows]  # type: ignore[union-attr]
        strides = [list(s.stride) for _, s in rows]  # type: ignore[union-attr]
        self.check = _torch.tensor_guard([t for t, _ in rows], sizes, strides)


class FunctionEmitter:
    """Writes the two methods and makes the class."""

    def __init__(self, program: Program, ambient: Ambient, examples: Examples, use_cpp: bool) -> None:
        assert program.backwards is not None
        self.program, self.plan, self.ambient, self.examples = program, program.plan, ambient, examples
        self.fast = FastBackward(program, use_cpp)
        self.dynamic = bool(self.plan.symbols)

    def emit(self) -> type[torch.autograd.Function]:
        """The Function: ``apply(graph inputs, [symbol values, watched inputs, None], *differentiated inputs)``."""
        forward, backward = self._forward(), self._backward()
        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type("RegionFunction", (torch.autograd.Function,), members)

    # ---------------------------------------------------------------- forward
    def _forward(self) -> Callable[..., Any]:
        s, plan = Source(), self.plan
        s.bind("graph", self.program.forward)
        s.line("def forward(ctx, p, extra, *inputs):")
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
        flat = [f"o[{k}]" for k in range(count)]
        for k in sorted(plan.detach_values):
            s.line(f"d{k} = o[{k}].detach()")
            flat[k] = f"d{k}"
        self._save(s, count + plan.size_outputs)
        if plan.size_outputs:
            s.line(f"extra[2] = o[{count}:{count + plan.size_outputs}]")
        s.line("ctx.inputs = inputs")
        if self.dynamic:
            s.line("ctx.env = env")
        parts, wrapper = iter(flat), Wrapper(s, self.examples, symbols)
        values = [wrapper.wrap(spec, parts) for spec in plan.values]
        fixed = [f"v{k}" for k in range(len(values)) if k not in plan.differentiable]
        for k, value in enumerate(values):
            if value != f"v{k}":
                s.line(f"v{k} = {value}")
        s.line("ctx.set_materialize_grads(False)")
        if fixed:
            s.line(f"ctx.mark_non_differentiable({', '.join(fixed)})")
        names = [f"v{k}" for k in range(len(values))]
        s.line(f"return {names[0]}" if len(names) == 1 else f"return {', '.join(names)}")
        return s.build("forward", "forward")

    def _save(self, s: Source, first: int) -> None:
        plan = self.plan
        tensors = [f"o[{first + k}]" for k, row in enumerate(plan.saved) if row.is_tensor]
        numbers = ["None" if row.is_tensor else f"o[{first + k}]" for k, row in enumerate(plan.saved)]
        watched = ["*extra[1]"] if plan.kept_inputs else []
        if self.plan.compared_inputs:
            s.line(f"ctx.versions = ({''.join(f'inputs[{k}]._version, ' for k in self.plan.compared_inputs)})")
        s.line(f"ctx.save_for_backward({', '.join([*tensors, *watched])})")
        if not all(row.is_tensor for row in plan.saved):
            s.line(f"ctx.numbers = ({''.join(f'{n}, ' for n in numbers)})")

    # ---------------------------------------------------------------- backward
    def _backward(self) -> Callable[..., Any]:
        s = Source()
        s.bind("fast", self.fast)
        names = [f"g{k}" for k in range(len(self.plan.values))]
        s.line(f"def backward(ctx, {', '.join(names)}):")
        s.depth = 1
        s.line("saved = list(ctx.saved_tensors)")
        if self.plan.compared_inputs:
            s.bind("changed_since_forward", changed_since_forward)
            now = "".join(f"i[{k}]._version, " for k in self.plan.compared_inputs)
            s.line("i = ctx.inputs")
            s.line(f"if i and ({now}) != ctx.versions: changed_since_forward()")
            s.line("i = None")
        s.line("ctx.maybe_clear_saved_tensors()")
        slow = f"return fast.slow(ctx, saved, ({''.join(f'{n}, ' for n in names)}))"
        assert self.program.backwards is not None
        if self.dynamic or not self.program.backwards.compiled:
            s.line(slow)
        else:
            try:
                self._fast_path(s, slow)
            except NotGenerated:
                s.lines = s.lines[: s.lines.index("    ctx.maybe_clear_saved_tensors()") + 1]
                s.depth = 1
                s.line(slow)
        return s.build("backward", "backward")

    def _fast_path(self, s: Source, slow: str) -> None:
        s.bind("grad_enabled", _torch.grad_enabled)
        s.bind("any_autocast", _torch.any_autocast)
        s.line("check = fast.check")
        s.line(f"if check is None or grad_enabled() or any_autocast(): {slow}")
        assert self.program.backwards is not None
        entry = self.program.backwards.compiled[0]
        unwrapper = Unwrapper(s, slow)
        leaves: list[str] = []
        s.line("try:")
        s.depth = 2
        for k, spec in zip(self.plan.differentiable, entry.tangents, strict=True):
            assert spec is not None
            leaves += unwrapper.unwrap(f"g{k}", spec)
        s.line("pass")
        s.depth = 1
        s.line(f"except AttributeError: {slow}")
        rows = self._checked(entry.tangents, leaves)
        s.line(f"if not check({', '.join(rows)}): {slow}")
        number = {row.name: k for k, row in enumerate(r for r in self.plan.saved if r.is_tensor)}
        if any(kind == "saved" and name not in number for kind, name in entry.inputs):
            raise NotGenerated("a saved size")
        args = [leaves[key] if kind == "tangent" else f"saved[{number[key]}]" for kind, key in entry.inputs]
        if args[: len(number)] == [f"saved[{k}]" for k in range(len(number))] and not self.plan.kept_inputs:
            args[: len(number)] = ["*saved"]
        s.line(f"p = [{', '.join(args)}]")
        s.line(f"del saved{''.join(f', {n}' for n in dict.fromkeys([*leaves, *self._tangent_names()]))}")
        s.bind("graph", entry.call)
        s.line("r = graph(p)")
        s.bind("keeps", _torch.keeps_graph_now)
        s.line("if not keeps(): ctx.inputs = ()")
        parts = iter([f"r[{k}]" for k in range(sum(leaf_count(g) for g in entry.grads if g is not None))])
        wrapper = Wrapper(s, self.examples, {})
        grads = ["None" if g is None else wrapper.wrap(g, parts) for g in entry.grads]
        s.line(f"return None, None, {''.join(f'{g}, ' for g in grads)}")

    def _tangent_names(self) -> list[str]:
        return [f"g{k}" for k in self.plan.differentiable]

    def _checked(self, tangents: Any, leaves: list[str]) -> list[str]:
        """The names that `FastBackward.check` takes, in the order in which it was armed."""
        rows, parts = [], iter(leaves)
        for k, spec in zip(self.plan.differentiable, tangents, strict=True):
            own = [next(parts) for _ in range(leaf_count(spec))]
            rows += [f"g{k}", *own] if isinstance(spec, WrapperSpec) else own
        return rows
