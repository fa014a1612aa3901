"""The inductor compiler, imported when it is used."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .kinds import is_fake
from .modes import plain_dispatch
from .repairs.recurrent import keeps_workspaces


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's decomposition table for graphs whose random numbers are those of eager mode."""
    import torch._inductor.lowering  # noqa: F401  # the decomposition of a pooling asks it
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=True):
        return dict(select_decomp_table())


def write_package(program: torch.export.ExportedProgram, path: str) -> None:
    """A package of AOTInductor."""
    import torch._inductor

    torch._inductor.aoti_compile_and_package(program, package_path=path)


@contextlib.contextmanager
def _with_real_constants(mode: FakeTensorMode) -> Iterator[None]:
    """Inductor's passes may run operations on a graph's constants, which are real tensors."""
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


@contextlib.contextmanager
def with_effect_tokens(graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node]) -> Iterator[None]:
    """Rewrite these calls, which have effects, so that inductor keeps them in order: each takes the
    token of the one before.

    While inside, an effect is registered for operations that have none.
    """
    from torch._higher_order_ops.effects import (
        _EffectType,
        _get_effect,
        _register_effectful_op,
        with_effects,
    )

    silent = {
        n.target
        for n in nodes
        if isinstance(n.target, OpOverload) and _get_effect(n.target) is None
    }
    handles = [_register_effectful_op(op, _EffectType.ORDERED) for op in silent]
    try:
        if nodes:
            with graph.inserting_before(nodes[0]):
                token = graph.call_function(torch.ops.prims._make_token.default)
            for node in nodes:
                token = _chained(graph, node, token, with_effects)
            with graph.inserting_before(graph.output_node()):
                graph.call_function(torch.ops.prims._sink_tokens.default, ([token],))
        yield
    finally:
        for handle in handles:
            handle.destroy()


def _chained(
    graph: torch.fx.Graph, node: torch.fx.Node, token: torch.fx.Node, call: Any
) -> torch.fx.Node:
    """Replace ``node`` by its call with a token; the next token."""
    value, target = node.meta.get("val"), cast("Any", node.target)
    several = isinstance(target, OpOverload) and len(target._schema.returns) > 1
    with graph.inserting_before(node):
        both = graph.call_function(call, (token, target, *node.args), dict(node.kwargs))
        values = (None, *value) if several else (None, value)  # type: ignore[misc]
        both.meta = {**node.meta, "val": values}
        following = graph.call_function(operator.getitem, (both, 0))
        for part in list(node.users) if several else ():
            part.args = (both, part.args[1] + 1)  # type: ignore[operator]
        if node.users:
            only = graph.call_function(operator.getitem, (both, 1))
            only.meta = dict(node.meta)
            node.replace_all_uses_with(only)
    graph.erase_node(node)
    return following


def known_inductor_options() -> dict[str, Any]:
    """Inductor's settings by name, with their values."""
    from torch._inductor import config

    return config.get_config_copy()


def mode_options(mode: str) -> dict[str, object]:
    """What inductor makes of ``torch.compile(mode=...)``."""
    from torch._inductor import list_mode_options

    return dict(list_mode_options(mode))


def inductor_options(options: dict[str, Any]) -> Any:
    """Inside, inductor has these settings."""
    from torch._inductor import config

    return config.patch(options)


def mode_of(values: Iterable[Any]) -> Any:
    """The fake mode of the first fake tensor among these values; a new one if there is none."""
    return (
        next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None) or FakeTensorMode()
    )


def inductor_compile(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    is_backward: bool = False,
    is_inference: bool = False,
) -> Callable[..., Any]:
    """Compile one dense graph, which inductor rewrites in place; a boxed callable.

    All outputs keep their traced strides. Random numbers are those of eager mode.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
    from torch._inductor.utils import BoxedBool
    from torch._inductor.virtualized import V

    vals = [node.meta.get("val") for node in gm.graph.nodes]
    mode = mode_of((*example_inputs, *vals))
    fakes = [
        mode.from_tensor(x) if isinstance(x, torch.Tensor) and not is_fake(x) else x
        for x in example_inputs
    ]
    results = gm.graph.output_node()
    count = len(results.args[0])  # type: ignore[arg-type]
    results.meta["user_visible_output_idxs"] = list(range(count))
    settings = {"fallback_random": True}
    if keeps_workspaces(gm.graph):  # of a size that the fake kernel does not know
        settings["size_asserts"] = False
    with (
        compile_lock,
        plain_dispatch(),
        tracing(TracingContext(mode)),
        V.set_fake_mode(mode),
        _with_real_constants(mode),
        config.patch(settings),
    ):
        # in training torch runs these passes on the joint graph, which our partitioners have cut
        if is_inference:
            _recursive_joint_graph_passes(gm)
        return compile_fx_inner(
            gm,
            fakes,
            static_input_idxs=(),
            cudagraphs=BoxedBool(False),
            is_backward=is_backward,
            is_inference=is_inference,
        )
