"""A whole training step as one region: forward, backward, and AdamW over wrapper parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import subclass_trace as st
from subclass_trace.zoo import TwoTensor
from subclass_trace.zoo.scaled_fp8 import ScaledFP8, convert_linears

Step = Callable[..., torch.Tensor]
STEPS = 50


def mlp() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def pairs() -> torch.nn.Module:
    model = mlp()
    for layer in (model[0], model[2]):
        for name, p in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(TwoTensor(p.detach(), p.detach() * 2)))
    return model


def over_a_mesh() -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    # None: each rank takes its part of what it has, and no other rank needs to send it
    return parallelize_module(mlp(), init_device_mesh("cpu", (4,)), plan, src_data_rank=None)


@pytest.fixture
def ranks() -> Iterator[None]:
    """Four ranks, of which this process is the first and the others are pretended."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("no torch.distributed")
    from fake_collectives import collectives_that_write
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with collectives_that_write():
            yield
    finally:
        dist.destroy_process_group()


def curve(model: torch.nn.Module, wrap: Callable[[Step], Any] = lambda step: step) -> tuple[list[torch.Tensor], Any]:
    """The losses of all steps, and what ran them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run, losses = wrap(step), []
    for seed in range(STEPS):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed))
        losses.append(run(x, x[:, :4].tanh()))
    return losses, run


def numbers(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Plain tensors of the same values."""
    found: list[torch.Tensor] = []
    for v in values:
        v = v.detach()
        if isinstance(v, TwoTensor):
            found += [v.a, v.b]
        elif isinstance(v, ScaledFP8):
            found += [v.qdata.float(), v.scale]
        else:
            found.append(v.to_local() if hasattr(v, "to_local") else v)
    return found


def compare(build: Callable[[], torch.nn.Module], backend: str, expected_class: type, **tolerance: float) -> None:
    eager, model = build(), build()
    weight = model[0].weight
    assert type(weight.data) is expected_class
    expected, _ = curve(eager)
    got, region = curve(model, lambda step: st.compile(step, backend=backend))
    assert float(numbers(expected[-1:])[0]) < 0.6 * float(numbers(expected[:1])[0])
    torch.testing.assert_close(numbers(got), numbers(expected), **tolerance)
    torch.testing.assert_close(numbers(list(model.parameters())), numbers(list(eager.parameters())), **tolerance)
    assert model[0].weight is weight and len(region.specializations) == 1  # the first step runs eagerly


@pytest.mark.parametrize(
    ("build", "kind"),
    [(mlp, torch.Tensor), (pairs, TwoTensor), (lambda: convert_linears(mlp(), fp8_weight=True), ScaledFP8)],
    ids=["plain", "pairs", "fp8"],
)
def test_fifty_steps(build: Callable[[], torch.nn.Module], kind: type) -> None:
    compare(build, "eager", kind)


def test_fifty_steps_over_a_mesh(ranks: None) -> None:
    from torch.distributed.tensor import DTensor

    compare(over_a_mesh, "eager", DTensor)


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("build, kind", [(mlp, torch.Tensor), (pairs, TwoTensor)], ids=["plain", "pairs"])
def test_fifty_steps_with_inductor(build: Callable[[], torch.nn.Module], kind: type) -> None:
    compare(build, "inductor", kind, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_result_beside_the_step_has_its_own_backward(name: str) -> None:
    """Its backward is traced after that of the step, of the same recorded program."""

    def train(wrap: Callable[..., Any]) -> Any:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1)
        other = torch.ones(3, requires_grad=True)

        def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            optimizer.zero_grad()
            loss = (weight * 2).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach(), x * 3

        region = wrap(step)
        losses = []
        for _ in range(4):
            loss, result = region(other)
            result.sum().backward()
            losses.append(loss.item())
        return losses, other.grad, weight

    torch.testing.assert_close(train(st.compile), train(lambda f: f), rtol=0, atol=0)
