"""Backwards of every kind, written once: eager mode runs them for the expected gradients and hook logs.

A scenario is a function that makes a step: ``make(log) -> step``, and ``step(n)`` runs forward and backward for batch
size ``n`` and returns tensors to compare. ``log`` takes what hooks saw, in order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from subclass_trace.zoo import TwoTensor

Log = list[Any]
Step = Callable[[int], list[Any]]
SCENARIOS: dict[str, Callable[[Log], Step]] = {}
#: torch runs these on the plain engine: there is a transform around the backward
NOT_CAPTURED = {"functional_transforms"}
#: segments that run as they are: a region cannot trace these
NOT_TRACED = {"sparse_gradients"}


def scenario(make: Callable[[Log], Step]) -> Callable[[Log], Step]:
    SCENARIOS[make.__name__] = make
    return make


def data(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, seed: int = 2) -> torch.Tensor:
    return data(*shape, seed=seed).requires_grad_()


def note(log: Log, name: str) -> Callable[[Any], None]:
    """A hook that writes down its name and a checksum of what it saw."""

    def hook(grad: Any) -> None:
        log.append((name, checksum(grad)))

    return hook


def close(a: Any, b: Any) -> bool:
    """Are two rows of a log the same, but for rounding?"""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(close, a, b))
    return abs(a - b) <= 1e-4 * (1 + abs(b)) if isinstance(a, float) else a == b


def checksum(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(checksum(v) for v in value)
    if value is None:
        return None
    if isinstance(value, TwoTensor):
        return checksum(value.a), checksum(value.b)
    return tuple(value.shape), float(value.detach().to_dense().double().sum())


def trained(
    model: torch.nn.Module, shape: tuple[int, ...], loss: Callable[[Any], Any] = lambda y: y.pow(2).sum()
) -> Step:
    def step(n: int) -> list[Any]:
        model.zero_grad()
        loss(model(data(n, *shape))).backward()
        return [p.grad for p in model.parameters()]

    return step


# ---------------------------------------------------------------------------------------------- plain
@scenario
def mlp(log: Log) -> Step:
    return trained(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)), (8,))


@scenario
def convolution_and_pooling(log: Log) -> Step:
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return trained(torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(36, 2)), (3, 8, 8))


@scenario
def lstm(log: Log) -> Step:
    return trained(torch.nn.LSTM(4, 5, batch_first=True), (3, 4), lambda y: y[0].sum())


@scenario
def transformer_layer(log: Log) -> Step:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return trained(layer, (4, 8))


@scenario
def embedding_and_cross_entropy(log: Log) -> Step:
    table, out = torch.nn.Embedding(10, 6), torch.nn.Linear(6, 10)

    def step(n: int) -> list[Any]:
        tokens = torch.arange(n * 2).remainder(10).view(n, 2)
        table.zero_grad(), out.zero_grad()
        F.cross_entropy(out(table(tokens)).flatten(0, 1), tokens.flatten()).backward()
        return [table.weight.grad, *(p.grad for p in out.parameters())]

    return step


@scenario
def dropout(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    def step(n: int) -> list[Any]:
        torch.manual_seed(n)
        return trained(model, (8,))(n)

    return step


@scenario
def views_joins_and_reductions(log: Log) -> Step:
    w = leaf(4, 6)

    def step(n: int) -> list[Any]:
        w.grad = None
        a, b, c = (data(n, 4) @ w).split(2, dim=1)
        y = torch.cat([a.t().reshape(-1), b.flip(0).flatten(), c.cumsum(0).contiguous().view(-1)])
        (y.logsumexp(0) + y[::2].std() + c.amax()).backward()
        return [w.grad]

    return step


@scenario
def fan_in_of_many(log: Log) -> Step:
    """Sums of three and more gradients: the order of the additions shows in the last bits."""
    w = leaf(7)

    def step(n: int) -> list[Any]:
        w.grad = None
        h = w * 1.1
        parts = [h.sin() * 1e3, h.exp(), (h * h).tanh() * 1e-3, h.cos() * 77.0, h / 3.0, h.sigmoid() * 1e4]
        (parts[3] * parts[1] + parts[0] + parts[5].sqrt() * parts[2] + parts[4]).sum().mul(n).backward()
        return [w.grad]

    return step


@scenario
def leaf_used_many_times(log: Log) -> Step:
    w, v = leaf(5), leaf(5, seed=3)

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        y = w
        for k in range(n):
            y = y * w + v * k
        (y * 1e2).sum().backward()
        return [w.grad, v.grad]

    return step


@scenario
def added_leaves_keep_own_gradients(log: Log) -> Step:
    a, b = leaf(3), leaf(3, seed=5)

    def step(n: int) -> list[Any]:
        a.grad = b.grad = None
        (a + b).backward(torch.full((3,), float(n)))
        a.grad.mul_(2)
        return [a.grad, b.grad]

    return step


@scenario
def broadcast_and_mixed_dtypes(log: Log) -> Step:
    a = leaf(4, 1)
    b = leaf(3, seed=4).detach().double().requires_grad_()
    s = torch.tensor(2.0, requires_grad=True)

    def step(n: int) -> list[Any]:
        a.grad = b.grad = s.grad = None
        ((a * b) * s + a.to(torch.float64).expand(4, 3)).sum().backward()
        return [a.grad, b.grad, s.grad]

    return step


# ---------------------------------------------------------------------------------------------- hooks
@scenario
def tensor_hooks(log: Log) -> Step:
    w, v = leaf(4), leaf(4, seed=3)
    w.register_hook(note(log, "leaf"))
    w.register_hook(lambda g: g * 2)
    w.register_hook(note(log, "leaf, doubled"))

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        a = w * v
        a.register_hook(note(log, "a"))
        b = a.sin()
        b.register_hook(lambda g: g + n)
        b.register_hook(note(log, "b"))
        (a.cos() * b).sum().backward()
        return [w.grad, v.grad]

    return step


@scenario
def retained_gradients(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        w.grad = None
        a = w * n
        a.retain_grad()
        a.register_hook(note(log, "a"))
        b = a.sin()
        b.register_hook(lambda g: g * 3)
        b.retain_grad()
        (b * a).sum().backward()
        return [w.grad, a.grad, b.grad]

    return step


@scenario
def node_hooks(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        w.grad = None
        a = w * n
        b = a.exp()
        c = b + a
        c.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
        c.grad_fn.register_prehook(lambda grads: log.append(("pre c", checksum(grads))))
        c.grad_fn.register_hook(lambda out, grads: log.append(("post c", checksum(out), checksum(grads))))
        b.grad_fn.register_hook(lambda out, grads: (out[0] + 1,))
        b.grad_fn.register_prehook(lambda grads: log.append(("pre b", checksum(grads))))
        b.register_hook(note(log, "tensor b"))
        c.sum().backward()
        return [w.grad]

    return step


@scenario
def hooks_on_accumulate_nodes(log: Log) -> Step:
    """As DistributedDataParallel and FSDP do."""
    params = [leaf(3, seed=k) for k in range(4)]
    nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in params]
    for k, node in enumerate(nodes):
        node.register_hook(lambda out, grads, k=k: log.append((f"accumulated {k}", checksum(params[k].grad))))
        node.register_prehook(lambda grads, k=k: log.append((f"before {k}", checksum(grads))))

    def step(n: int) -> list[Any]:
        y = params[0] * params[1]
        y = (y + params[2]) * params[3] + params[0]
        (y * n).sum().backward()
        return [p.grad for p in params]

    return step


@scenario
def many_leaves_ready_at_once(log: Log) -> Step:
    """Leaves have one priority: their order is that of the engine's heap."""
    params = [leaf(2, seed=k) for k in range(9)]
    for k, p in enumerate(params):
        p.register_hook(note(log, f"{k}"))

    def step(n: int) -> list[Any]:
        for p in params:
            p.grad = None
        (torch.cat(params).sin() * n).sum().backward()
        torch.stack([params[k] for k in (3, 1, 4, 5, 2, 6)]).prod(0).sum().backward()
        return [p.grad for p in params]

    return step


