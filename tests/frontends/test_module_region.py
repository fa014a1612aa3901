"""A region of a module is a module: of others, for optimizers, for those who set attributes on it."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_features import VERSION

import subclass_trace as st
from subclass_trace.frontends.dynamo import register
from subclass_trace.zoo import TwoTensor


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.scale = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.dropout(self.linear(x)).relu() * self.scale


class Own(nn.Module):
    """Has its own way with what parents ask of their children."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.modes: list[bool] = []

    def train(self, mode: bool = True) -> Own:
        self.modes.append(mode)
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x

    def twice(self) -> torch.Tensor:
        return self.weight * 2


def compiled(module: nn.Module) -> nn.Module:
    return st.compile(module, backend="eager")


def network(wrap: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(wrap(Block()), wrap(Block()), nn.Linear(4, 2))


def test_children_that_are_regions_train_as_in_eager() -> None:
    x, runs = torch.randn(3, 4), []
    for wrap in (lambda m: m, compiled):
        model = network(wrap)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        losses = []
        for step in range(4):
            if step == 2:
                model.eval()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        runs.append((losses, [n for n, _ in model.named_modules()], model.state_dict()))
    assert runs[0][:2] == runs[1][:2]
    assert list(runs[0][2]) == list(runs[1][2])
    for a, b in zip(runs[0][2].values(), runs[1][2].values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_attributes_are_set_on_the_module() -> None:
    module, x = Block().eval(), torch.randn(3, 4)
    region = compiled(module)
    region(x)
    region.scale = 3
    assert module.scale == 3
    torch.testing.assert_close(region(x), module(x))
    region.linear.weight = nn.Parameter(torch.zeros(4, 4))
    region.linear.bias = None
    assert not region(x).any()
    region.training = True
    assert module.training
    del region.scale
    assert not hasattr(module, "scale")


def test_what_parents_ask_is_asked_of_the_module() -> None:
    own = Own()
    parent = nn.ModuleDict({"own": compiled(own)})
    parent.eval()
    assert own.modes == [False]
    assert [n for n, _ in parent.named_parameters()] == ["own.weight"]
    parent.to(torch.float64)
    assert own.weight.dtype is torch.float64
    torch.testing.assert_close(parent["own"].twice(), own.twice())
    parent.load_state_dict({"own.weight": torch.zeros(2)})
    assert not own.weight.any()
    parent.apply(lambda m: setattr(m, "visited", True))
    assert own.visited


def test_a_region_around_regions() -> None:
    model, x = network(compiled).eval(), torch.randn(3, 4, requires_grad=True)
    whole = compiled(model)
    got, expected = whole(x), model(x)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, expected)))
    before = float(model[0].calls)
    whole(x)
    assert float(model[0].calls) == before + 1
    with torch.no_grad():
        model[0].linear.weight.zero_()
    torch.testing.assert_close(whole(x), model(x))
    model[0].scale = 5
    torch.testing.assert_close(whole(x), model(x))


def test_a_region_of_a_module_in_a_closure_and_as_argument() -> None:
    own = compiled(Own())
    x = torch.ones(2, requires_grad=True)
    for region, args in ((compiled_function(own), (x,)), (st.compile(lambda m, x: m(x) * 3), (own, x))):
        result = region(*args)
        torch.testing.assert_close(result, own(x) * 3)
        (gradient,) = torch.autograd.grad(result.sum(), own.weight)
        torch.testing.assert_close(gradient, torch.full((2,), 3.0))


def compiled_function(module: nn.Module) -> Any:
    return st.compile(lambda x: module(x) * 3)


@pytest.mark.parametrize("backend", ["aot_eager", "subclass_trace"])
def test_inside_of_torch_compile(backend: str) -> None:
    if VERSION < (2, 12):
        pytest.skip("Dynamo of this torch reads no slots of a module")
    register()
    model, x = network(compiled).eval(), torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(model, backend=backend, fullgraph=True)(x), model(x))


