"""`st.compile`: calls, pytrees, modules, guards, specializations, modes, dynamic sizes."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import math
import weakref
from typing import NamedTuple

import optree
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def two(*size: int, k: float = 0.0) -> TwoTensor:
    n = torch.Size(size).numel()
    ramp = torch.arange(float(n)).reshape(size) / 7
    return TwoTensor(ramp + k, ramp.flip(0).contiguous() - k)


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
            "d": collections.defaultdict(list, k=[d["z"] - 1]),
            "e": {},
        }

    d = {"z": two(2), "a": torch.ones(2)}
    got, want = st.compile(f)(d), f(d)
    assert list(got) == list(want) and type(got) is dict
    assert type(got["a"]) is Pair and got["a"].second == "text"
    assert got["m"][:2] == [None, 3] and got["m"][2][0] is d["a"]
    assert type(got["o"]) is collections.OrderedDict and list(got["o"]) == ["b", "a"]
    assert type(got["d"]) is collections.defaultdict and got["d"]["missing"] == []
    assert type(got["z"]) is TwoTensor


def test_dict_order_of_arguments_does_not_mix_values() -> None:
    region = st.compile(lambda d: d["a"] - d["b"])
    a, b = torch.full((1,), 5.0), torch.full((1,), 2.0)
    assert region({"a": a, "b": b}).item() == 3
    assert region({"b": b, "a": a}).item() == 3


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


# ---------------------------------------------------------------------------------------------- closed-over tensors
def test_closed_over_dense_tensor_is_read_at_each_call() -> None:
    c = torch.ones(2)
    region = st.compile(lambda x: x * c)
    assert region(torch.ones(2)).tolist() == [1, 1]
    c.add_(1)
    assert region(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(2), lambda: TwoTensor(torch.ones(2), torch.ones(2))], ids=["dense", "wrapper"]
)
def test_closed_over_tensor_that_requires_grad_gets_its_gradient(make) -> None:
    c = make().requires_grad_()
    region = st.compile(lambda x: (x * c * c).sum())
    for k in (1.0, 2.0):
        region(torch.full((2,), k)).backward(torch.ones_like(c.sum()).detach())
    want = 2.0 * 1 + 2.0 * 2
    grad = c.grad if type(c) is torch.Tensor else c.grad.b
    assert type(c.grad) is type(c) and grad.tolist() == [want, want]


def test_closed_over_name_that_is_bound_to_another_tensor() -> None:
    c = torch.ones(2)
    region = st.compile(lambda x: x * c)
    region(torch.ones(2))
    c = torch.full((2,), 5.0)
    assert region(torch.ones(2)).tolist() == [5, 5]


def test_closed_over_number_that_becomes_a_tensor() -> None:
    c: object = 2
    region = st.compile(lambda x: x * c)
    for c in (2, torch.tensor([3.0, 4.0]), 2.0, TwoTensor(torch.ones(2), torch.zeros(2)), 2):
        torch.testing.assert_close(region(torch.ones(2)), torch.ones(2) * c)


def test_closed_over_python_number_that_changes_is_as_documented() -> None:
    """Python runs at trace time, as with jax.jit: the number of the first call stays."""
    box = [2]
    region = st.compile(lambda x: x * box[0])
    assert region(torch.ones(1)).item() == 2
    box[0] = 3
    assert region(torch.ones(1)).item() == 2


def test_closed_over_wrapper_output_and_its_inner() -> None:
    c = two(2)
    region = st.compile(lambda x: (c, c.a, x * c))
    got = region(torch.ones(2))
    assert got[0] is c and got[1] is c.a and type(got[2]) is TwoTensor


def test_an_argument_that_is_also_closed_over() -> None:
    c = torch.ones(2, requires_grad=True)
    st.compile(lambda x: x * c)(c).sum().backward()
    assert c.grad.tolist() == [2, 2]


# ---------------------------------------------------------------------------------------------- modules
def check_training(make, x, steps=3, lr=0.1, **options) -> None:
    torch.manual_seed(0)
    eager = make()
    compiled = copy.deepcopy(eager)
    region = st.compile(compiled, **options)
    for which, model, call in ((0, eager, eager), (1, compiled, region)):
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            call(x).pow(2).mean().backward()
            optimizer.step()
    for (name, a), (_, b) in zip(eager.state_dict().items(), compiled.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert len(region.specializations) == 1


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.embed(x.long().abs() % 5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 4),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        lambda: nn.Sequential(*[nn.Linear(4, 4)] * 3),
        Tied,
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    ],
    ids=[
        "linear",
        "layernorm",
        "batchnorm",
        "dropout",
        "shared module",
        "tied",
        "transformer",
        "weight norm",
        "spectral norm",
    ],
)
def test_training_a_module(make) -> None:
    check_training(make, torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:.*RNN module weights")
def test_training_an_rnn() -> None:
    class R(nn.Module):
        def __init__(self):
            super().__init__()
            self.r = nn.GRU(4, 3, batch_first=True)

        def forward(self, x):
            return self.r(x)[0]

    check_training(R, torch.randn(2, 5, 4))


def test_training_with_wrapper_parameters() -> None:
    def make():
        m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        for layer in (m[0], m[2]):
            for name, p in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(TwoTensor(p.detach().clone(), p.detach().clone() * 2)))
        return m

    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(0)
    compiled = make()
    region, x = st.compile(compiled), torch.randn(3, 4)
    for model, call in ((eager, eager), (compiled, region)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(x).pow(2).mean()
            loss.backward(torch.ones_like(loss))
            optimizer.step()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.b, b.b)
    assert len(region.specializations) == 1


def test_parameters_replaced_and_retyped_between_calls() -> None:
    m = nn.Linear(2, 2)
    region, x = st.compile(m), torch.randn(1, 2)

    def same():
        torch.testing.assert_close(region(x).detach(), m(x).detach())

    same()
    m.weight = nn.Parameter(torch.randn(2, 2))
    same()
    assert len(region.specializations) == 1
    m.weight.requires_grad_(False)
    same()
    m.bias = None
    same()
    m.weight = nn.Parameter(torch.randn(3, 2))
    same()
    m.double()
    x = x.double()
    same()
    m.weight = nn.Parameter(TwoTensor(m.weight.detach(), m.weight.detach() * 2))
    assert type(region(x)) is TwoTensor


def test_buffers_added_replaced_and_written() -> None:
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * self.count

    m = M()
    region = st.compile(m)
    assert [region(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]
    assert m.count.item() == 3 and type(m.count) is torch.Tensor
    m.count = torch.full((), 10.0)
    assert region(torch.ones(1)).item() == 11


def test_a_buffer_that_forward_assigns() -> None:
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return x * self.count

    m = M()
    region = st.compile(m)
    try:
        got = [region(torch.ones(1)).item() for _ in range(3)]
    except st.UnsupportedError as error:
        assert error.path and error.fix
        assert m.count.item() == 0
        return
    assert got == [1, 2, 3] and m.count.item() == 3


def test_an_attribute_that_forward_assigns_does_not_leak_a_fake_tensor() -> None:
    class M(nn.Module):
        def forward(self, x):
            self.last = x + 1
            return x * 2

    m = M()
    try:
        st.compile(m)(torch.ones(2))
    except st.UnsupportedError:
        return
    assert "last" not in vars(m) or type(m.last) is torch.Tensor


def test_training_flag() -> None:
    m = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2))
    region, x = st.compile(m), torch.randn(8, 2)
    for training in (True, False, True, False):
        m.train(training)
        reference = copy.deepcopy(m)
        torch.manual_seed(1)
        got = region(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, reference(x))
        torch.testing.assert_close(m.state_dict(), reference.state_dict())
    assert len(region.specializations) == 2


def test_module_hooks_run() -> None:
    m = nn.Linear(2, 2)
    m.register_forward_hook(lambda mod, args, out: out * 3)
    m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    x = torch.randn(1, 2)
    torch.testing.assert_close(st.compile(m)(x), m(x))


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_backward_hook_of_a_module_that_comes_later(register: str) -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    region = st.compile(m)
    for later in (False, True):
        if later:
            getattr(m[1], register)(lambda mod, *grads: (grads[0][0] * 3,))
        x = torch.ones(1, 2, requires_grad=True)
        got, want = (torch.autograd.grad(f(x).sum(), x) for f in (region, m))
        torch.testing.assert_close(got, want)


def test_a_hook_on_all_modules_that_comes_later() -> None:
    m, x = nn.Linear(2, 2), torch.ones(1, 2)
    region = st.compile(m)
    region(x)
    with torch.nn.modules.module.register_module_forward_hook(lambda mod, args, out: out * 3):
        torch.testing.assert_close(region(x), m(x))
    torch.testing.assert_close(region(x), m(x))


@pytest.mark.parametrize("values", [(2, 2.0, True), (0.0, -0.0), ((1, 2), (1, 2.0)), (2, torch.ones(3))], ids=str)
def test_an_attribute_of_a_module_that_changes_its_type_or_sign(values: tuple[object, ...]) -> None:
    class Scale(nn.Module):
        scale: object

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.scale[-1] if isinstance(self.scale, tuple) else self.scale)

    m, x = Scale(), torch.arange(3)
    region = st.compile(m)
    for value in values:
        m.scale = value
        got, want = region(x), m(x)
        assert got.dtype is want.dtype
        torch.testing.assert_close(1 / got, 1 / want)


def test_module_as_an_argument() -> None:
    region = st.compile(lambda m, x: m(x))
    a, b, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.randn(1, 2)
    for m in (a, b, a):
        out = region(m, x)
        torch.testing.assert_close(out, m(x))
        m.zero_grad()
        out.sum().backward()
        assert m.weight.grad is not None


def test_modules_in_containers_of_closures() -> None:
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]

    def f(x):
        for layer in layers:
            x = layer(x)
        return x

    x = torch.randn(1, 2)
    region = st.compile(f)
    for _ in range(2):
        torch.testing.assert_close(region(x), f(x))
        with torch.no_grad():
            layers[0].weight.add_(1)
    region(x).sum().backward()
    assert layers[0].weight.grad is not None


def test_a_module_added_after_compiling() -> None:
    m = nn.Sequential(nn.Linear(2, 2))
    region, x = st.compile(m), torch.randn(1, 2)
    region(x)
    m.append(nn.ReLU())
    torch.testing.assert_close(region(x), m(x))


# ---------------------------------------------------------------------------------------------- modes
def test_dropout_has_the_random_stream_of_eager() -> None:
    f = lambda x: (F.dropout(x, 0.5), torch.rand_like(x), F.dropout(x, 0.2))
    region, x = st.compile(f), torch.ones(50)
    for seed in range(3):
        torch.manual_seed(seed)
        want, after = f(x), torch.get_rng_state()
        torch.manual_seed(seed)
        got = region(x)
        assert torch.get_rng_state().equal(after)
        for a, b in zip(got, want, strict=True):
            assert a.equal(b)


def test_an_unused_random_operation_still_draws() -> None:
    def f(x):
        F.dropout(x, 0.5)
        return torch.rand_like(x)

    x = torch.ones(20)
    torch.manual_seed(0)
    want = f(x)
    torch.manual_seed(0)
    assert st.compile(f)(x).equal(want)


def test_dropout_gradient_uses_the_same_mask() -> None:
    region = st.compile(lambda x: F.dropout(x, 0.5), activation_memory_budget=0.0)
    x = torch.ones(100, requires_grad=True)
    out = region(x)
    out.sum().backward()
    assert x.grad.equal(out.detach())


def test_two_draws_are_not_merged() -> None:
    assert st.compile(lambda x: torch.randn_like(x) - torch.randn_like(x))(torch.ones(10)).abs().sum() > 0
    x = torch.ones(10, requires_grad=True)
    out = st.compile(lambda x: (torch.randn_like(x) - torch.randn_like(x)) * x)(x)
    assert out.abs().sum() > 0


def test_a_generator_argument() -> None:
    g = torch.Generator().manual_seed(3)
    f = lambda x: x + torch.rand(4, generator=g)
    try:
        got = [st.compile(f)(torch.zeros(4)) for _ in range(1)][0]
    except st.SubclassTraceError:
        return
    assert got.equal(torch.rand(4, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    def f(x, w):
        if inside:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return x @ w
        return x @ w

    region = st.compile(f)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    for enabled in (False, True, False, True):
        grads = []
        for call in (f, region):
            x.grad = w.grad = None
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                out = call(x, w)
            out.float().sum().backward()
            grads.append((out.dtype, out.detach(), x.grad, w.grad))
        assert grads[0][0] is grads[1][0]
        for a, b in zip(grads[0][1:], grads[1][1:], strict=True):
            torch.testing.assert_close(a, b)
    assert len(region.specializations) == 2


def test_backward_under_autocast_of_the_caller() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    grads = []
    for f in (lambda x: x @ x, st.compile(lambda x: x @ x)):
        out = f(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            grads += torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(*grads, rtol=0.05, atol=0.05)


def test_no_grad_inside_and_around() -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
        return x * y, y

    region = st.compile(f)
    x = torch.ones(2, requires_grad=True)
    out, y = region(x)
    assert out.requires_grad and not y.requires_grad
    out.sum().backward()
    assert x.grad.tolist() == [2, 2]
    with torch.no_grad():
        assert not region(x)[0].requires_grad
    assert len(region.specializations) == 2


def test_a_region_that_changes_grad_mode() -> None:
    region = st.compile(lambda x: (x * 2, torch.set_grad_enabled(False), x * 3)[::2])
    x = torch.ones(1, requires_grad=True)
    try:
        for _ in range(2):
            a, b = region(x)
            assert (a.requires_grad, b.requires_grad, torch.is_grad_enabled()) == (True, False, False)
            torch.set_grad_enabled(True)
    finally:
        torch.set_grad_enabled(True)


def test_enable_grad_inside_no_grad() -> None:
    def f(x):
        with torch.enable_grad():
            return x * 2

    x = torch.ones(1, requires_grad=True)
    with torch.no_grad():
        want, got = f(x), st.compile(f)(x)
    assert want.requires_grad
    assert got.requires_grad
    got.backward()
    assert x.grad.item() == 2


def test_gradient_inside_the_region() -> None:
    def f(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x * x).sum(), x)[0]

    assert st.compile(f)(torch.full((2,), 3.0)).tolist() == [6, 6]


def test_inference_mode() -> None:
    region, x = st.compile(lambda x: x * 2), torch.ones(2)
    with torch.inference_mode():
        out = region(x)
        again = region(torch.ones(2))
    assert out.is_inference() and again.is_inference()
    assert not region(x).is_inference()
    region(out)
    assert region(two(2)).a.tolist() == two(2).a.mul(2).tolist()


def test_default_dtype() -> None:
    region = st.compile(lambda x: x + torch.ones(2))
    x = torch.ones(2)
    assert region(x).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert region(x).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_deterministic_and_anomaly_mode() -> None:
    region, x = st.compile(lambda x: x * x), torch.ones(2, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        region(x).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.autograd.set_detect_anomaly(True):
        region(x).sum().backward()
    assert x.grad.tolist() == [4, 4]


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "forward_ad", "function mode", "dispatch mode"])
def test_around_the_region(transform: str) -> None:
    region = st.compile(lambda x: (x * x).sum(-1))
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    if transform == "vmap":
        assert torch.func.vmap(region)(x).tolist() == [5, 25]
    elif transform == "grad":
        assert torch.func.grad(region)(x[0]).tolist() == [2, 4]
    elif transform == "jvp":
        assert torch.func.jvp(region, (x[0],), (torch.ones(2),))[1].item() == 6
    elif transform == "forward_ad":
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x[0], torch.ones(2))
            assert torch.autograd.forward_ad.unpack_dual(region(dual)).tangent.item() == 6
    elif transform == "function mode":
        with torch.overrides.BaseTorchFunctionMode():
            assert region(x[0]).item() == 5
    else:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            st.compile(lambda x: x @ x)(x)
        assert counter.get_total_flops() == 16
    assert len(region.specializations) == 0


def test_default_device_is_guarded_and_compiled() -> None:
    region = st.compile(lambda x: x + torch.ones(2, device=None))
    with torch.device("cpu"):
        assert region(torch.zeros(2)).tolist() == [1, 1]
    assert len(region.specializations) == 1
    assert region(torch.zeros(2)).tolist() == [1, 1]
    assert len(region.specializations) == 2
    with torch.device("cpu"):
        assert region(torch.zeros(2)).tolist() == [1, 1]
    assert len(region.specializations) == 2


# ---------------------------------------------------------------------------------------------- specializations
def test_one_specialization_per_kind_of_call() -> None:
    region = st.compile(lambda x: x * 2)
    kinds = [
        torch.ones(2),
        torch.ones(2, dtype=torch.float64),
        torch.ones(2, requires_grad=True),
        torch.ones(2, requires_grad=True) * 1,
        two(2),
        TwoTensor(two(2), two(2)),
    ]
    for _ in range(2):
        for k, x in enumerate(kinds):
            out, want = region(x), x * 2
            assert (type(out), out.dtype, out.requires_grad) == (type(want), want.dtype, want.requires_grad), k
    assert len(region.specializations) in (len(kinds) - 1, len(kinds))  # a leaf and a non-leaf may share one
    assert region.specializations[0].reason == "first call"
    assert "args[0]" in region.specializations[1].reason


def test_strides_are_guarded() -> None:
    region = st.compile(lambda x: x * 2)
    x = torch.randn(3, 4)
    for t in (x, torch.randn(4, 3).t(), x):
        assert region(t).stride() == (t * 2).stride()
    assert len(region.specializations) == 2


def test_reset_and_explain() -> None:
    region = st.compile(lambda x: x * 2)
    region(torch.ones(2))
    region(torch.ones(2, 2))
    with torch.autograd.forward_ad.dual_level():
        region(torch.ones(2))
    text = region.explain()
    assert "first call" in text and "forward-mode" in text and "args[0]" in text
    region.reset()
    assert region.specializations == []
    assert region(torch.ones(2)).tolist() == [2, 2]
    assert len(region.specializations) == 1


def test_python_runs_once_per_specialization() -> None:
    ran = []
    region = st.compile(lambda x: ran.append(1) or x * x)
    for _ in range(3):
        region(two(2).requires_grad_()).sum().backward(two(1).sum())
    assert len(ran) == 1


def test_a_reused_id_does_not_confuse_the_guards() -> None:
    region = st.compile(lambda x, y: (x.add_(1), y * 2)[1])
    for k in range(20):
        x = torch.zeros(2)
        y = x if k % 3 == 0 else torch.zeros(2)
        assert region(x, y).tolist() == ([2, 2] if k % 3 == 0 else [0, 0])
    assert len(region.specializations) == 2


def test_an_alias_pattern_that_appears_later() -> None:
    region = st.compile(lambda x, y: (x.add_(1), y * 2)[1])
    for build in (
        lambda: (torch.zeros(4), torch.zeros(4)),
        lambda: (t := torch.zeros(6), (t[:4], t[2:]))[1],
        lambda: (t := torch.zeros(8), (t[:4], t[4:]))[1],
    ):
        want = (lambda x, y: (x.add_(1), y * 2)[1])(*build())
        assert region(*build()).equal(want)


def test_dynamic_sizes_of_overlapping_arguments() -> None:
    """A written argument and an overlapping one are one graph input, whose length does not tell their sizes."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    region = st.compile(f, dynamic=True)
    for size, stop in (((4,), 7), ((2, 3), 6), ((2, 3), 5), ((3, 2), 5)):  # the last two lie at the same bytes
        memory, again = torch.arange(7.0), torch.arange(7.0)
        count = math.prod(size)
        got = region(memory[:count].view(size), memory[2:stop])
        assert got.equal(f(again[:count].view(size), again[2:stop])) and memory.equal(again)


