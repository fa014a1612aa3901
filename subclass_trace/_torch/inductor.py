"""The inductor compiler, imported when it is used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .kinds import is_fake
from .modes import plain_dispatch


def inductor_obstacle(devices: set[str]) -> str | None:
    """Why inductor cannot compile for these device types here; None if nothing is known to be missing."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if not devices or "cpu" in devices:
        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return "no working C++ compiler"
    if "cuda" in devices and not has_triton():
        return "no working Triton"
    return None


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's decomposition table for graphs whose random numbers are those of eager mode."""
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=True):
        return dict(select_decomp_table())


@contextlib.contextmanager
def _with_real_constants(mode: FakeTensorMode) -> Iterator[None]:
    """Inductor's passes may run operations on a graph's constants, which are real tensors."""
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def inductor_compile(
    gm: torch.fx.GraphModule, example_inputs: list[Any], *, is_backward: bool, is_inference: bool, visible: list[int]
) -> tuple[Callable[..., Any], list[tuple[Any, ...] | None]]:
    """Compile one dense graph, which inductor rewrites in place.

    Outputs at the places in ``visible`` keep their traced strides. Random numbers are those of eager mode.

    Returns: the boxed callable, and for each output the strides that it will have (None for what is no tensor);
    the list is empty where inductor reports none.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
    from torch._inductor.utils import BoxedBool
    from torch._inductor.virtualized import V

    vals = [node.meta.get("val") for node in gm.graph.nodes]
    mode = next((v.fake_mode for v in (*example_inputs, *vals) if isinstance(v, FakeTensor)), None) or FakeTensorMode()
    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) and not is_fake(x) else x for x in example_inputs]
    gm.graph.output_node().meta["user_visible_output_idxs"] = visible
    context = TracingContext(mode)
    with (
        compile_lock,
        plain_dispatch(),
        tracing(context),
        V.set_fake_mode(mode),
        _with_real_constants(mode),
        config.patch(fallback_random=True),
    ):
        if is_inference:  # in training torch runs these passes on the joint graph, which our partitioners have cut
            _recursive_joint_graph_passes(gm)
        with TracingContext.report_output_strides() as strides:
            compiled = compile_fx_inner(
                gm,
                fakes,
                static_input_idxs=(),
                cudagraphs=BoxedBool(False),
                is_backward=is_backward,
                is_inference=is_inference,
            )
    return compiled, list(strides or ())
