"""CUDA graphs on a GPU: what the emulated recorder cannot show. Skipped where there is none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import subclass_trace as st
from subclass_trace.zoo import TwoTensor, convert_linears

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")]
WAYS = [{"backend": "cudagraphs"}, {"backend": "inductor", "mode": "reduce-overhead"}]


def model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.2), nn.Linear(128, 64)).cuda()
    if kind == "FP8":
        made = convert_linears(made.bfloat16(), fp8_weight=True)
    if kind == "TwoTensor":
        for k in (0, 3):
            made[k].weight = nn.Parameter(TwoTensor(made[k].weight.detach(), made[k].weight.detach() * 2))
    return made


def step(call: Any, module: nn.Module, x: torch.Tensor, k: int) -> torch.Tensor:
    torch.manual_seed(k)
    loss = call(x).float().square().mean()
    loss = loss.a if isinstance(loss, TwoTensor) else loss
    loss.backward()
    with torch.no_grad():
        for p in module.parameters():
            p.sub_(p.grad, alpha=0.01)
            p.grad = None
    return loss.detach()


@pytest.mark.parametrize("way", WAYS, ids=["eager kernels", "inductor"])
@pytest.mark.parametrize("kind", ["dense", "TwoTensor", "FP8"])
def test_fifty_steps_with_dropout(kind: str, way: dict[str, Any]) -> None:
    reference = model(kind)
    trained = copy.deepcopy(reference)
    region = st.compile(trained, **way, frontend="trace")
    x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16 if kind == "FP8" else torch.float32)
    for k in range(50):
        tolerance: Any = {} if kind != "FP8" else {"rtol": 0.1, "atol": 1e-2}
        torch.testing.assert_close(step(region, trained, x, k), step(reference, reference, x, k), **tolerance)
    assert "2 recordings" in region.explain()


def test_what_is_copied_and_launched() -> None:
    module = model("dense").eval()
    region = st.compile(module, backend="cudagraphs", options={"outputs": "weak"}, frontend="trace")
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            region(x)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            region(x)
            torch.cuda.synchronize()
    names = [e.name for e in found.events()]
    assert sum(n == "cudaGraphLaunch" for n in names) == 1
    assert sum(n in ("aten::copy_", "aten::_foreach_copy_") for n in names) <= 2  # the input alone


def test_sizes_micro_batches_and_cuts_in_one_pool() -> None:
    def picks(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu() + 1
        return (y.sin() * 2 + (y > 2).nonzero().shape[0]).cos()

    region = st.compile(picks, backend="cudagraphs", frontend="trace")
    for n in (3, 5, 5, 7, 3, 7, 5, 7):
        x = torch.randn(n, 4, device="cuda")
        torch.testing.assert_close(region(x), picks(x))
    reference = model("dense").eval()
    trained = copy.deepcopy(reference)
    compiled = st.compile(trained, backend="cudagraphs", frontend="trace")
    for k in range(6):
        for call in (compiled, reference):
            losses = [call(torch.full((n, 64), float(k), device="cuda")).sum() for n in (4, 8, 4)]
            for loss in losses[:: 1 if k % 2 else -1]:
                loss.backward()
    for p, q in zip(trained.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_after_an_error_in_a_capture_the_stream_is_usable() -> None:
    @torch.library.custom_op("cuda_graph_tests::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        return x + 1

    waits.register_fake(torch.empty_like)
    region = st.compile(lambda x: waits(x * 2).sin(), backend="cudagraphs", frontend="trace")
    x = torch.randn(4, device="cuda")
    region(x)
    with pytest.warns(UserWarning, match="runs without a CUDA graph"):
        torch.testing.assert_close(region(x), (x * 2 + 1).sin())
    torch.testing.assert_close(region(x), (x * 2 + 1).sin())