def test_a_view_family_of_a_nonleaf_wrapper_costs_one_specialization() -> None:
    def f(x, v):
        x.mul_(2)
        return v + 1

    region = st.compile(f)
    for k in range(3):
        w = two(4, k=k).requires_grad_()
        y = w * 1
        out = region(y, y.view(2, 2))
        torch.testing.assert_close(out.a.detach(), (w.a * 2 + 1).view(2, 2))
    assert len(region.specializations) == 1


# ---------------------------------------------------------------------------------------------- dynamic sizes
@pytest.mark.parametrize(
    "make",
    [lambda n: torch.ones(n, 3), lambda n: TwoTensor(torch.ones(n, 3), torch.zeros(n, 3))],
    ids=["dense", "wrapper"],
)
@pytest.mark.parametrize("grad", [False, True])
def test_automatic_dynamic(make, grad: bool) -> None:
    region = st.compile(lambda x: (x * 2).sin() + x.shape[0])
    for n in (4, 5, 6, 7, 11):
        x = make(n).requires_grad_(grad)
        out, want = region(x), (x * 2).sin() + n
        assert out.shape == (n, 3) and type(out) is type(want)
        torch.testing.assert_close(*(t.detach() if type(t) is torch.Tensor else t.a for t in (out, want)))
        if grad:
            out.backward(torch.ones_like(out).detach())
            assert x.grad.shape == (n, 3)
    assert len(region.specializations) == 2