@scenario
def multi_gradient_hooks(log: Log) -> Step:
    a, b, c = (leaf(3, seed=k) for k in range(3))

    def step(n: int) -> list[Any]:
        a.grad = b.grad = c.grad = None
        x, y = a * b, b * c
        handles = [
            torch.autograd.graph.register_multi_grad_hook(
                (x, y, a), lambda grads: log.append(("all", checksum(tuple(grads))))
            ),
            torch.autograd.graph.register_multi_grad_hook(
                (x, y), lambda grad: log.append(("any", checksum(grad))), mode="any"
            ),
        ]
        (x * y * n).sum().backward()
        for handle in handles:
            handle.remove()
        return [a.grad, b.grad, c.grad]

    return step


@scenario
def post_accumulate_hooks(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))

    def update(p: torch.Tensor) -> None:
        log.append(("update", checksum(p.grad)))
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.01)
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(n: int) -> list[Any]:
        model(data(n, 4)).pow(2).sum().backward()
        return [p.detach().clone() for p in model.parameters()]

    return step


@scenario
def module_backward_hooks(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    for k, layer in enumerate(model):
        layer.register_full_backward_pre_hook(lambda m, g, k=k: log.append((f"pre {k}", checksum(g))))
        layer.register_full_backward_hook(lambda m, gi, go, k=k: log.append((f"full {k}", checksum(gi), checksum(go))))

    def step(n: int) -> list[Any]:
        model.zero_grad()
        x = data(n, 4).requires_grad_()
        model(x).pow(2).sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    return step


@scenario
def queued_callbacks(log: Log) -> Step:
    w = leaf(3)
    engine = torch.autograd.Variable

    def step(n: int) -> list[Any]:
        w.grad = None
        y = w * n

        def last() -> None:
            log.append(("last", checksum(w.grad)))
            engine._execution_engine.queue_callback(lambda: log.append("queued by a callback"))

        def hook(grad: torch.Tensor) -> None:
            log.append("hook")
            engine._execution_engine.queue_callback(last)

        y.register_hook(hook)
        y.sum().backward()
        log.append("after")
        return [w.grad]

    return step


@scenario
def hooks_over_two_branches(log: Log) -> Step:
    """Branches whose nodes were made alternately: the engine alternates too."""
    w = leaf(4)

    def step(n: int) -> list[Any]:
        w.grad = None
        left, right = w * 2, w * 3
        for k in range(3):
            left, right = left.sin(), right.cos()
            left.register_hook(note(log, f"left {k}"))
            right.register_hook(note(log, f"right {k}"))
        (right * left * n).sum().backward()
        return [w.grad]

    return step


@scenario
def backward_inside_a_hook(log: Log) -> Step:
    w, v = leaf(3), leaf(3, seed=9)

    def hook(grad: torch.Tensor) -> None:
        with torch.enable_grad():
            inner = v * 2
            inner.register_hook(note(log, "inner"))
            (inner * grad.detach()).sum().backward()

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        y = w * n
        y.register_hook(hook)
        y.sin().sum().backward()
        return [w.grad, v.grad]

    return step


# ---------------------------------------------------------------------------------------------- saved tensors
class _Hooks(torch.autograd.graph.saved_tensors_hooks):
    def __init__(
        self, log: Log, pack: Callable[[Any], Any] = lambda t: t.clone(), unpack: Callable[[Any], Any] = lambda x: x
    ):
        numbers = iter(range(10**6))

        def logged_pack(t: torch.Tensor) -> Any:
            k = next(numbers)
            log.append(("pack", k, tuple(t.shape)))
            return k, pack(t)

        def logged_unpack(packed: Any) -> torch.Tensor:
            log.append(("unpack", packed[0]))
            return unpack(packed[1])

        super().__init__(logged_pack, logged_unpack)


@scenario
def saved_tensor_hooks(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4), torch.nn.GELU())

    def step(n: int) -> list[Any]:
        with _Hooks(log):
            return trained(model, (4,), lambda y: (y * y.sin()).sum())(n)

    return step


