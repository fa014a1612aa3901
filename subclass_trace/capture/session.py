"""A capture session: the fake mode, the recorder, and the modes around the user function."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx.traceback

from ..errors import UnsupportedError
from ..state.calls import callback
from ..subclass.paths import Path
from ..torch_api import tape as _door
from ..torch_api.autograd import original_views, saved_hooks_refused, saved_tensor_hooks_active
from ..torch_api.compiled_inside import compiled_functions_run_eagerly, functions_of_operators
from ..torch_api.compiling import compiling_in_this_thread
from ..torch_api.dtensor_modes import DTensorModes
from ..torch_api.dtensor_modes import dtensor_modes as torch_dtensor_modes
from ..torch_api.fakes import (
    detached,
    fake_mode,
    quiet_fake_errors,
    replace_cache,
    replace_conversion,
)
from ..torch_api.float_arguments import floats_handed_on
from ..torch_api.modes import (
    backwards_under,
    disable_autocast,
    disable_autocast_cache,
    enable_python_dispatcher,
    no_overrides,
    no_transforms,
    without_tracing,
)
from ..torch_api.numbers import as_python_number
from ..torch_api.ranks import rank_reads_noted
from ..torch_api.repairs.composites import composites_as_eager
from ..torch_api.repairs.fast_paths import fast_paths_as_eager
from ..torch_api.repairs.jagged import jagged_views_as_eager
from ..torch_api.repairs.strided_shards import numbers_as_split_factors
from ..torch_api.sharding import sharding_as_eager
from ..torch_api.symbols import ShapeEnv, dynamic_context, input_source, new_number, new_symbol
from .function_rules import FunctionRules
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
        device: torch.device | None = None,
    ) -> None:
        """``passes``: what finished graphs go through; ``materialise``: each result is a value of
        the graph, also where a call would hand on an input, or replay a view; ``device``: for which
        inputs on ``meta`` stand."""
        self.device = device
        self.dynamic, self.passes, self.materialise = dynamic, passes, materialise
        self.shape_env = ShapeEnv()
        self.mode = fake_mode(self.shape_env)
        self.recorder = Recorder(self.mode, decompositions)
        if not dynamic:
            self.recorder.results.share()
            replace_cache(self.mode, self.recorder.results.remembered)
            replace_conversion(self.mode)
        self.wrappers: list[tuple[Path, Any]] = []  # the traced inputs that have contexts
        self.arguments = {}
        self._grad = True  # grad mode of the caller

    def dtensor_modes(self) -> DTensorModes | None:
        """What of ``loss_parallel`` and the like is active around this, if the traces met a
        DTensor."""
        return torch_dtensor_modes(self.recorder.met.classes)

    def rank_reads(self) -> tuple[str, ...]:
        """What the traces have read of the rank of this process, and where."""
        return tuple(self.recorder.met.ranks)

    def _note_rank(self, what: str) -> None:
        line = self.recorder.user_line()
        self.recorder.met.ranks[what if line is None else f"{what} ({line})"] = None

    def meets_attention(self) -> bool:
        """Have the traces met attention, of which a caller chooses the kernels
        (``sdpa_kernel``)?"""
        targets = (str(n.target) for n in self.recorder.graph.nodes if n.op == "call_function")
        return self.recorder.met.attention or any(
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
            enter(quiet_fake_errors())
            if self.dynamic:  # composite kernels with symbolic sizes are written in Python
                enter(enable_python_dispatcher())
            enter(backwards_under(FunctionRules(self.recorder)))
            enter(composites_as_eager())
            enter(jagged_views_as_eager())
            enter(floats_handed_on())
            enter(fast_paths_as_eager())
            enter(compiled_functions_run_eagerly())
            enter(disable_autocast_cache())
            enter(original_views())
            enter(compiling_in_this_thread())
            # it keeps its forward stacks (PyTorch PR 101047); its NaN check would read values
            if torch.is_anomaly_enabled():
                enter(torch.autograd.set_detect_anomaly(True, False))
            # On the devices' own threads, a backward on fakes would wait behind one that waits for
            # the lock of traces.
            enter(torch.autograd.set_multithreading_enabled(False))
            # a compiled autograd that is on would make a tape of each
            enter(_door.backwards_are_traced())
            # the caller's hooks see what is saved at run time instead
            if saved_tensor_hooks_active():
                enter(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
            enter(sharding_as_eager(self.recorder.below))
            enter(numbers_as_split_factors())
            enter(rank_reads_noted(self._note_rank))
            enter(saved_hooks_refused(partial(_refuse_hooks, self.recorder)))
            enter(steps_that_are_left_out(self.recorder))
            enter(functions_of_operators(callback))
            enter(self.recorder)
            yield

    @contextlib.contextmanager
    def untraced(self) -> Iterator[None]:
        """Inside, inputs are made as at the start, whatever is active where the function comes upon
        them."""
        with (
            self.recorder.during(tag="is_forward"),
            no_transforms(),
            no_overrides(),
            torch.set_grad_enabled(self._grad),
            disable_autocast(),
        ):
            yield

    def fake(self, real: torch.Tensor, name: str, dims: Sequence[int]) -> torch.Tensor:
        """A fake dense leaf; those of one storage share a fake storage. Its sizes become `Dim`."""
        fake = self._fake(real, name, dims)
        if self.device is None or not real.is_meta:
            return fake
        return detached(self.mode, fake, self.device)

    def _fake(self, real: torch.Tensor, name: str, dims: Sequence[int]) -> torch.Tensor:
        source = input_source(name) if self.dynamic else None
        if not any(dims):
            return self.mode.from_tensor(real, static_shapes=True, source=source)
        if Dim.NUMBER in dims:
            sizes = [
                new_number(self.shape_env, n, f"{name}.size({d})") if kind == Dim.NUMBER else n
                for d, (n, kind) in enumerate(zip(real.shape, dims, strict=True))
            ]
            with without_tracing():
                return torch.empty(sizes, dtype=real.dtype, device=real.device)
        context = dynamic_context([bool(d) for d in dims], [d == Dim.ALIKE for d in dims])
        return self.mode.from_tensor(
            real, static_shapes=False, source=source, symbolic_context=context
        )

    def outer_size(self, wrapper: torch.Tensor, path: Path, dims: Sequence[int]) -> tuple[Any, ...]:
        """The outer size of a wrapper, with new symbols where ``dims`` says so."""
        return tuple(
            new_symbol(self.shape_env, n, f"{path}.size({d})") if dynamic else n
            for d, (n, dynamic) in enumerate(zip(wrapper.shape, dims, strict=True))
        )

    def number(self, position: int, n: float, name: str) -> Any:
        """A number of the call becomes a symbol, of which nothing is assumed."""
        made = as_python_number(new_number(self.shape_env, n, name))
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
        out = detached(self.mode, fake)
        self.recorder.alias(out, fake)
        return out