def test_dynamic_from_the_start() -> None:
    region = st.compile(lambda x, y: x @ y, dynamic=True)
    for n, m in ((4, 5), (6, 7), (3, 2)):
        x, y = torch.randn(n, m, requires_grad=True), torch.randn(m, 3)
        out = region(x, y)
        torch.testing.assert_close(out, x @ y)
        out.sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(n, 3) @ y.t())
    assert len(region.specializations) == 1


def test_marked_dimension() -> None:
    region = st.compile(lambda x: x.sum(0))
    for n in (4, 5, 9):
        x = torch.ones(n, 2)
        torch._dynamo.mark_dynamic(x, 0)
        assert region(x).tolist() == [n, n]
    assert len(region.specializations) == 1
    region(torch.ones(4, 3))
    assert len(region.specializations) == 2


def test_sizes_0_and_1() -> None:
    region = st.compile(lambda x: x.sum(0) + x.shape[0])
    for n in (4, 5, 1, 0, 6, 1, 0):
        assert region(torch.ones(n, 2)).tolist() == [2.0 * n, 2.0 * n]
    assert len(region.specializations) <= 4


def test_a_branch_on_a_size_is_guarded() -> None:
    region = st.compile(lambda x: x + 1 if x.shape[0] > 5 else x - 1, dynamic=True)
    for n in (3, 8, 4, 9, 5, 6):
        assert region(torch.zeros(n))[0].item() == (1 if n > 5 else -1)
    assert len(region.specializations) == 2


