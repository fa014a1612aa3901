"""Torch's partitioners behind our interface, with the two faults mended that matter for right answers."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..capture.effects import has_effects, is_kept
from ..capture.graphs import is_random
from ..errors import BackendError, OptionError

Partition = tuple[fx.GraphModule, fx.GraphModule]


def min_cut(joint: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Partition:
    """``functorch.compile.min_cut_rematerialization_partition``: recompute what is cheap, save a minimum cut."""
    from functorch.compile import min_cut_rematerialization_partition

    with _separate_draws(joint):
        return min_cut_rematerialization_partition(joint, inputs, **keywords)  # type: ignore[no-any-return]


def default(joint: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Partition:
    """``functorch.compile.default_partition``: save what the backward reads of the forward."""
    from functorch.compile import default_partition

    return default_partition(joint, inputs, **keywords)  # type: ignore[no-any-return]


def min_cut_with_budget(budget: float) -> Callable[..., Partition]:
    """`min_cut` under an activation memory budget: 1 saves what `min_cut` saves, 0 only the graph inputs."""

    def partitioner(joint: fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Partition:
        with torch_api.functorch_config(activation_memory_budget=budget):
            return min_cut(joint, inputs, **keywords)

    return partitioner


def call(
    partitioner: Callable[..., Partition],
    joint: fx.GraphModule,
    inputs: Sequence[Any],
    num_forward: int,
    static: Sequence[int],
) -> Partition:
    """Call a partitioner with the keywords that it takes."""
    keywords: dict[str, Any] = {"num_fwd_outputs": num_forward}
    try:
        parameters = inspect.signature(partitioner).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    named = "static_lifetime_input_indices" in parameters
    if named or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        keywords["static_lifetime_input_indices"] = list(static)
    _check_call(partitioner, joint, inputs, keywords)
    with torch_api.lazy_graph_modules(), _as_tensors(joint.graph) as restore:
        result = restore(partitioner(joint, inputs, **keywords))
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(g, fx.GraphModule) for g in result)):
        raise BackendError(
            "the partitioner returned something else than two graph modules",
            expected="(forward, backward)",
            got=repr(result)[:200],
            fix="return two torch.fx.GraphModule, as functorch.compile's partitioners do",
        )
    return result


def _check_call(partitioner: Callable[..., Partition], joint: Any, inputs: Any, keywords: dict[str, Any]) -> None:
    """Does the partitioner take what it is called with?

    Raises:
        OptionError: it does not.
    """
    try:
        signature = inspect.signature(partitioner)
    except (TypeError, ValueError):  # nobody knows
        return
    try:
        signature.bind(joint, inputs, **keywords)
    except TypeError as error:
        raise OptionError(
            f"the partitioner cannot be called: {error}",
            path="partitioner",
            expected="a callable (joint, joint_inputs, *, num_fwd_outputs) -> (forward, backward)",
            got=f"{getattr(partitioner, '__qualname__', partitioner)}{signature}",
        ) from None


@contextlib.contextmanager
def _as_tensors(graph: fx.Graph) -> Iterator[Callable[[Any], Any]]:
    """Operations without a result seem to have a tensor while inside: torch's partitioners expect one of every node.

    Yields what gives the nodes of the parts their own values back.
    """
    nodes = [n for n in graph.nodes if is_kept(n) and n.meta.get("val") is None]
    fakes = (n.meta.get("val") for n in graph.nodes) if nodes else ()
    tensor: Any = next((v for v in fakes if torch_api.is_fake(v)), None)
    for node in nodes if tensor is not None else ():
        with tensor.fake_mode, torch_api.without_tracing():
            node.meta.update(val=torch.empty((), device="cpu"), no_value=True)

    def restore(result: Any) -> Any:
        parts = [p.graph.nodes for p in result if isinstance(p, fx.GraphModule)] if isinstance(result, tuple) else []
        for node in (*nodes, *(n for part in parts for n in part)):
            if node.meta.pop("no_value", False):
                node.meta["val"] = None
        return result

    yield restore


@contextlib.contextmanager
def _separate_draws(joint: fx.GraphModule) -> Any:
    """Torch merges equal nodes, and by that two draws of random numbers (``randn_like(x) - randn_like(x)`` becomes 0).

    Its list of random operations is incomplete; merging is off when an operation draws twice, or has effects twice.
    """
    calls = (n for n in joint.graph.nodes if n.op == "call_function")
    draws = Counter(n.target for n in calls if is_random(n) or has_effects(n.target))
    if any(count > 1 for count in draws.values()):
        with torch_api.functorch_config(cse=False):
            yield
    else:
        yield
