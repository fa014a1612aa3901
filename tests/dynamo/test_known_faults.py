"""What Dynamo is known to get wrong runs eagerly, with a warning, also beside other refusals."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import subclass_trace as st

Tensor = torch.Tensor
CALLS = [0]
DRAWS = random.Random(0)


@functools.lru_cache(None)
def numbered(k: float) -> float:
    CALLS[0] += 1
    return k * CALLS[0]


@functools.lru_cache(None)
def table(n: int) -> Tensor:
    return torch.arange(float(n))


@functools.lru_cache(None)
def pure(k: int) -> int:
    return k * 3


class Own(torch.autograd.Function):
    """Its derivative is wrong on purpose."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 7.0


def refused(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def writes_through_cache(x: Tensor) -> Tensor:
    table(3).add_(1)
    return refused(x) * table(3)


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "os.getenv": lambda x: refused(x) + int(os.getenv("FAULTS_FLAG", "0")),
    "in os.environ": lambda x: refused(x) * (2 if "FAULTS_OTHER" in os.environ else 3),
    "os.environ[...]": lambda x: refused(x) * float(os.environ["FAULTS_FLAG"]),
    "items of os.environ": lambda x: refused(x) * sum(k == "FAULTS_OTHER" for k in os.environ),
    "a cache with effects": lambda x: refused(x) * numbered(2.0),
    "a cache of tensors": writes_through_cache,
    "random.Random": lambda x: refused(x) * DRAWS.random(),
    "numpy.random": lambda x: refused(x) * torch.from_numpy(np.random.randn(3).astype("float32")),
    "func.grad": lambda x: torch.func.grad(lambda z: (Own.apply(z) * z).sum())(refused(x)),
    "func.vjp": lambda x: torch.func.vjp(Own.apply, refused(x))[1](x)[0],
    "func.jacrev": lambda x: torch.func.jacrev(lambda z: Own.apply(z))(refused(x)),
}
RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "a pure cache": lambda x: refused(x) * pure(2),
    "a Function": lambda x: Own.apply(refused(x)),
    "func.grad without a Function": lambda x: torch.func.grad(lambda z: z.sin().sum())(refused(x)),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    os.environ.pop("FAULTS_FLAG", None)
    os.environ.pop("FAULTS_OTHER", None)


def _seen(call: Callable[[Tensor], Tensor]) -> list[Any]:
    CALLS[0] = 0
    numbered.cache_clear(), table.cache_clear(), DRAWS.seed(0), np.random.seed(0)
    os.environ.pop("FAULTS_OTHER", None)
    os.environ["FAULTS_FLAG"] = "1"
    found: list[Any] = []
    for k in range(4):
        if k == 2:
            os.environ.update(FAULTS_FLAG="20", FAULTS_OTHER="x")
        found += [call(torch.ones(3)).tolist(), CALLS[0]]
    return [*found, torch.initial_seed(), np.random.rand()]


#: a cache that is filled in our trace, which is refused then, keeps what the trace has made
ROWS = [("st.compile", name) for name in (*WRONG, *RIGHT) if name != "a cache of tensors"]
ROWS += [("torch.compile", name) for name in (*WRONG, *RIGHT)]


@pytest.mark.parametrize(("how", "name"), ROWS)
@pytest.mark.sweep(every=3)
def test_known_faults_of_dynamo(how: str, name: str) -> None:
    program = (WRONG | RIGHT)[name]
    if how == "st.compile":
        compiled = st.compile(program, frontend="auto")
    else:
        compiled = torch.compile(program, backend="subclass_trace")
    want = _seen(program)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert _seen(compiled) == want
    told = [str(w.message) for w in caught if "runs eagerly in part" in str(w.message)]
    assert bool(told) == (name in WRONG)


async def doubled(x: Tensor) -> Tensor:
    return x * 2


async def doubled_twice(x: Tensor) -> Tensor:
    return await doubled(await doubled(x))


async def halves(x: Tensor) -> Any:
    for k in range(2):
        yield x / 2 + k


async def all_of(given: Any) -> list[Tensor]:
    return [y async for y in given] if hasattr(given, "__anext__") else [await given]


@pytest.mark.parametrize("function", [doubled, doubled_twice, halves])
@pytest.mark.parametrize(
    "compiler",
    [functools.partial(st.compile, frontend="auto"), functools.partial(torch.compile, backend="subclass_trace")],
)
@pytest.mark.filterwarnings("ignore")
def test_coroutines_run_eagerly(compiler: Any, function: Any) -> None:
    """Dynamo's code for one overwrites what lies behind its frame, with any back end."""
    region, x = compiler(function), torch.ones(2)
    for _ in range(3):
        found, expected = (asyncio.run(all_of(f(x))) for f in (region, function))
        assert [y.tolist() for y in found] == [y.tolist() for y in expected]


class Made:
    pass


@pytest.mark.filterwarnings("ignore")
def test_what_is_added_to_a_weak_set_stays() -> None:
    def found(wrap: Callable[[Any], Any]) -> list[Any]:
        seen, keep = weakref.WeakSet[Made](), list[Made]()

        def f(x: Tensor) -> Tensor:
            made = Made()
            keep.append(made)
            seen.add(made)
            return x * len(seen)

        region = wrap(f)
        return [[region(torch.ones(1)).item(), len(seen), len(keep)] for _ in range(5)]

    assert found(functools.partial(st.compile, frontend="auto")) == found(lambda f: f)


@pytest.mark.filterwarnings("ignore")
def test_a_hook_that_comes_after_the_hand_over_is_called() -> None:
    def found(wrap: Callable[[Any], Any]) -> list[float]:
        layer, values = torch.nn.ReLU(), []
        region = wrap(lambda x: refused(layer(x)))
        for call in range(4):
            if call == 2:
                layer.register_forward_hook(lambda module, args, out: out * 2)
            values.append(region(torch.ones(1)).item())
        return values

    assert found(functools.partial(st.compile, frontend="auto")) == found(lambda f: f)
