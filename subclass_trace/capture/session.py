"""A capture session: the fake mode, the recorder, and the modes around the user function."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx.traceback

from .. import torch_api
from ..errors import UnsupportedError
from ..state.calls import callback
from ..subclass.paths import Path
from ..torch_api import tape as _door
from .recorder import Recorder
from .skipped_steps import steps_that_are_left_out


class Dim(enum.IntEnum):
    """What a size is in a trace.

    A number of this trace; a symbol, which equal sizes share; a symbol of its own; or a symbol that
    may be 0 or 1 too (of a tensor without elements, whose size holds a number, as jagged tensors
    keep their longest length).
    """

    STATIC = 0
    ALIKE = 1
    OWN = 2
    NUMBER = 3


def _refuse_hooks(recorder: Recorder) -> None:
    raise UnsupportedError(
        "the region sets saved-tensor hooks",
        code="saved-tensor-hooks-set",
        path=recorder.user_line(),
        fix="set them around the call of the region",
    )


class Session:
    """Lives as long as a specialization may trace further backwards; holds no real tensor but
    closed-over ones."""

    #: the symbols of numbers that the call brings, by their places among the flat arguments
    arguments: dict[int, Any]

    def __init__(
        self,
        *,
        dynamic: bool,
        decompositions: dict[Any, Callable[..., Any]],
        passes: Callable[[torch.fx.GraphModule], None] | None = None,
        materialise: bool = False,
    ) -> None:
        """``passes``: what finished graphs go through; ``materialise``: each result is a value of
        the graph, also where a call would hand on an input, or replay a view."""
        self.dynamic, self.passes, self.materialise = dynamic, passes, materialise
        self.shape_env = torch_api.ShapeEnv()
        self.mode = torch_api.fake_mode(self.shape_env)
        self.recorder = Recorder(self.mode, decompositions)
        if not dynamic:
            self.recorder.results.share()
            torch_api.replace_cache(self.mode, self.recorder.results.remembered)
            torch_api.replace_conversion(self.mode)
        self.wrappers: list[tuple[Path, Any]] = []  # the traced inputs that have contexts
        self.arguments = {}
        self._grad = True  # grad mode of the caller

    def dtensor_modes(self) -> torch_api.DTensorModes | None:
        """What of ``loss_parallel`` and the like is active around this, if the traces met a
        DTensor."""
        return torch_api.dtensor_modes(self.recorder.classes)

    def meets_attention(self) -> bool:
        """Have the traces met attention, of which a caller chooses the kernels
        (``sdpa_kernel``)?"""
        targets = (str(n.target) for n in self.recorder.graph.nodes if n.op == "call_function")
        return "attention" in self.recorder.met or any(
            "scaled_dot_product" in target for target in targets
        )

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Everything that must be active while traced code runs."""
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            self._grad = torch.is_grad_enabled()
            enter(self.mode)
            # what a fake kernel refuses is raised, and told once
            enter(torch_api.quiet_fake_errors())
            if self.dynamic:  # composite kernels with symbolic sizes are written in Python
                enter(torch_api.enable_python_dispatcher())
                enter(torch_api.numbers_in_backwards())
            enter(torch_api.composites_as_eager())
            enter(torch_api.floats_handed_on())
            enter(torch_api.fast_paths_as_eager())
            enter(torch_api.compiled_functions_run_eagerly())
            enter(torch_api.disable_autocast_cache())
            enter(torch_api.original_views())
            enter(torch_api.compiling_in_this_thread())
            # it keeps its forward stacks (PyTorch PR 101047); its NaN check would read values
            if torch.is_anomaly_enabled():
                enter(torch.autograd.set_detect_anomaly(True, False))
            # On the devices' own threads, a backward on fakes would wait behind one that waits for
            # the lock of traces.
            enter(torch.autograd.set_multithreading_enabled(False))
            # a compiled autograd that is on would make a tape of each
            enter(_door.backwards_are_traced())
            # the caller's hooks see what is saved at run time instead
            if torch_api.saved_tensor_hooks_active():
                enter(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
            enter(torch_api.sharding_as_eager(self.recorder.below))
            enter(torch_api.numbers_as_split_factors())
            enter(torch_api.saved_hooks_refused(partial(_refuse_hooks, self.recorder)))
            enter(steps_that_are_left_out(self.recorder))
            enter(torch_api.functions_of_operators(callback))
            enter(self.recorder)
            yield

    @contextlib.contextmanager
    def untraced(self) -> Iterator[None]:
        """Inside, inputs are made as at the start, whatever is active where the function comes upon
        them."""
        tag, self.recorder.tag = self.recorder.tag, "is_forward"
        try:
            with (
                torch_api.no_transforms(),
                torch_api.no_overrides(),
                torch.set_grad_enabled(self._grad),
                torch_api.disable_autocast(),
            ):
                yield
        finally:
            self.recorder.tag = tag

    def fake(self, real: torch.Tensor, name: str, dims: Sequence[int]) -> torch.Tensor:
        """A fake dense leaf; those of one storage share a fake storage. Its sizes become `Dim`."""
        source = torch_api.input_source(name) if self.dynamic else None
        if not any(dims):
            return self.mode.from_tensor(real, static_shapes=True, source=source)
        if Dim.NUMBER in dims:
            sizes = [
                torch_api.new_number(self.shape_env, n, f"{name}.size({d})")
                if kind == Dim.NUMBER
                else n
                for d, (n, kind) in enumerate(zip(real.shape, dims, strict=True))
            ]
            with torch_api.without_tracing():
                return torch.empty(sizes, dtype=real.dtype, device=real.device)
        context = torch_api.dynamic_context([bool(d) for d in dims], [d == Dim.ALIKE for d in dims])
        return self.mode.from_tensor(
            real, static_shapes=False, source=source, symbolic_context=context
        )

    def outer_size(self, wrapper: torch.Tensor, path: Path, dims: Sequence[int]) -> tuple[Any, ...]:
        """The outer size of a wrapper, with new symbols where ``dims`` says so."""
        return tuple(
            torch_api.new_symbol(self.shape_env, n, f"{path}.size({d})") if dynamic else n
            for d, (n, dynamic) in enumerate(zip(wrapper.shape, dims, strict=True))
        )

    def number(self, position: int, n: float, name: str) -> Any:
        """A number of the call becomes a symbol, of which nothing is assumed."""
        made = torch_api.as_python_number(torch_api.new_number(self.shape_env, n, name))
        self.arguments[position] = made
        if isinstance(made, torch.SymFloat) and made.node.expr.is_Symbol:
            self.recorder.symbols.floats.add(made.node.expr)
        return made

    def no_branch_on_floats(self) -> None:
        """Nothing may be assumed of the floats of a call, but how they compare with numbers and
        with one another.

        Raises:
            UnsupportedError: something is: the formulas that torch makes of floats are right to
                rounding alone.
        """
        floats = self.recorder.symbols.floats
        for guard in self.shape_env.guards if floats else ():
            is_formula = not all(side.is_Atom for side in guard.expr.args)
            if is_formula and not floats.isdisjoint(guard.expr.free_symbols):
                raise UnsupportedError(
                    "the region branches on a float, or needs it as a number",
                    code="branch-on-float",
                    got=guard.expr,
                )

    def tracked(self, fake: torch.Tensor) -> torch.Tensor:
        """A fresh alias of a fake leaf that is the same graph value."""
        out = torch_api.detached(self.mode, fake)
        self.recorder.alias(out, fake)
        return out
