"""What Dynamo serves, and when it no longer does: no region is slower for ever because it was handed over."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import subclass_trace as st
from subclass_trace.torch_api.dynamo import frames_tried, is_of_dynamo

Tensor = torch.Tensor


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def differentiated(model: nn.Module) -> Callable[[Tensor], Any]:
    """Dynamo of torch 2.15 tries the piece with the gradient in vain in each call, unless told to have it in its graph."""

    def step(x: Tensor) -> Any:
        if x.sum() > 1e9:
            return None
        y = model(x)
        return y, *torch.autograd.grad(y.square().mean(), list(model.parameters()))

    return step


def made_anew(x: Tensor) -> Tensor:
    """A function with new code in each call, which Dynamo compiles in each call."""
    for _ in range(80):  # a graph that would be worth it
        x = x.sin()
    if x.sum() > 1e9:
        return x
    names: dict[str, Any] = {}
    exec("def g(x):\n    return x.sin().cos() + 1", names)
    result: Tensor = names["g"](x)
    return result


def served(function: Callable[..., Any], calls: int, *args: Any) -> tuple[Any, list[int], list[str]]:
    """A region after so many calls, each as in eager mode; the frames that Dynamo tried in each, and what was warned."""
    region, tried = st.compile(function, frontend="auto"), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            before = frames_tried()[0]
            result = region(*args)
            tried.append(frames_tried()[0] - before)
            torch.testing.assert_close(result, function(*args))
    return region, tried, [str(w.message) for w in caught if isinstance(w.message, st.HandOverWarning)]


@pytest.mark.long
def test_a_gradient_in_it_is_not_compiled_again_in_each_call() -> None:
    region, tried, told = served(differentiated(Deep()), 8, torch.randn(3, 4))
    assert tried[0] > 0 and not any(tried[-3:])
    assert len(told) == 1 and region.explain().startswith("served by torch.compile")


@pytest.mark.long
def test_what_is_compiled_in_each_call_runs_eagerly() -> None:
    region, tried, told = served(made_anew, 14, torch.randn(3))
    assert all(tried[:8]) and not any(tried[8:])
    (again,) = (text for text in told if "again in each call" in text)
    assert "made_anew" in again and "reset()" in again
    assert "compiled it again in each call" in region.explain().splitlines()[0]
    region.reset()
    with pytest.warns(st.HandOverWarning, match="torch.compile serves"):
        region(torch.randn(3))


def test_a_checkpoint_meets_the_same_one_again() -> None:
    region, x = st.compile(made_anew, frontend="auto"), torch.randn(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(12):
            expected = torch.autograd.grad(made_anew(x).sum(), x)
            found = torch.autograd.grad(checkpoint(region, x, use_reentrant=False).sum(), x)
            torch.testing.assert_close(found, expected)


def test_where_it_was_asked_for_dynamo_goes_on() -> None:
    region = st.compile(made_anew, frontend="dynamo")
    for _ in range(12):
        before = frames_tried()[0]
        region(torch.randn(3))
    assert frames_tried()[0] > before


def test_other_sizes_and_texts_are_no_reason() -> None:
    """Dynamo has its own limit for what differs from call to call."""

    def f(x: Tensor, how: str) -> Tensor:
        if x.sum() > 1e9:
            return x
        return (x * 2 if how == "double" else x + len(how)).sin()

    region = st.compile(f, frontend="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(24):
            x = torch.randn(2 + k % 5, 3)
            torch.testing.assert_close(region(x, "a" * (k % 4)), f(x, "a" * (k % 4)))
    assert "again in each call" not in region.explain()


def test_both_times_where_eager_mode_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    from subclass_trace.frontends import hand_over

    clock = iter(range(1000))

    def f(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x.sin()
        return x if x.sum() > 1e9 else x.cos()

    monkeypatch.setattr(hand_over, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    region, _, _ = served(f, 12, torch.randn(3))
    assert "ms in eager mode" not in region.explain()  # a second each
    served_by = region._Region__dynamo
    served_by._seconds[0] = 2.0
    assert "(a call takes 2e+03 ms, and 1e+03 ms in eager mode)" in region.explain().splitlines()[0]


@pytest.mark.parametrize(
    ("modules", "error", "of_dynamo"),
    [
        (["torch._dynamo.builder"], AssertionError, True),
        (["torch._dynamo.builder", "torch._subclasses.meta_utils"], AssertionError, True),
        (["torch._dynamo.eval_frame", "users"], AssertionError, False),
        (["torch._subclasses.meta_utils"], AssertionError, False),  # no trace of Dynamo's
        (["torch._dynamo.builder"], ValueError, False),
    ],
)
def test_whose_error_it_is(modules: list[str], error: type[Exception], of_dynamo: bool) -> None:
    def raises() -> None:
        raise error

    code = "def call(f): f()" if modules[-1] == "users" else f"def call(f): raise {error.__name__}"
    f: Callable[..., None] = raises
    for name in reversed(modules):
        space: dict[str, Any] = {"__name__": name}
        exec(code if name == modules[-1] else "def call(f): f()", space)
        f = functools.partial(space["call"], f)
    with pytest.raises(error) as caught:
        f()
    assert is_of_dynamo(caught.value) is of_dynamo


def test_what_dynamo_fails_to_compile_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole call again, of which a part has run."""
    kind: Any = torch._dynamo.variables.TensorVariable
    original = kind.call_method

    def fails(self: Any, tx: Any, name: str, *rest: Any) -> Any:
        if name == "cosh":
            raise torch._dynamo.exc.InternalTorchDynamoError("a fault of Dynamo's")
        return original(self, tx, name, *rest)

    monkeypatch.setattr(kind, "call_method", fails)
    counted = []

    def run(x: Tensor) -> Tensor:
        counted.append(len(counted))
        y = x.sin()
        if y.sum() > 0:
            y = y.cos()
        return y.cosh()

    region = st.compile(run, frontend="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(3):
            x = torch.full((3,), k - 1.0)
            assert torch.allclose(region(x), run(x))
    told = "torch.compile fails to compile run, which runs eagerly: InternalTorchDynamoError: a fault of Dynamo's"
    assert any(told in str(w.message) for w in caught)
    assert counted == [*range(6)]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a fault of Dynamo's"):  # as torch does, where it is asked for
        torch.compile(run, backend="subclass_trace")(torch.ones(3))


@pytest.mark.filterwarnings("ignore")
def test_an_error_is_that_of_eager_mode() -> None:
    def multiplied(x: Tensor, y: Tensor) -> Tensor:
        return x @ y if x.sum() > 0 else x

    region = st.compile(multiplied, frontend="auto")
    region(torch.ones(3, 3), torch.ones(3, 3))
    for run in (multiplied, region):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            run(torch.ones(3, 3), torch.ones(4, 3))
        assert type(caught.value) is RuntimeError