def test_sizes_as_results() -> None:
    region = st.compile(lambda x: (x.shape[0], x.numel(), x.shape, x.reshape(-1)), dynamic=True)
    for n in (3, 4):
        a, b, c, d = region(torch.ones(n, 2))
        assert (a, b, tuple(c), d.shape[0]) == (n, 2 * n, (n, 2), 2 * n)
        assert type(a) is int and type(b) is int
    assert len(region.specializations) == 1


def test_two_equal_sizes_that_become_different() -> None:
    region = st.compile(lambda x, y: (x.sum() + y.sum(), x.shape[0] == y.shape[0])[0], dynamic=True)
    for n, m in ((3, 3), (4, 4), (4, 5), (6, 7)):
        assert region(torch.ones(n), torch.ones(m)).item() == n + m


def test_automatic_dynamic_marks_only_what_changed() -> None:
    region = st.compile(lambda x, y: x.sum() + y.sum())
    for n in (4, 5, 6):
        region(torch.ones(n, 3), torch.ones(7))
    assert len(region.specializations) == 2
    sizes = [str(i.spec.size) for i in region.specializations[1].plan.inputs]
    assert sizes[1] == "(7,)" and sizes[0] != "(6, 3)" and "3)" in sizes[0]


def test_data_dependent_size_is_supported_or_refused() -> None:
    region = st.compile(lambda x: x.nonzero() + 1)
    x = torch.tensor([0.0, 1.0, 2.0])
    try:
        out = region(x)
    except st.UnsupportedError:
        return
    assert out.tolist() == [[2], [3]]
    assert region(torch.tensor([0.0, 0.0, 2.0])).tolist() == [[3]]


