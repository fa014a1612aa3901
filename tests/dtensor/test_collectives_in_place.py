"""``torch.distributed`` in a region: what becomes a functional collective, what is refused. With values: `ranks`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.errors import UnsupportedError


def targets(graph: Any) -> list[str]:
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function" and "_c10d" in str(n.target)]


def listed(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(x) for _ in range(dist.get_world_size())]


FORMS = {
    "all_reduce": (lambda x: dist.all_reduce(x), "all_reduce"),
    "broadcast": (lambda x: dist.broadcast(x, 2), "broadcast"),
    "all_gather": (lambda x: dist.all_gather(listed(x), x), "all_gather_into_tensor"),
    "all_gather_into_tensor": (lambda x: dist.all_gather_into_tensor(x.repeat(4), x), "all_gather_into_tensor"),
    "reduce_scatter": (lambda x: dist.reduce_scatter(x, listed(x)), "reduce_scatter_tensor"),
    "reduce_scatter_tensor": (lambda x: dist.reduce_scatter_tensor(x, x.repeat(4)), "reduce_scatter_tensor"),
    "all_to_all": (lambda x: dist.all_to_all(listed(x), listed(x)), "all_to_all_single"),
    "all_to_all_single": (lambda x: dist.all_to_all_single(x, x * 1), "all_to_all_single"),
    "all_reduce, coalesced": (lambda x: coalesced(x), "all_reduce_coalesced"),
}


def coalesced(x: torch.Tensor) -> None:
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(x.sin())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", FORMS)
def test_forms(process_group, name: str) -> None:
    """Kept and waited for, though nothing reads what most of them write."""
    function, form = FORMS[name]
    with verify.enabled():
        found = st.trace(lambda x: (function(x), x * 2)[1], torch.ones(4))
    names = targets(found.forward)
    assert names[0] == f"_c10d_functional.{form}.default"
    assert names[-1] == "_c10d_functional.wait_tensor.default"


@pytest.mark.parametrize("partitioner", ["min_cut", "default", "torch_min_cut"])
def test_never_dropped_and_never_twice(process_group, partitioner: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        dist.all_reduce(y.detach())
        dist.all_reduce(x.detach().sum())
        return (y * y).exp()

    x = torch.ones(4, requires_grad=True)
    region = st.compile(f, partitioner=partitioner)
    with verify.enabled():
        region(x).sum().backward()
    (only,) = region.specializations
    assert sum("all_reduce" in t for t in targets(only.graphs.forward)) == 2
    assert targets(only.graphs.backward) == []


def test_the_handle(process_group) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        handle = dist.all_reduce(x, async_op=True)
        assert handle.wait() and handle.is_completed()
        (found,) = handle.get_future().value()
        assert found is x
        return found * 2

    assert torch.equal(st.compile(f)(torch.ones(3)), torch.full((3,), 2.0))


def test_groups_and_reductions(process_group) -> None:
    group = dist.new_group([1, 3])
    found = st.trace(lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group), torch.ones(4))
    node = next(n for n in found.forward.graph.nodes if "all_reduce" in str(n.target))
    assert node.args[1:] == ("max", group.group_name)
    found = st.trace(lambda x: dist.broadcast(x, src=3, group=group), torch.ones(4))
    node = next(n for n in found.forward.graph.nodes if "broadcast" in str(n.target))
    assert node.args[1:] == (1, group.group_name)  # the rank in the group


REFUSED = {
    "send": lambda x: dist.send(x, 0),
    "isend": lambda x: dist.isend(x, 0),
    "recv": lambda x: dist.recv(x, 0),
    "recv from anyone": lambda x: dist.recv(x),
    "batch_isend_irecv": lambda x: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0)]),
    "barrier": lambda x: dist.barrier(),
    "reduce": lambda x: dist.reduce(x, 0),
    "gather": lambda x: dist.gather(x, None, 0),
    "scatter": lambda x: dist.scatter(x, None, 0),
    "a product with a factor": lambda x: dist.all_reduce(x, op=dist._make_nccl_premul_sum(2.0)),
    "different sizes": lambda x: dist.all_gather([torch.ones(k) for k in range(4)], x),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(process_group, name: str) -> None:
    with pytest.raises(UnsupportedError, match="the region calls the collective c10d") as caught:
        st.compile(lambda x: (REFUSED[name](x), x * 2)[1])(torch.ones(4))
    assert caught.value.path is not None and __file__ in caught.value.path
    assert "outside of the region" in str(caught.value.fix)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("call", ["broadcast_object_list", "all_gather_object", "nn.functional"])
def test_refused_as_what_they_are_made_of(process_group, call: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if call == "broadcast_object_list":
            dist.broadcast_object_list([1], src=1)
        elif call == "all_gather_object":
            dist.all_gather_object([None] * 4, 1)
        else:
            return functional.all_reduce(x)
        return x * 2

    from torch.distributed.nn import functional

    if call == "nn.functional" and not hasattr(functional, "_not_supported_under_compile"):  # torch 2.11
        assert torch.equal(st.compile(f)(torch.ones(4)), f(torch.ones(4)))
        return
    with pytest.raises(UnsupportedError):
        st.compile(f)(torch.ones(4))
