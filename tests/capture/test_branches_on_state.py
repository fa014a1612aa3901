"""Branches on small tensors of the state are decided while the region is traced, and looked at by each call before it writes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import subclass_trace as st

Step = Callable[[torch.Tensor], torch.Tensor]
OTHER = "a value in the state of the region"


def averaged(**options: Any) -> Callable[[nn.Module], tuple[Step, nn.Module]]:
    def make(module: nn.Module) -> tuple[Step, nn.Module]:
        average, optimizer = AveragedModel(module, **options), torch.optim.SGD(module.parameters(), 0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(module)
            return loss.detach()

        return step, average

    return make


def rectified(**options: Any) -> Callable[[nn.Module], tuple[Step, nn.Module]]:
    def make(module: nn.Module) -> tuple[Step, nn.Module]:
        optimizer = torch.optim.RAdam(module.parameters(), 0.1, **options)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step, module

    return make


class Counting(nn.Module):
    """Branches on what it has counted, after other writes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        self.n += 1
        y = F.dropout(self.module(x) * 1, 0.5)
        if self.n.item() % 3 == 0:
            y = y + torch.rand_like(y)
        while self.n > 5:
            self.n -= 4
            self.seen.mul_(0.5)
        return y.detach()


def counting(module: nn.Module) -> tuple[Step, nn.Module]:
    made = Counting(module)
    return made.__call__, made


STEPS = {
    "the average of weights": (averaged(), 2),
    "a moving average": (averaged(multi_avg_fn=get_ema_multi_avg_fn(0.9)), 2),
    "with buffers": (averaged(use_buffers=True), 2),
    "a function of one's own": (averaged(avg_fn=lambda a, b, n: a + (b - a) / (n + 1.0)), 2),
    "RAdam": (rectified(foreach=False), 2),
    "RAdam, all tensors at once": (rectified(foreach=True), 2),
    "a count": (counting, 4),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.sweep(every=3)
def test_each_branch_has_a_program(name: str) -> None:
    make, most = STEPS[name]
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    (eager, left), (traced, right) = make(copy.deepcopy(module)), make(copy.deepcopy(module))
    region = st.compile(traced, frontend="trace")
    for k in range(12):
        x = torch.randn(8, 4)
        torch.manual_seed(k)
        expected, drawn = eager(x), torch.get_rng_state()
        torch.manual_seed(k)
        assert torch.equal(expected, region(x)) and torch.equal(drawn, torch.get_rng_state())
        for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True):
            assert torch.equal(a, b) and a._version == b._version
    assert 2 <= len(region.specializations) <= most
    assert OTHER in region.specializations[1].reason


def test_a_program_that_is_left_has_written_nothing() -> None:
    held = {"n": torch.zeros(()), "sum": torch.zeros(3)}
    writes = []

    def f(x: torch.Tensor) -> torch.Tensor:
        held["sum"].add_(x)
        writes.append(1)
        return x * 2 if held["n"] > 0 else x * 3

    region = st.compile(f, frontend="trace")
    for k, n in enumerate((0.0, 1.0, -1.0, float("nan"), 2.0)):
        held["n"].fill_(n)
        assert torch.equal(region(torch.ones(3)), torch.full((3,), 2.0 if n > 0 else 3.0))
        assert torch.equal(held["sum"], torch.full((3,), k + 1.0)) and len(writes) == k + 1
    assert len(region.specializations) == 2


def test_with_a_backward_of_its_own() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).sin() if self.n < 2 else x * self.weight.exp()

    one, other = Gate(), Gate()
    other.n.fill_(5)
    regions = [st.compile(m, frontend="trace") for m in (one, other)]  # equal modules share programs
    for n in (0, 3, 1, 4):
        one.n.fill_(n)
        for module, region in zip((one, other), regions, strict=True):
            x = torch.randn(3)
            gradients = [torch.autograd.grad(f(x).sum(), module.weight)[0] for f in (module.forward, region)]
            assert torch.equal(*gradients)
    assert [len(r.specializations) for r in regions] == [2, 2]


def test_what_state_does_not_tell_is_refused() -> None:
    n, flat = torch.zeros(()), torch.zeros(2)
    of_flat = flat[0]

    def of_an_argument(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    def of_what_was_written(x: torch.Tensor) -> torch.Tensor:
        n.copy_(x.sum())
        return x * 2 if n > 0 else x

    def of_shared_memory(x: torch.Tensor) -> torch.Tensor:
        flat.add_(1)
        return x * 2 if of_flat > 0 else x

    for f in (of_an_argument, of_what_was_written, of_shared_memory):
        with pytest.raises(st.errors.UnsupportedError):
            st.compile(f, frontend="trace").specialize(torch.ones(2))


def test_a_condition_reads_what_was_there_when_it_was_computed() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            was_low = self.n < 2
            self.n += 1
            doubled = self.n * 2
            y = x * 2 if self.n == 3 else x
            return y + 1 if was_low else y - 1 if doubled > 8 else y

    eager, traced = Held(), Held()
    region = st.compile(traced, frontend="trace")
    for _ in range(7):
        x = torch.randn(3)
        assert torch.equal(eager(x), region(x)) and torch.equal(eager.n, traced.n)
    assert len(region.specializations) == 4
