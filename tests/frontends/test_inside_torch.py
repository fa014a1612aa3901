"""Objects of the user's inside of torch's, which code of torch calls, and what code of torch reads of distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
from torch import nn

import subclass_trace as st

Tensor = torch.Tensor
Region = Callable[[Any], Any]
GAIN = {"gain": 1.0}


class Scaling(D.Transform):
    domain = codomain = D.constraints.real
    bijective = True

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w, self.temperature, self.calls, self.epoch = w, 1.0, 0, 0

    def _call(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.w * self.temperature

    def _inverse(self, y: Tensor) -> Tensor:
        self.calls += 1
        return y / self.w / self.temperature

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.w.log()


class Prior(D.Distribution):
    arg_constraints: dict[str, Any] = {}

    def __init__(self) -> None:
        super().__init__(batch_shape=torch.Size([4]), validate_args=False)
        self.k = 1.0

    def log_prob(self, x: Tensor) -> Tensor:
        return -x * self.k


def _x() -> Tensor:
    return torch.linspace(0.1, 0.4, 4)


def _normal() -> Any:
    return D.Normal(torch.zeros(4), torch.ones(4))


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _after_each(region: Region, f: Any, changes: list[Callable[[], None]]) -> list[list[float]]:
    """Results: before, and after each of the changes, twice."""
    run = region(f)
    found = [run(_x()).tolist()]
    for change in changes:
        change()
        found += [run(_x()).tolist(), run(_x()).tolist()]
    return found


def _flow() -> tuple[Any, Any, list[Any]]:
    t = Scaling(torch.ones(4))
    flow = D.TransformedDistribution(_normal(), [t])
    three = torch.ones(4) * 3
    changes = [_set(t, "temperature", 2.0), _set(t, "w", three), _set(flow.base_dist, "loc", three)]
    return flow.log_prob, t, [*changes, lambda: flow.transforms.append(D.AffineTransform(0.0, 2.0))]


def _composed() -> tuple[Any, Any, list[Any]]:
    t = Scaling(torch.ones(4))
    both = D.ComposeTransform([t, D.AffineTransform(0.0, 2.0)])
    return (lambda x: both(x) + both.inv(x)), t, [_set(t, "temperature", 2.0), _set(both.parts[1], "scale", 5.0)]


def _alone() -> tuple[Any, Any, list[Any]]:
    t = Scaling(torch.ones(4))
    return (lambda x: t(x)), t, [_set(t, "temperature", 2.0), _set(t, "w", torch.ones(4) * 3)]


def _independent() -> tuple[Any, Any, list[Any]]:
    prior = Prior()
    d = D.Independent(prior, 1)
    return d.log_prob, prior, [_set(prior, "k", 3.0)]


def _of_torch() -> tuple[Any, Any, list[Any]]:
    d = _normal()
    return d.log_prob, d, [_set(d, "loc", torch.ones(4)), _set(d, "scale", torch.ones(4) * 2)]


def _mixture() -> tuple[Any, Any, list[Any]]:
    parts = D.Normal(torch.arange(3.0), torch.ones(3))
    d = D.MixtureSameFamily(D.Categorical(logits=torch.zeros(3)), parts)
    return d.log_prob, d, [_set(parts, "loc", torch.ones(3))]


def _divergence() -> tuple[Any, Any, list[Any]]:
    p, q = _normal(), _normal()
    return (lambda x: D.kl_divergence(p, q) * x), q, [_set(q, "scale", torch.ones(4) * 2)]


_KINDS = [_flow, _composed, _alone, _independent, _of_torch, _mixture, _divergence]


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_inside_is_as_it_is_in_each_call(kind: Any) -> None:
    (f, mine, ours), (g, yours, theirs) = kind(), kind()
    assert _after_each(st.compile, lambda x: f(x), ours) == _after_each(lambda h: h, lambda x: g(x), theirs)
    assert getattr(mine, "calls", 0) == getattr(yours, "calls", 0)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_same_as_arguments(kind: Any) -> None:
    (f, _, ours), (g, _, theirs) = kind(), kind()
    run = st.compile(lambda h, x: h(x))
    assert _after_each(lambda h: lambda x: run(h, x), f, ours) == _after_each(lambda h: h, g, theirs)


def test_distributions_as_arguments() -> None:
    def run(region: Region) -> list[list[float]]:
        f, t = region(lambda d, x: d.log_prob(x)), Scaling(torch.ones(4))
        d = D.TransformedDistribution(_normal(), [t])
        found = [f(d, _x()).tolist()]
        t.temperature = 2.0
        found.append(f(d, _x()).tolist())
        d.base_dist.loc = t.w = torch.ones(4) * 3
        return [*found, f(d, _x()).tolist()]

    assert run(st.compile) == run(lambda f: f)


def test_gradients_go_to_the_tensors_that_are_there() -> None:
    def run(region: Region) -> list[Any]:
        t = Scaling(torch.ones(4, requires_grad=True))
        loc = torch.zeros(4, requires_grad=True)
        flow = D.TransformedDistribution(D.Normal(loc, 1.0), [t])
        f, first = region(lambda x: flow.log_prob(x).sum()), t.w
        f(_x()).backward()
        t.w = torch.full((4,), 2.0, requires_grad=True)
        f(_x()).backward()
        f(_x()).backward()
        return [v.grad.tolist() for v in (first, t.w, loc)]

    assert run(st.compile) == run(lambda f: f)


def test_what_nothing_reads_costs_no_specialization() -> None:
    t = Scaling(torch.ones(4))
    flow = D.TransformedDistribution(_normal(), [t])
    f = st.compile(lambda x: flow.log_prob(x).sum() + t.inv(x).sum())
    for k in range(4):
        t.epoch = k
        flow.base_dist.loc = torch.full((4,), float(k))
        f(_x())
    assert len(f.specializations) == 1 and t.calls == 8


def test_a_module_that_is_a_transform() -> None:
    class Coupling(D.Transform, nn.Module):
        domain = codomain = D.constraints.real
        bijective = True

        def __init__(self) -> None:
            nn.Module.__init__(self)
            D.Transform.__init__(self)
            self.net = nn.Linear(4, 4)

        __hash__ = nn.Module.__hash__

        def _inverse(self, y: Tensor) -> Tensor:
            return y - self.net(y) * GAIN["gain"]

        def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
            return x * 0.0

    def run(region: Region) -> list[Any]:
        torch.manual_seed(0)
        t = Coupling()
        flow = D.TransformedDistribution(_normal(), [t])
        f = region(lambda x: flow.log_prob(x).sum())
        found = [f(_x()).item()]
        for gain in (2.0, 3.0):
            GAIN["gain"] = gain
            found.append(f(_x()).item())
        f(_x()).backward()
        with torch.no_grad():
            t.net.weight.mul_(2)
        GAIN["gain"] = 1.0
        return [*found, f(_x()).item(), t.net.weight.grad]

    *ours, grad = run(st.compile)
    *theirs, expected = run(lambda f: f)
    assert ours == theirs and torch.equal(grad, expected)


def test_a_method_that_code_of_a_torch_module_calls() -> None:
    class Scaled(nn.Conv1d):
        def _conv_forward(self, *args: Any) -> Tensor:
            return super()._conv_forward(*args) * GAIN["gain"]

    def run(region: Region) -> list[float]:
        torch.manual_seed(0)
        f = region(Scaled(2, 2, 1))
        found = []
        for gain in (2.0, 1.0):
            GAIN["gain"] = gain
            found.append(f(torch.ones(1, 2, 3)).sum().item())
        return found

    assert run(st.compile) == run(lambda f: f)


def test_saved_tensor_hooks_with_a_name() -> None:
    def run(region: Region) -> list[list[float]]:
        factor = [1.0]
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * factor[0])

        def g(x: Tensor) -> Tensor:
            with hooks:
                return x.exp()

        f, found = region(g), []
        for number in (1.0, 1.0, 2.0, 3.0):
            factor[0] = number
            x = _x().requires_grad_()
            f(x).sum().backward()
            assert x.grad is not None
            found.append(x.grad.tolist())
        return found

    assert run(st.compile) == run(lambda f: f)


def test_a_module_inside_of_an_object_of_torch() -> None:
    def run(region: Region) -> list[Any]:
        torch.manual_seed(0)
        module = torch.fx.symbolic_trace(nn.Linear(4, 4))
        interpreter = torch.fx.Interpreter(module)
        f = region(lambda x: interpreter.run(x).sum())
        found = [f(_x()).item()]
        module.weight = nn.Parameter(torch.ones(4, 4))
        found.append(f(_x()).item())
        f(_x()).backward()
        return [*found, module.weight.grad.tolist()]

    assert run(st.compile) == run(lambda f: f)
