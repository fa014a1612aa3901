"""Branches on values in torch's own Python code: checks of torch.distributions, and the hint of a causal mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributions as dist
from torch import nn

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Dynamo has been used, torch checks none from then on, in eager either."""
    monkeypatch.setattr(dist.Distribution, "_validate_args", True)


SAMPLES: dict[str, Callable[[Tensor], Tensor]] = {
    "Normal": lambda x: dist.Normal(x, 1.0).rsample((2,)),
    "kl": lambda x: dist.kl_divergence(dist.Normal(x, 1.0), dist.Normal(0.0, 1.0)),
    "Categorical": lambda x: dist.Categorical(logits=x).log_prob(torch.tensor(1)),
    "MultivariateNormal": lambda x: dist.MultivariateNormal(torch.zeros(2), torch.diag(x)).log_prob(x),
    "ContinuousBernoulli": lambda x: dist.ContinuousBernoulli(x / 4, validate_args=True).log_prob(x / 4),
    "Dirichlet": lambda x: dist.Dirichlet(x).log_prob(x / x.sum()),
    "Independent": lambda x: dist.Independent(dist.Normal(x, x), 1).log_prob(x),
    "transformed": lambda x: dist.TransformedDistribution(dist.Normal(x, x), [dist.TanhTransform()]).rsample(),
}


def outcome(f: Callable[..., Tensor], values: list[float]) -> Any:
    torch.manual_seed(0)
    x = torch.tensor(values, requires_grad=True)
    try:
        out = f(x)
    except (ValueError, RuntimeError) as error:
        return type(error)
    out.sum().backward()
    return out.detach(), x.grad


@pytest.mark.parametrize("name", SAMPLES)
def test_arguments_are_checked_in_each_call(name: str) -> None:
    f = SAMPLES[name]
    compiled = st.compile(f)
    with verify.enabled():
        for values in ([1.0, 2.0], [0.5, 1.5], [-1.0, float("nan")], [2.0, 1.0]):
            theirs, mine = outcome(f, values), outcome(compiled, values)
            if isinstance(theirs, type) or isinstance(mine, type):
                assert (mine, theirs) == (RuntimeError, ValueError)
            else:
                assert torch.equal(mine[0], theirs[0]) and torch.allclose(mine[1], theirs[1])
    assert len(compiled.specializations) == 1


VARIANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda v: nn.functional.gaussian_nll_loss(v.detach().sin(), v.detach().cos(), v),
    "module": lambda v: nn.GaussianNLLLoss(full=True, reduction="none")(v * 2, v.cos(), v),
}


@pytest.mark.parametrize("name", VARIANCES)
def test_variances_of_a_gaussian_loss_are_checked_in_each_call(name: str) -> None:
    f = VARIANCES[name]
    compiled = st.compile(f)
    with verify.enabled():
        for values in ([1.0, 2.0], [-1.0, 2.0], [0.0, float("nan")], [2.0, -0.0]):
            theirs, mine = outcome(f, values), outcome(compiled, values)
            if isinstance(theirs, type) or isinstance(mine, type):
                assert (mine, theirs) == (RuntimeError, ValueError)
            else:
                for a, b in zip(mine, theirs, strict=True):
                    torch.testing.assert_close(a, b, equal_nan=True)
    assert len(compiled.specializations) == 1