@scenario
def compressed_activations(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 4), torch.nn.Softmax(-1))

    def step(n: int) -> list[Any]:
        with _Hooks(log, lambda t: t.detach().bfloat16(), lambda t: t.float()):
            return trained(model, (4,))(n)

    return step


@scenario
def saved_on_cpu(log: Log) -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def step(n: int) -> list[Any]:
        with torch.autograd.graph.save_on_cpu():
            return trained(model, (4,))(n)

    return step


@scenario
def checkpoint_without_reentry(log: Log) -> Step:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def part(layer: Any, x: torch.Tensor) -> torch.Tensor:
        log.append("forward")
        return layer(x).tanh().sin()

    def step(n: int) -> list[Any]:
        layers.zero_grad()
        x = data(n, 4)
        for layer in layers:
            x = checkpoint(part, layer, x, use_reentrant=False)
        x.sum().backward()
        return [p.grad for p in layers.parameters()]

    return step


@scenario
def checkpoint_with_reentry(log: Log) -> Step:
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def step(n: int) -> list[Any]:
        layers.zero_grad()
        x = data(n, 4).requires_grad_()
        y = x
        for layer in layers:
            y = checkpoint(lambda t, layer=layer: (log.append("forward"), layer(t).tanh())[1], y, use_reentrant=True)
        y.sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    return step


