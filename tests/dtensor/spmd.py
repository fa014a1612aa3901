"""Help for the DTensor tests: look at a value, and compare a compiled function with the eager one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import subclass_trace as st

Tensor = torch.Tensor
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
Make = Callable[[], tuple[tuple[Any, ...], Sequence[Tensor]]]


def values(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seen(value: Any, requires_grad: bool = True) -> Any:
    """All that can be compared of a value: types, placements, shapes, and the dense tensors inside."""
    if isinstance(value, AsyncCollectiveTensor):  # eager waits when the value is used; a graph has waited already
        value = value.trigger_wait()
    if not isinstance(value, Tensor):
        return value
    facts: dict[str, Any] = {"type": type(value).__name__, "shape": list(value.shape), "stride": list(value.stride())}
    if requires_grad:
        facts |= {"requires_grad": value.requires_grad, "is_leaf": value.is_leaf}
    if isinstance(value, DTensor):
        facts |= {"placements": value.placements, "mesh": value.device_mesh}
        facts["local"] = seen(value._local_tensor, requires_grad=False)
    elif is_traceable_wrapper_subclass(value):
        facts["inner"] = {n: seen(getattr(value, n), requires_grad=False) for n in value.__tensor_flatten__()[0]}
    else:
        facts["value"] = value.detach().clone()
    return facts


def difference(eager: Any, compiled: Any, tolerance: float = 0.0, path: str = "") -> str | None:
    """The first difference; None where there is none. Bit for bit without a tolerance."""
    if isinstance(eager, Tensor) and isinstance(compiled, Tensor):
        same = eager.dtype == compiled.dtype and eager.shape == compiled.shape
        if same and torch.allclose(eager, compiled, rtol=tolerance, atol=tolerance, equal_nan=True):
            return None
        return f"{path}: {eager} eager, {compiled} compiled"
    if isinstance(eager, dict) and isinstance(compiled, dict) and eager.keys() == compiled.keys():
        return next((d for k in eager if (d := difference(eager[k], compiled[k], tolerance, f"{path}.{k}"))), None)
    if isinstance(eager, list) and isinstance(compiled, list) and len(eager) == len(compiled):
        rows = enumerate(zip(eager, compiled, strict=True))
        return next((d for k, (a, b) in rows if (d := difference(a, b, tolerance, f"{path}[{k}]"))), None)
    return None if eager == compiled else f"{path}: {eager} eager, {compiled} compiled"


def tangent(out: Tensor) -> Tensor:
    """A gradient of the output's own type and placements, different at each place."""
    if isinstance(out, AsyncCollectiveTensor):
        out = out.trigger_wait()
    if isinstance(out, DTensor):
        return DTensor.from_local(
            tangent(out._local_tensor),
            out.device_mesh,
            out.placements,
            run_check=False,
            shape=out.shape,
            stride=out.stride(),
        )
    if is_traceable_wrapper_subclass(out):
        names, context = out.__tensor_flatten__()
        inner = {n: tangent(getattr(out, n)) for n in names}
        return type(out).__tensor_unflatten__(inner, context, out.shape, out.stride())
    return torch.linspace(-1, 1, max(out.numel(), 1))[: out.numel()].reshape(out.shape)


def behaviour(f: Callable[..., Any], make: Make, *, backward: bool = True) -> dict[str, Any]:
    """Run ``f`` forward and backward on fresh arguments; its results, what became of the arguments, the gradients."""
    args, roots = make()
    torch.manual_seed(3)
    results = pytree.tree_leaves(f(*args))
    found = {
        "results": [seen(r) for r in results],
        "arguments": [seen(a) for a in pytree.tree_leaves(args)],
        "state": [seen(p) for a in args if isinstance(a, torch.nn.Module) for p in [*a.parameters(), *a.buffers()]],
    }
    if backward:
        outs = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
        assert outs, "no result is differentiable"
        torch.autograd.backward(outs, [tangent(o) for o in outs])
        found["gradients"] = [seen(r.grad) for r in roots]
        assert any(g is not None for g in found["gradients"])
    return found


def check(f: Callable[..., Any], make: Make, *, backward: bool = True, calls: int = 2, tolerance: float = 0.0) -> Any:
    """Eager and compiled agree on each of several calls, with one specialization; returns the region."""
    region = st.compile(f)
    for call in range(calls):
        want = behaviour(f, make, backward=backward)
        again = behaviour(f, make, backward=backward) if call == 0 else want
        assert difference(want, again) is None, f"eager is not deterministic: {difference(want, again)}"
        found = difference(want, behaviour(region, make, backward=backward), tolerance)
        assert found is None, f"call {call}: {found}"
    assert len(region.specializations) == 1, region.explain()
    return region


def operations(module: torch.fx.GraphModule) -> list[str]:
    """The operations of a graph, without overload names: ``aten.mm``, ``_c10d_functional.all_reduce``."""
    return [str(n.target).rsplit(".", 1)[0] for n in module.graph.nodes if n.op == "call_function"]


def collectives(module: torch.fx.GraphModule) -> list[str]:
    """Those that talk to other processes, in order."""
    names = [o.split(".") for o in operations(module)]
    return [n[1] for n in names if n[0] in ("_c10d_functional", "_dtensor") and n[1] != "wait_tensor"]


# ---------------------------------------------------------------------------------------------- what tests are made of
REPLICATE, ROWS, COLUMNS = [Replicate()], [Shard(0)], [Shard(1)]


def whole(mesh: DeviceMesh, *shape: int, placements: Any = REPLICATE, seed: int = 0, grad: bool = False) -> DTensor:
    """A DTensor made of one whole tensor, the same on all ranks."""
    return distribute_tensor(values(*shape, seed=seed), mesh, placements, src_data_rank=None).requires_grad_(grad)


def of_local(mesh: DeviceMesh, *shape: int, placements: Any, seed: int = 0) -> DTensor:
    """A DTensor made of this rank's part."""
    return DTensor.from_local(values(*shape, seed=seed), mesh, placements, run_check=False).requires_grad_()


def on_its_way(mesh: DeviceMesh, *shape: int, seed: int = 0) -> AsyncCollectiveTensor:
    """A result of a collective that has not been waited for."""
    part = DTensor.from_local(values(*shape, seed=seed), mesh, ROWS, run_check=False)
    found = part.redistribute(placements=REPLICATE, async_op=True).to_local()
    assert type(found) is AsyncCollectiveTensor
    return found


def column(x, w):
    return F.linear(x, w)