class Branching(TwoTensor):
    """Its own code asks for a value while torch's function runs."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lt.Scalar and (args[0].a > 3).any():
            return super().__torch_dispatch__(func, types, (args[0] - 1, *args[1:]), kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_branch_of_a_class_in_a_check_is_refused() -> None:
    x = Branching(torch.ones(2), torch.zeros(2))
    with pytest.raises(st.DataDependentError, match="branches on the value") as caught:
        st.compile(nn.functional.gaussian_nll_loss)(x, x, x)
    assert "test_library_branches.py" in str(caught.value.path)


INDEX = torch.tensor([[0, 1, 1], [0, 1, 2], [3, 1, 1], [0, 2, 1]])
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scatter_reduce": lambda x, s: x.scatter_reduce(0, INDEX, s, "prod"),
    "index_reduce": lambda x, s: x.index_reduce(0, INDEX[:, 1], s, "prod"),
}


def penalty(f: Callable[..., Tensor], x: Tensor, s: Tensor) -> list[Tensor]:
    x, s = x.clone().requires_grad_(), s.clone().requires_grad_()
    a, b = torch.autograd.grad(f(x, s).sum(), [x, s], create_graph=True)
    return list(torch.autograd.grad(a.square().sum() + b.square().sum(), [x, s]))


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_products_that_are_differentiated_again(name: str) -> None:
    f = PRODUCTS[name]
    region = st.compile(f)
    inside = st.compile(lambda x, s: penalty(f, x, s))
    rows = torch.linspace(0.5, 2, 12, dtype=torch.float64).view(4, 3)
    one_zero = rows.flip(0) * (rows != rows[1, 1])
    with verify.enabled():
        for s in (rows.flip(0), one_zero):
            expected = penalty(f, rows, s)
            for found in (penalty(region, rows, s), inside(rows, s)):
                assert all(map(torch.equal, found, expected))
    assert torch.equal(region(rows, rows * 0), f(rows, rows * 0))
    for call in (f, region):
        with pytest.raises(RuntimeError, match=r"Double backward is unsupported for s"):
            penalty(call, rows, rows * 0)


def test_invalid_from_the_first_call_on() -> None:
    compiled = st.compile(SAMPLES["Normal"])
    with pytest.raises(RuntimeError, match="Expected parameter loc of distribution Normal"):
        compiled(torch.tensor([1.0, float("nan")]))


def test_of_a_wrapper() -> None:
    compiled = st.compile(lambda x: dist.Normal(x * 2, x).rsample())
    torch.manual_seed(0)
    mine = compiled(TwoTensor(torch.ones(2), torch.ones(2)))
    torch.manual_seed(0)
    assert torch.equal(mine.a, dist.Normal(torch.full((2,), 2.0), torch.ones(2)).rsample())
    with pytest.raises(RuntimeError, match="Expected parameter scale"):
        compiled(TwoTensor(torch.ones(2), -torch.ones(2)))


@pytest.mark.parametrize("written", ["before", "after"])
def test_what_is_written_when_a_check_fails_is_what_eager_has_written(written: str) -> None:
    def before(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return dist.Normal(0.0, x).log_prob(y)

    def after(x: Tensor, y: Tensor) -> Tensor:
        result = dist.Normal(0.0, x).log_prob(y)
        y.add_(1)
        return result

    f = before if written == "before" else after
    found = []
    for call in (f, st.compile(f)):
        y = torch.zeros(2)
        with pytest.raises((ValueError, RuntimeError), match="scale"):
            call(-torch.ones(2), y)
        found.append((y.tolist(), y._version))
    assert found[0] == found[1]


class Odd(dist.constraints.Constraint):
    def check(self, value: Tensor) -> Tensor:
        return value > 1 if (value > 3).any() else value < 10


class WithOdd(dist.Normal):
    arg_constraints = {"loc": Odd(), "scale": dist.constraints.positive}


@pytest.mark.parametrize(
    "f",
    [lambda x: WithOdd(x, 1.0).rsample(), lambda x: dist.constraints.positive_definite.check(torch.diag(x))],
    ids=["a branch of the user's", "a result that depends on a branch"],
)
def test_other_branches_are_refused(f: Callable[[Tensor], Any]) -> None:
    with pytest.raises(st.DataDependentError) as caught:
        st.compile(f)(torch.ones(2))
    assert "test_library_branches.py" in str(caught.value.path)


@pytest.mark.parametrize("training", [False, True])
def test_a_causal_mask(training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True).train(training)
    compiled = st.compile(model)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    for mask in (causal, torch.zeros(3, 3), causal.clone()):
        x = torch.randn(1, 3, 4)
        rows = []
        for f in (model, compiled):
            model.zero_grad()
            out = f(x, x, tgt_mask=mask)
            out.square().sum().backward()
            rows.append([out.detach(), *[p.grad for p in model.parameters()]])
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*rows, strict=True))
    assert len(compiled.specializations) == 1


@pytest.mark.parametrize(
    ("make", "ask"),
    [
        (lambda: torch.distributions.Categorical(logits=torch.zeros(3)), lambda d, x: d.probs * x + d.entropy()),
        (lambda: torch.distributions.Bernoulli(probs=torch.full((3,), 0.3)), lambda d, x: d.log_prob((x > 1).float())),
        (
            lambda: torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)),
            lambda d, x: d.precision_matrix @ x,
        ),
    ],
)
def test_a_distribution_from_outside_keeps_nothing_of_a_trace(make, ask) -> None:
    mine, theirs = make(), make()
    region = st.compile(lambda x: ask(mine, x))
    for k in (1.0, 2.0):
        x = torch.full((3,), k)
        assert torch.equal(region(x), ask(theirs, x))
    assert torch.equal(ask(mine, torch.ones(3)), ask(theirs, torch.ones(3)))  # in eager mode, afterwards


def test_a_distribution_that_the_region_makes_keeps_what_it_computes() -> None:
    def gradient_of_logits(p: torch.Tensor) -> Any:
        d = dist.Categorical(probs=p)
        loss = d.log_prob(torch.tensor([0, 1])).sum()
        return torch.autograd.grad(loss, d.logits, retain_graph=True)[0], d.logits is d.logits

    def likelihood(p: torch.Tensor) -> Any:
        loss = dist.Binomial(5, p[0], validate_args=False).log_prob(torch.tensor([1.0, 2.0]))
        return torch.autograd.grad(loss.sum(), p)[0], loss

    p = torch.tensor([[0.09, 0.15], [0.21, 0.79]], requires_grad=True)
    for f in (gradient_of_logits, likelihood):
        expected, got = f(p), st.compile(f, backend="eager")(p)
        assert torch.equal(expected[0], got[0])
        assert torch.equal(expected[1], got[1]) if isinstance(got[1], torch.Tensor) else expected[1] is got[1] is True