@scenario
def nested_checkpoints(log: Log) -> Step:
    w = leaf(4, 4)

    def step(n: int) -> list[Any]:
        w.grad = None

        def inner(t: torch.Tensor) -> torch.Tensor:
            log.append("inner")
            return (t @ w).tanh()

        def outer(t: torch.Tensor) -> torch.Tensor:
            log.append("outer")
            return checkpoint(inner, t, use_reentrant=False).sin()

        checkpoint(outer, data(n, 4), use_reentrant=False).sum().backward()
        return [w.grad]

    return step


# ---------------------------------------------------------------------------------------------- Functions
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor, x + 1

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * y * ctx.factor + h, None, g * x * ctx.factor


class Choosy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.seen = []
        return x.sin(), y.cos(), x * y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.seen.append([g is None for g in grads])
        return None if grads[0] is None else grads[0] * 2, None


@scenario
def custom_function(log: Log) -> Step:
    w, v = leaf(3), leaf(3, seed=8)

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        first, second = Scaled.apply(w, float(n), v)
        (first.sin() * second).sum().backward()
        return [w.grad, v.grad]

    return step


@scenario
def custom_function_saves_under_hooks(log: Log) -> Step:
    w, v = leaf(3), leaf(3, seed=8)

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        with _Hooks(log):
            first, second = Scaled.apply(w.exp(), float(n), v * 2)
        (first.sin() * second).sum().backward()
        return [w.grad, v.grad]

    return step


@scenario
def undefined_gradients(log: Log) -> Step:
    w, v = leaf(3), leaf(3, seed=8)
    v.register_hook(note(log, "v"))

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        a, b, c = Choosy.apply(w, v)
        first, second = Scaled.apply(w * n, 2.0, v)
        (a + second).sum().backward()
        return [w.grad, v.grad]

    return step


@scenario
def in_place_on_views(log: Log) -> Step:
    w, v = leaf(4, 4), leaf(2, 4, seed=4)

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        y = w * n
        y[1:3].mul_(v)
        y[0].sin_()
        part = y.t()[2]
        part.add_(v.sum())
        (y * y).sum().backward()
        return [w.grad, v.grad]

    return step


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, log: Log) -> torch.Tensor:
        ctx.mark_dirty(x)
        ctx.log = log
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        ctx.log.append("twice")
        return g * 2, None


@scenario
def in_place_custom_function_on_view(log: Log) -> Step:
    w = leaf(4, 4)

    def step(n: int) -> list[Any]:
        w.grad = None
        y = w * n
        Twice.apply(y[1:3], log)
        y.sin().sum().backward()
        return [w.grad]

    return step


@scenario
def sparse_gradients(log: Log) -> Step:
    table = torch.nn.Embedding(6, 3, sparse=True)
    mixed = torch.nn.Embedding(6, 3, sparse=True)

    def step(n: int) -> list[Any]:
        table.zero_grad(), mixed.zero_grad()
        tokens = torch.arange(n).remainder(6)
        (table(tokens).sum() + table(tokens).pow(2).sum()).backward()
        (mixed(tokens).sum() + mixed.weight.sin().sum()).backward()
        return [table.weight.grad.coalesce().to_dense(), mixed.weight.grad.to_dense()]

    return step


# ---------------------------------------------------------------------------------------------- calls
@scenario
def grad_of_inputs(log: Log) -> Step:
    w, v = leaf(4), leaf(4, seed=3)

    def step(n: int) -> list[Any]:
        a = w * v
        b = a.sin() * n
        b.register_hook(note(log, "b"))
        v.register_hook(note(log, "v"))
        some = torch.autograd.grad((b * w).sum(), [w, a], retain_graph=True)
        unused = torch.autograd.grad(b.sum(), [v, data(2).requires_grad_()], allow_unused=True)
        return [*some, *unused]

    return step


