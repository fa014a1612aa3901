"""A function of ``torch.compile`` inside of a region runs its own back end, as one node."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st


class Counting:
    """A back end that counts what it compiles, and what runs."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph(*args)

        return run


@pytest.fixture
def backend() -> Counting:
    return Counting()


def compared(f: Callable[..., Any], *inputs: torch.Tensor, calls: int = 3) -> Any:
    region = st.compile(f, frontend="trace")
    for _ in range(calls):
        mine, others = copy.deepcopy(inputs), copy.deepcopy(inputs)
        before = [t._version for t in (*mine, *others)]
        with torch.no_grad():
            expected, got = f(*mine), region(*others)
        assert all(map(torch.equal, expected, got)) and all(map(torch.equal, mine, others))
        moved = [t._version - v for t, v in zip((*mine, *others), before, strict=True)]
        assert moved[: len(mine)] == moved[len(mine) :]
    return region


def test_writes_views_and_results(backend: Counting) -> None:
    @torch.compile(backend=backend)
    def update(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m.lerp_(g, 0.1)
        p.sub_(m * 0.5)
        return p.square().sum(), m.t()

    def f(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p.mul_(2)
        total, turned = update(p.view(-1).view(3, 4), m, g * 2)
        turned.add_(1)
        other, _ = update(m, p, g)
        return total + other, turned * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is lost, nothing is told
        region = compared(f, *(torch.randn(3, 4) for _ in range(3)))
    assert len(region.specializations) == 1 and "does not run" not in region.explain()
    eager = 3 * 2
    assert backend.runs == eager + 3 * 2  # two calls of it in each call of the region
    assert {n.target for n in backend.graphs[-1].graph.nodes} >= {
        torch.ops.aten.lerp_.Scalar,
        torch.ops.aten.sub_.Tensor,
    }


def test_an_optimizer_of_compiled_steps(backend: Counting) -> None:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]

    @torch.compile(backend=backend)
    def update(p: torch.Tensor, g: torch.Tensor) -> None:
        p.sub_(g * 0.1)

    @st.compile(frontend="trace")
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = sum((w * x).square().sum() for w in weights)
        loss.backward()
        with torch.no_grad():
            for w in weights:
                update(w.detach(), w.grad)
                w.grad = None
        return loss.detach()

    losses = [step(torch.ones(3)).item() for _ in range(4)]
    assert backend.runs == 8 and len(backend.graphs) == 2
    assert losses == pytest.approx([6 * 0.8 ** (2 * k) for k in range(4)])


def inlined(backend: Counting) -> dict[str, tuple[Callable[..., Any], list[tuple[torch.Tensor, ...]]]]:
    compiled = torch.compile(lambda x: x.exp() * 2, backend=backend, dynamic=True)

    def differentiated(x: torch.Tensor) -> torch.Tensor:
        loss = compiled(x).sum()
        loss.backward()
        return loss.detach()

    return {
        "sizes are symbols": (lambda x: compiled(x) + 1, [(torch.ones(n),) for n in (3, 4, 5)]),
        "it has a backward": (lambda x: compiled(x) + 1, [(torch.ones(40, 40).requires_grad_(),)]),
        "a backward in the region reads it": (differentiated, [(torch.ones(3).requires_grad_(),)]),
    }


@pytest.mark.parametrize("name", ["sizes are symbols", "it has a backward", "a backward in the region reads it"])
def test_what_is_a_part_of_the_region_is_told(name: str, backend: Counting) -> None:
    f, calls = inlined(backend)[name]
    region = st.compile(f, frontend="trace")
    with pytest.warns(UserWarning, match="its own compiled code does not run"):
        got = [region(*call) for call in calls]
    assert torch.equal(got[-1], f(*calls[-1]))
    assert "does not run" in region.explain()


def test_a_back_end_that_fails(backend: Counting) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        raise KeyError("no")

    compiled = torch.compile(lambda x: x.sin(), backend=broken)
    with pytest.raises(st.errors.BackendError, match="KeyError"):
        st.compile(lambda x: compiled(x) + 1, frontend="trace")(torch.ones(2))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore")
def test_what_torch_returns_is_called_as_dynamo_calls_it(backend: str) -> None:
    """AOTAutograd's callable says that it takes one list, and takes an argument for each input."""

    @torch.compile(backend=backend)
    def write(p: torch.Tensor, g: torch.Tensor) -> None:
        p.sub_(g * 0.5)

    @torch.compile(backend=backend)
    def give(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return p.sin() + g

    def f(p: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        write(p, g)
        return (give(p, g) * 2,)

    region, given = st.compile(f, frontend="trace"), torch.randn(3, 4)
    for _ in range(3):
        mine, others = torch.ones(3, 4), torch.ones(3, 4)
        with torch.no_grad():
            expected, got = f(mine, given), region(others, given)
        assert torch.equal(expected[0], got[0]) and torch.equal(mine, others)
    assert "served by our trace" in region.explain()
