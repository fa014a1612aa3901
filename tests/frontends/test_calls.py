"""Forms of calls, and the pytrees that go in and come out."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any, NamedTuple

import optree
import pytest
import torch
from ramps import two
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


@dataclasses.dataclass
class Record:
    t: torch.Tensor
    n: int


optree.register_pytree_node(
    Record,
    lambda r: ((r.t,), r.n),
    lambda n, children: Record(children[0], n),
    namespace=optree.registry.__dict__.get("__GLOBAL_NAMESPACE") or "torch",
)


class TorchNode:
    def __init__(self, t):
        self.t = t


torch.utils._pytree.register_pytree_node(TorchNode, lambda r: ([r.t], None), lambda children, _: TorchNode(*children))


# ---------------------------------------------------------------------------------------------- forms of calls
def test_as_function_decorator_and_decorator_with_options() -> None:
    @st.compile
    def f(x):
        """Doc."""
        return x + 1

    @st.compile(backend="aot_eager")
    def g(x):
        return x + 2

    assert f(torch.zeros(1)).item() == 1 and g(torch.zeros(1)).item() == 2
    assert (f.__name__, f.__doc__) == ("f", "Doc.")


def test_keyword_arguments_defaults_and_variadics() -> None:
    def f(x, /, y, *rest, scale=2, **others):
        return x * scale + y + sum(rest) + sum(others.values())

    region, t = st.compile(f), torch.ones(2)
    calls = [
        ((t, t), {}),
        ((t,), {"y": t}),
        ((t, t, t, t), {}),
        ((t, t), {"scale": 3}),
        ((t, t), {"z": t, "w": t}),
        ((t, t), {"w": t, "z": t}),
    ]
    for args, kwargs in calls * 2:
        torch.testing.assert_close(region(*args, **kwargs), f(*args, **kwargs))
    assert len(region.specializations) <= len(calls)


def test_a_method_with_its_own_state() -> None:
    class Model:
        def __init__(self, k):
            self.k = k

        @st.compile
        def f(self, x):
            return x * self.k

    a, b = Model(2), Model(3)
    for _ in range(2):
        assert a.f(torch.ones(1)).item() == 2
        assert b.f(torch.ones(1)).item() == 3


def test_a_bound_method_of_a_module() -> None:
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def helper(self, x):
            return x * self.w

    m = M()
    region = st.compile(m.helper)
    region(torch.full((2,), 3.0)).sum().backward()
    assert m.w.grad.tolist() == [3, 3]
    with torch.no_grad():
        m.w.mul_(2)
    assert region(torch.ones(2)).tolist() == [2, 2]


def test_a_decorated_forward_of_a_module() -> None:
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        @st.compile
        def forward(self, x):
            return x * self.w

    m = M()
    m(torch.full((2,), 3.0)).sum().backward()
    assert m.w.grad.tolist() == [3, 3]


def test_partial_and_callable_object() -> None:
    class Callable:
        def __call__(self, x, y):
            return x - y

    t = torch.ones(2)
    assert st.compile(functools.partial(torch.add, alpha=3))(t, t).tolist() == [4, 4]
    assert st.compile(Callable())(t, 2 * t).tolist() == [-1, -1]
    assert st.compile(torch.sin)(t).equal(t.sin())


# ---------------------------------------------------------------------------------------------- pytrees
def test_types_and_order_of_results() -> None:
    def f(d):
        return {
            "z": d["z"] + 1,
            "a": Pair(d["a"] * 2, "text"),
            "m": [None, 3, (d["a"],)],
            "o": collections.OrderedDict(b=d["a"] + 1, a=1),
            "e": {},
        }

    d = {"z": two(2), "a": torch.ones(2)}
    got, want = st.compile(f)(d), f(d)
    assert list(got) == list(want) and type(got) is dict
    assert type(got["a"]) is Pair and got["a"].second == "text"
    assert got["m"][:2] == [None, 3] and got["m"][2][0] is d["a"]
    assert type(got["o"]) is collections.OrderedDict and list(got["o"]) == ["b", "a"]
    assert type(got["z"]) is TwoTensor


def test_iteration_order_of_a_dict_argument_is_the_callers() -> None:
    region = st.compile(lambda d: list(d))
    one = torch.ones(1)
    assert region({"z": one, "a": one}) == ["z", "a"]
    assert region({"a": one, "z": one}) == ["a", "z"]


def test_non_string_and_mixed_dict_keys() -> None:
    f = lambda d: {2: d[1] + 1, "x": d["k"], (1, 2): d[1]}
    got = st.compile(f)({1: torch.zeros(1), "k": torch.ones(1)})
    assert list(got) == [2, "x", (1, 2)]


def test_registered_dataclass_and_torch_pytree_node() -> None:
    f = lambda r, n: (Record(r.t * r.n, r.n + 1), TorchNode(n.t + 1))
    region = st.compile(f)
    for n, count in ((2, 1), (2, 1), (3, 2)):
        r, node = region(Record(two(2), n), TorchNode(torch.zeros(2)))
        assert type(r) is Record and type(r.t) is TwoTensor and r.n == n + 1
        assert type(node) is TorchNode and node.t.tolist() == [1, 1]
        assert len(region.specializations) == count


def test_namedtuple_results_of_torch() -> None:
    got = st.compile(lambda x: x.sort())(torch.tensor([2.0, 1.0]))
    assert type(got) is torch.return_types.sort and got.values.tolist() == [1, 2] and got.indices.tolist() == [1, 0]


@pytest.mark.parametrize("value", [None, 3, 2.5, "text", (), [], {}, True, torch.float32, print])
def test_results_that_are_no_tensors(value: object) -> None:
    got = st.compile(lambda x: value)(torch.ones(1))
    assert got is value or (got == value and type(got) is type(value))


def test_python_arguments_are_guarded_by_value() -> None:
    region = st.compile(lambda x, n, s, b: (x * n, s, b))
    t = torch.ones(1)
    rows = [
        (1, "a", None),
        (1, "a", None),
        (1.0, "a", None),
        (True, "a", None),
        (1, "b", None),
        (1, "a", 0),
        (float("nan"), "a", 0),
        (float("nan"), "a", 0),
    ]
    for row in rows:
        out = region(t, *row)
        want = t * row[0]
        assert out[0].equal(want) or (out[0] != out[0]).all()
        assert repr(out[1:]) == repr(row[1:])
    assert len(region.specializations) == 6


def test_tensor_and_number_at_one_place() -> None:
    region = st.compile(lambda x, y: x + y)
    t = torch.ones(1)
    assert [region(t, y).item() for y in (1, t, 2, t * 5)] == [2, 2, 3, 6]


def test_a_torch_size_among_the_arguments_stays_one() -> None:
    def function(x: torch.Tensor, shapes: dict[str, Any], *, last: Any) -> tuple[torch.Tensor, bool]:
        return x.expand(shapes["a"][0]) + last.numel(), type(last) is torch.Size

    compiled = st.compile(function)
    for n in (2, 1000, 2):
        arguments = torch.ones(3), {"a": [torch.Size((n, 3)), (n,), None], "b": 1}
        result, is_size = compiled(*arguments, last=torch.Size((2, n)))
        assert is_size and torch.equal(result, torch.ones(n, 3) + 2 * n)
    assert len(compiled.specializations) == 2
    compiled(torch.ones(3), {"a": [(2, 3), (2,), None], "b": 1}, last=torch.Size((2, 2)))
    assert len(compiled.specializations) == 3  # a tuple is another structure


def test_a_size_as_an_exponent() -> None:
    region = st.compile(lambda x: x.abs() ** x.shape[0])
    for n in (2, 3, 4):
        x = torch.linspace(1, 2, n).requires_grad_()
        region(x).sum().backward()
        torch.testing.assert_close(x.grad, n * x.detach() ** (n - 1))


def test_lazy_modules_run_eagerly_once() -> None:
    region = st.compile(torch.nn.LazyLinear(3))
    first = region(torch.ones(2, 3))
    assert len(region.specializations) == 0 and region.weight.shape == (3, 3)
    for _ in range(2):
        assert torch.equal(region(torch.ones(2, 3)), first)
    assert len(region.specializations) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_padded_encoder_runs_eagerly_with_a_warning() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad(), pytest.warns(UserWarning, match="looks into its padding mask"):
        got = st.compile(model)(x, src_key_padding_mask=mask)
        assert torch.equal(got, model(x, src_key_padding_mask=mask))


def test_new_keys_that_a_counter_computes() -> None:
    found = []
    for compile_it in (lambda f: f, st.compile):
        state: dict[str, Any] = {"n": 1, "seen": {}, "some": set()}

        def step(x, state=state):
            key = state["n"] % 2
            state["seen"].setdefault(key, state["n"])
            state["some"].add(state["n"] % 3)
            state["n"] += 1
            return x + state["seen"][key]

        call = compile_it(step)
        found.append(([call(torch.zeros(1)).item() for _ in range(5)], state, {*map(type, state["seen"])}))
    assert found[0] == found[1]


SLICES: dict[str, Any] = {
    "returned": lambda x: x.shape[1:],
    "of size()": lambda x: x.size()[:2],
    "its class asked": lambda x: x * (2 if isinstance(x.shape[1:], torch.Size) else 3),
    "its product": lambda x: x.view(x.shape[0], x.shape[1:].numel()),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_of_a_shape_is_one(name: str) -> None:
    region = st.compile(SLICES[name])
    for n in (3, 4, 5):
        got, want = region(torch.ones(2, n, 3)), SLICES[name](torch.ones(2, n, 3))
        assert type(got) is type(want)
        assert got.equal(want) if isinstance(got, torch.Tensor) else got == want
