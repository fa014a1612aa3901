"""Graph modules, and functional tensors: what runs on them comes out below without operations in
place."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx.traceback
from torch._C import DispatchKey, DispatchKeySet
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import make_fx as make_fx

from .fakes import quiet_fake_errors
from .modes import disable_autocast, no_modes

Tensor = torch.Tensor


@contextlib.contextmanager
def functionalizing(mode: FakeTensorMode, below: Any) -> Iterator[None]:
    """Inside, operations on functional tensors reach the dispatch mode ``below`` as functional ones
    on what they hold.

    These are the tensors of C++ alone (``FunctionalTensorWrapper``, PyTorch PR 61404), without the
    class around them that torch's tracers need.
    """
    reapply_views: Any = torch._functionalize_enable_reapply_views  # type: ignore[attr-defined]
    before = reapply_views(True)
    with contextlib.ExitStack() as stack:
        stack.callback(reapply_views, before)
        for each in (
            no_modes(),
            mode,
            quiet_fake_errors(),
            warnings.catch_warnings(),
            below,
            torch.no_grad(),
        ):
            stack.enter_context(each)
        warnings.simplefilter("ignore")  # there was nothing new to say
        stack.enter_context(disable_autocast())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        # versions, which fake tensors share with those of the trace, are not counted
        excluded = torch._C._dispatch_tls_local_exclude_set() | DispatchKeySet(
            DispatchKey.ADInplaceOrView
        )
        excluded = (
            excluded.remove(DispatchKey.Functionalize) - FunctionalTensor._extra_dispatch_keys
        )
        included = torch._C._dispatch_tls_local_include_set() | DispatchKeySet(
            DispatchKey.Functionalize
        )
        stack.enter_context(torch._C._ForceDispatchKeyGuard(included, excluded))
        yield


def to_functional(value: Tensor) -> Tensor:
    """A functional tensor that holds ``value``."""
    return torch._to_functional_tensor(value)


def contents(functional: Tensor) -> Tensor:
    """What a functional tensor holds now."""
    torch._sync(functional)  # type: ignore[attr-defined,no-untyped-call]
    return torch._from_functional_tensor(functional)


def replace_contents(functional: Tensor, value: Tensor) -> None:
    """From now on a functional tensor, and all that share its memory, hold ``value``."""
    torch._functionalize_replace(functional, value)
    torch._functionalize_commit_update(functional)


def graph_module(
    root: Any, graph: torch.fx.Graph, name: str = "GraphModule"
) -> torch.fx.GraphModule:
    """A graph module that writes its Python code only when somebody reads or calls it."""
    from torch.fx._lazy_graph_module import _make_graph_module

    with lazy_graph_modules():
        return _make_graph_module(root, graph, name)


def fake_mode_of(graph: torch.fx.Graph) -> FakeTensorMode | None:
    """The mode of the fake tensors that are the values of a graph."""
    values = (n.meta.get("val") for n in graph.nodes)
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


def bucket_collectives(module: torch.fx.GraphModule, megabytes: float) -> None:
    """Torch's own merging of neighbouring collectives of a kind, group and dtype."""
    from torch._inductor.fx_passes import bucketing
    from torch._inductor.pattern_matcher import stable_topological_sort

    with no_modes():
        for merge in (
            bucketing.bucket_all_gather,
            bucketing.bucket_reduce_scatter,
            bucketing.bucket_all_reduce,
        ):
            merge(module, lambda _: megabytes, "default")
    stable_topological_sort(module.graph)


def user_annotations() -> dict[str, Any]:
    """What `torch.fx.traceback.annotate` says here and now."""
    return dict(torch.fx.traceback.get_current_meta().get("custom") or ())


@contextlib.contextmanager
def lazy_graph_modules() -> Iterator[None]:
    """Graph modules that torch makes inside are lazy as well."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        yield


def indexing_by_tensors() -> Any:
    """Inside, ``x[i]`` with a tensor ``i`` of one element is an operation too, and no read of its
    number."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()