def test_copies_and_pickles() -> None:
    model = network(compiled).eval()
    model(torch.randn(3, 4))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(other[0], Block) and other[0].specializations == []
        assert other[0].function is not model[0].function
        x = torch.randn(3, 4)
        torch.testing.assert_close(other(x), model(x))


def test_hooks_and_averages() -> None:
    from torch.optim.swa_utils import AveragedModel

    seen: list[int] = []
    region = compiled(nn.Linear(4, 4))
    handle = region.register_forward_hook(lambda module, args, result: result * 2)
    x = torch.randn(3, 4)
    torch.testing.assert_close(region(x), nn.functional.linear(x, region.weight, region.bias) * 2)
    handle.remove()
    region.register_full_backward_hook(lambda *_: seen.append(1))
    average = AveragedModel(region)
    average.update_parameters(region)
    torch.testing.assert_close(average(x), region.function(x))
    with pytest.raises(AttributeError, match="missing"):
        _ = region.missing


def test_functional_call() -> None:
    region = compiled(nn.Linear(4, 4))
    x, weight = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    region(x)
    got, expected = (torch.func.functional_call(m, {"weight": weight}, (x,)) for m in (region, region.function))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), weight) for y in (got, expected)))


class Recurrent(nn.Module):
    """Has members of its own by the names of a region's."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 3)
        self.options = {"gain": 2.0}
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.cell(x, torch.zeros_like(x) if self.state is None else self.state)
        return self.state * self.options["gain"]

    def reset(self) -> None:
        self.state = None

    @property
    def specializations(self) -> str:
        return "of the module"


def test_members_of_the_module_come_first() -> None:
    runs = []
    for wrap in (lambda m: m, compiled):
        torch.manual_seed(0)
        model, x = wrap(Recurrent()), torch.ones(1, 3)
        first = model(x)
        model.reset()
        assert model.state is None and model.specializations == "of the module"
        again = model(x)
        model.options = {"gain": 3.0}
        runs.append((first, again, model(x), model.options))
    assert torch.equal(runs[1][0], runs[1][1])
    assert all(map(torch.equal, runs[0][:3], runs[1][:3])) and runs[0][3] == runs[1][3]
    assert "function" in dir(model) and isinstance(model.function, Recurrent) and "[0]" in model.explain()


def test_operators_of_the_module() -> None:
    plain = network(lambda m: m)
    region = compiled(plain)
    assert len(region) == 3 and region[0] is plain[0] and list(region) == list(plain) and region[-1] is plain[-1]
    region[2] = nn.Linear(4, 5)
    assert region(torch.randn(3, 4)).shape == (3, 5) and isinstance(plain[2], nn.Linear)
    extended = region
    extended += nn.Sequential(nn.ReLU())
    assert extended is region and len(plain) == 4
    with pytest.raises(TypeError):
        len(compiled(nn.Linear(2, 2)))
    for other in (copy.deepcopy(region), pickle.loads(pickle.dumps(region))):
        assert type(other) is type(region) and len(other) == 4 and other[0] is not region[0]


def test_what_returns_the_module_returns_the_region() -> None:
    region = compiled(nn.Linear(2, 2))
    assert all(getattr(region, name)() is region for name in ("eval", "train", "double", "requires_grad_", "cpu"))
    assert region.to("cpu") is region and region.apply(lambda m: None) is region
    layers = compiled(nn.Sequential(nn.Linear(2, 2)))
    assert layers.append(nn.ReLU()) is layers and layers.extend([nn.Tanh()]) is layers
    assert layers.insert(1, nn.Sigmoid()) is layers and len(layers) == 4


def test_wrapper_weights_are_swapped_right_after_a_call() -> None:
    """Torch swaps no tensor that somebody has a weak reference to, and a capture may be in memory still."""
    model = nn.Linear(2, 2, bias=False)
    model.weight = nn.Parameter(TwoTensor(torch.ones(2, 2), torch.ones(2, 2)))
    region = st.compile(model)
    gc.disable()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            region.to(dtype)
            for around in (torch.no_grad, torch.enable_grad):
                with around():
                    assert region(torch.ones(1, 2, dtype=dtype)).dtype is dtype
    finally:
        gc.enable()


def test_comparisons_of_the_module() -> None:
    class Ranked(nn.Linear):
        rank = 0

        def __lt__(self, other: Any) -> bool:
            return self.rank < other.rank

        def __eq__(self, other: object) -> bool:
            return isinstance(other, nn.Module) and self.rank == other.rank

        def __hash__(self) -> int:
            return 7

        def __str__(self) -> str:
            return f"rank {self.rank}"

    first, second = Ranked(1, 1), Ranked(1, 1)
    second.rank = 2
    region = compiled(first)
    assert region < second and region == first and region != second and hash(region) == 7 and str(region) == "rank 0"
    assert region(torch.ones(1, 1)).shape == (1, 1)


def test_its_forward_takes_what_the_module_takes() -> None:
    """Transformers' ``generate`` leaves out arguments that a model's forward does not name."""

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            """A product."""
            return super().forward(x) * scale

    module = Scaled(2, 2)
    region = st.compile(module)
    assert inspect.signature(region.forward) == inspect.signature(module.forward)
    assert inspect.signature(_doubled(region.forward)) == inspect.signature(module.forward)
    assert region.forward.__doc__ == "A product."
    assert torch.equal(region(torch.ones(1, 2), scale=2.0), module(torch.ones(1, 2), scale=2.0))


def test_a_call_of_the_users_runs_once() -> None:
    class Doubled(torch.nn.Linear):
        calls = 0

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().__call__(x) * 2

    module, x = Doubled(4, 4), torch.ones(2, 4)
    region = st.compile(module)
    for k in range(3):
        assert torch.equal(region(x), torch.nn.functional.linear(x, module.weight, module.bias) * 2)
        assert module.calls == k + 1


# ---------------------------------------------------------------------------------------------- another forward
def _doubled(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def doubled(*args: Any) -> Any:
        return forward(*args) * 2

    return doubled


def _replaced(times: int, module: nn.Module) -> nn.Module:
    for _ in range(times):
        module.forward = _doubled(module.forward)  # type: ignore[method-assign]
    return module


def _compiled_again(module: nn.Module) -> nn.Module:
    module.forward = st.compile(module.forward)  # type: ignore[method-assign]
    return module


def _removed(module: nn.Module) -> nn.Module:
    del _replaced(2, module).forward
    return module


FORWARDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "once": functools.partial(_replaced, 1),
    "twice": functools.partial(_replaced, 2),
    "compiled": _compiled_again,
    "removed": _removed,
}


@pytest.mark.parametrize("hooks", ["none", "on the region", "on both"])
@pytest.mark.parametrize("when", ["before", "after", "before and after", "between calls"])
@pytest.mark.parametrize("how", FORWARDS)
def test_forward_is_replaced(how: str, when: str, hooks: str) -> None:
    """As accelerate does, or whoever logs calls."""

    def run(wrap: Callable[[nn.Module], nn.Module]) -> list[Any]:
        torch.manual_seed(0)
        module, x = nn.Linear(4, 4), torch.ones(2, 4)
        if hooks == "on both":
            module.register_forward_hook(lambda m, args, y: y + 1)
        if "before" in when:
            module = FORWARDS[how](module)
        module = wrap(module)
        if hooks != "none":
            module.register_forward_hook(lambda m, args, y: y * 3)
        first = module(x) if when == "between calls" else None
        if when != "before":
            module = FORWARDS[how](module)
        assert [*inspect.signature(module.forward).parameters] in (["input"], ["args", "kwargs"])
        return [first, module(x), module(x)]

    torch.testing.assert_close(run(compiled), run(lambda m: m))


def test_a_forward_that_was_replaced_is_compiled_beneath_hooks_of_the_region() -> None:
    region = compiled(_replaced(1, nn.Linear(4, 4)))
    region.register_forward_hook(lambda m, args, y: y * 3)
    region(torch.ones(2, 4))
    assert len(region.specializations) == 1  # type: ignore[arg-type]