@scenario
def backward_for_some_leaves(log: Log) -> Step:
    w, v = leaf(4), leaf(4, seed=3)

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        y = (w * v).sin() + v
        y.register_hook(note(log, "y"))
        (y * n).sum().backward(inputs=[v])
        assert w.grad is None
        return [v.grad]

    return step


@scenario
def several_roots(log: Log) -> Step:
    w, v = leaf(4), leaf(4, seed=3)

    def step(n: int) -> list[Any]:
        w.grad = v.grad = None
        a, b = w * v, w.exp() * n
        a.register_hook(note(log, "a"))
        b.register_hook(note(log, "b"))
        torch.autograd.backward([a, b.sum(), a.cos()], [data(4), None, data(4, seed=7)])
        return [w.grad, v.grad]

    return step


@scenario
def retained_graph_and_accumulation(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        y = (w * n).sin().exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        return [w.grad.clone()]

    return step


@scenario
def second_derivatives(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        w.grad = None
        y = (w * n).sin().exp().sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        assert g.requires_grad
        (g * g).sum().backward()
        return [g, w.grad]

    return step


@scenario
def backward_with_a_graph(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        w.grad = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this makes a reference cycle
            (w * n).sin().pow(3).sum().backward(create_graph=True)
        first = w.grad
        w.grad = None
        (first * w).sum().backward()
        return [first, w.grad]

    return step


@scenario
def backward_under_no_grad(log: Log) -> Step:
    w = leaf(4)

    def step(n: int) -> list[Any]:
        y = (w * n).exp().sum()
        with torch.no_grad():
            y.backward()
        return [w.grad.clone()]

    return step


@scenario
def changing_numbers_of_hooks(log: Log) -> Step:
    w = leaf(4)
    count = iter(range(1, 100))

    def step(n: int) -> list[Any]:
        w.grad = None
        y = w * 3
        for k in range(1 + next(count) % 2):
            y.register_hook(note(log, f"{k}"))
        y.sin().sum().backward()
        return [w.grad]

    return step


@scenario
def functional_transforms(log: Log) -> Step:
    w = data(4)

    def step(n: int) -> list[Any]:
        f = lambda x: (x.sin() * n).sum()
        return [torch.func.vmap(torch.func.grad(f))(torch.stack([w, w * 2])), torch.func.jacrev(torch.sin)(w)]

    return step


@scenario
def batched_gradients(log: Log) -> Step:
    w = leaf(3)

    def step(n: int) -> list[Any]:
        y = (w * n).sin() * w
        return list(torch.autograd.grad(y, w, torch.eye(3), is_grads_batched=True))

    return step


# ---------------------------------------------------------------------------------------------- wrappers
def two(*shape: int, seed: int = 1) -> TwoTensor:
    return TwoTensor(data(*shape, seed=seed), data(*shape, seed=seed + 50))


@scenario
def wrapper_parameters(log: Log) -> Step:
    w = torch.nn.Parameter(two(4, 3))
    b = torch.nn.Parameter(two(3, seed=3))
    w.register_hook(note(log, "w"))
    b.register_post_accumulate_grad_hook(lambda p: log.append(("b", checksum(p.grad))))

    def step(n: int) -> list[Any]:
        w.grad = b.grad = None
        (data(n, 4) @ w + b).relu().sum().backward()
        return [w.grad, b.grad]

    return step


@scenario
def wrapper_activations(log: Log) -> Step:
    def step(n: int) -> list[Any]:
        x = two(n, 4).requires_grad_()
        y = (x * 2.0).sin()
        y.register_hook(note(log, "y"))
        y.grad_fn.register_prehook(lambda grads: log.append(("pre", checksum(grads))))
        z = y.mul(y)
        z.retain_grad()
        z.sum().backward()
        return [x.grad, z.grad]

    return step


@scenario
def wrappers_saved_under_hooks(log: Log) -> Step:
    w = torch.nn.Parameter(two(3, 3))

    def step(n: int) -> list[Any]:
        w.grad = None
        with _Hooks(log, lambda t: t, lambda t: t):
            y = (w * w).sin() * 2.0
        y.sum().backward()
        return [w.grad]

    return step


@scenario
def wrapper_accumulation(log: Log) -> Step:
    w = torch.nn.Parameter(two(3, 3))

    def step(n: int) -> list[Any]:
        for _ in range(2):
            (w * w * float(n)).sum().backward()
        return [w.grad.clone()]

    return step