# ---------------------------------------------------------------------------------------------- life times
def test_inputs_are_not_kept_alive_by_the_region() -> None:
    region = st.compile(lambda x: x * 2)
    x = torch.ones(3)
    ref = weakref.ref(x)
    region(x)
    del x
    gc.collect()
    assert ref() is None


def test_the_call_that_compiles_leaves_no_cycle_around_its_inputs() -> None:
    st.compile(torch.sin)(torch.ones(2))  # what is imported on the way is imported now
    gc.collect()
    gc.disable()
    try:
        for make in (lambda: torch.ones(2), lambda: TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_()):
            x = make()
            st.compile(lambda x: x.sin())(x)
            alive = weakref.ref(x)
            del x
            assert alive() is None
    finally:
        gc.enable()


def test_wrapper_inputs_are_not_kept_alive() -> None:
    region = st.compile(lambda x: (x * x).sum())
    x = two(3).requires_grad_()
    refs = weakref.ref(x), weakref.ref(x.a)
    out = region(x)
    out.backward(out.detach())
    del x, out
    gc.collect()
    assert [r() for r in refs] == [None, None]


def test_boxed_back_end_inputs_are_freed_after_their_last_use() -> None:
    """The forward graph's own intermediate, saved for backward, must be freed once the backward has used it."""
    alive: list[int] = []
    seen: list[weakref.ref] = []

    def backend(gm, example_inputs):
        if not gm.meta["is_backward"]:
            return gm.forward

        def run(args):
            seen[:] = [weakref.ref(a) for a in args if isinstance(a, torch.Tensor)]
            args = list(args) if not isinstance(args, list) else args
            out = gm.forward(*args)
            args.clear()
            gc.collect()
            alive.append(sum(r() is not None for r in seen))
            return out

        run._boxed_call = True
        return run

    x = torch.ones(3, requires_grad=True)
    out = st.compile(lambda x: x.sin().exp(), backend=backend, partitioner="default")(x)
    out.sum().backward()
    assert seen and alive[0] < len(seen)


def test_deepcopy_of_a_compiled_module() -> None:
    m = nn.Linear(2, 2)
    region = st.compile(m)
    x = torch.randn(1, 2)
    region(x)
    other = copy.deepcopy(region)
    with torch.no_grad():
        m.weight.zero_()
    assert not torch.equal(other(x), region(x))
