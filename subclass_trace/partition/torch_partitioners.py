"""Torch's partitioners behind our interface, with the two faults mended that matter for right
answers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.effects import is_kept
from ..errors import BackendError
from ..torch_api.graphs import lazy_graph_modules
from ..torch_api.kinds import is_fake
from ..torch_api.modes import functorch_config, without_tracing
from ..torch_api.texts import text_of

Partition = tuple[fx.GraphModule, fx.GraphModule]


def min_cut(joint: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Partition:
    """``functorch.compile.min_cut_rematerialization_partition``: recompute what is cheap, save a
    minimum cut."""
    from functorch.compile import min_cut_rematerialization_partition

    halves: tuple[fx.GraphModule, fx.GraphModule]
    halves = min_cut_rematerialization_partition(joint, inputs, **keywords)
    return halves


def call(
    partitioner: Callable[..., Partition],
    joint: fx.GraphModule,
    inputs: Sequence[Any],
    num_forward: int,
    static: Sequence[int],
) -> Partition:
    """Call a partitioner with the keywords that it takes.

    Torch's merge equal nodes, and by that two draws of random numbers that their list does not name
    (``randn_like(x) -
    randn_like(x)`` becomes 0): here they merge none.
    """
    keywords: dict[str, Any] = {"num_fwd_outputs": num_forward}
    try:
        parameters = inspect.signature(partitioner).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    named = "static_lifetime_input_indices" in parameters
    if named or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        keywords["static_lifetime_input_indices"] = list(static)
    with (
        lazy_graph_modules(),
        functorch_config(cse=False),
        _as_tensors(joint.graph) as restore,
    ):
        result = restore(partitioner(joint, inputs, **keywords))
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(g, fx.GraphModule) for g in result)
    ):
        raise BackendError(
            "the partitioner returned something else than two graph modules",
            expected="(forward, backward)",
            got=text_of(result),
            fix="return two torch.fx.GraphModule, as functorch.compile's partitioners do",
        )
    return result


@contextlib.contextmanager
def _as_tensors(graph: fx.Graph) -> Iterator[Callable[[Any], Any]]:
    """Operations without a result seem to have a tensor while inside: torch's partitioners expect
    one of every node.

    Yields what gives the nodes of the parts their own values back.
    """
    nodes = [n for n in graph.nodes if is_kept(n) and n.meta.get("val") is None]
    fakes = (n.meta.get("val") for n in graph.nodes) if nodes else ()
    tensor: Any = next((v for v in fakes if is_fake(v)), None)
    for node in nodes if tensor is not None else ():
        with tensor.fake_mode, without_tracing():
            node.meta.update(val=torch.empty((), device="cpu"), no_value=True)

    def restore(result: Any) -> Any:
        parts = (
            [p.graph.nodes for p in result if isinstance(p, fx.GraphModule)]
            if isinstance(result, tuple)
            else []
        )
        for node in (*nodes, *(n for part in parts for n in part)):
            if node.meta.pop("no_value", False):
                node.meta["val"] = None
        return result

    yield restore
