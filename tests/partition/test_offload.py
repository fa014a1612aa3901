"""Activations on the CPU: copies beside the computation, in the right order, with a bound on what is under way."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.fx as fx
from emulated_streams import EmulatedStreams
from functorch.compile import aot_function, make_boxed_func
from torch._subclasses import FakeTensorMode

import subclass_trace as st
from benchmarks.graphs import MODELS, load
from subclass_trace.backends import register_backend
from subclass_trace.backends.eager.graph_code import compile_graph
from subclass_trace.backends.registry import unregister_backend
from subclass_trace.partition.offload import Offload, operations, register_streams
from subclass_trace.zoo import TwoTensor


@pytest.fixture
def streams() -> EmulatedStreams:
    made = EmulatedStreams()
    register_streams("emulated", made)
    return made


def to_cpu(in_flight: int = 2, **options) -> st.MinCut:
    return st.MinCut(store="cpu", offload=Offload(in_flight, streams="emulated"), **options)


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.randn(size), torch.randn(size)).requires_grad_()


def layers(x, w):
    for _ in range(5):
        x = (x @ w).relu() * x.tanh()
    return x.square()


# ---------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("name", "in_flight"),
    [
        *(("mlp8", 1), ("mlp8", 5), ("conv4", 2), ("tf2", 2)),
        *(pytest.param(n, k, marks=pytest.mark.slow) for n in ("conv4", "tf2") for k in (1, 5)),
        pytest.param("mlp8", 2, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_eager_though_copies_come_late(streams, name, in_flight) -> None:
    function, args = MODELS[name]()
    wanted = [a for a in args if a.requires_grad]
    plain, region = st.compile(function), st.compile(function, partitioner=to_cpu(in_flight))
    exact = torch.autograd.grad(plain(*args), wanted)
    for _ in range(2):
        for a, b in zip(torch.autograd.grad(region(*args), wanted), exact, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    rows = [r for r in region.specializations[0].saved if r.reason.endswith("as cpu")]
    assert len(rows) >= 4 and all(r.bytes == 0 for r in rows)
    assert streams.log.count("copy") == 4 * len(rows) == streams.log.count("computation waits")
    assert max(streams.under_way) == min(in_flight, len(rows)) and streams.freed_early == 0
    assert len(streams.sides) == 1


def test_the_emulation_notices_what_is_wrong(streams) -> None:
    """Without a wait, a value is read before it is there, or freed before it is copied."""
    joint = load("mlp8")
    forward, backward = to_cpu()(joint.copy(), num_fwd_outputs=joint.num_forward)
    exact = step(joint, forward, backward)
    assert streams.freed_early == 0 and not any(g.isnan().any() for g in exact if g is not None)
    ops = operations()
    waits = [n for n in backward.graph.nodes if n.target is ops.wait]
    waits[3].replace_all_uses_with(waits[3].args[0])
    backward.graph.erase_node(waits[3])
    assert any(g.isnan().any() for g in step(joint, forward, backward) if g is not None)
    for n in forward.graph.nodes:
        if n.target is ops.wait:
            n.args = (n.args[0], [])
    step(joint, forward, backward)
    assert streams.freed_early > 0


def step(joint, forward: fx.GraphModule, backward: fx.GraphModule):
    """All gradients, by the code that the eager back end writes."""
    with torch.no_grad():
        saved = [n.name for n in forward.graph.output_node().args[0][joint.num_forward :]]
        names = [n.name for n in backward.graph.nodes if n.op == "placeholder"]
        originals = [n for n in names if n.startswith("tangents")]
        out = list(compile_graph(forward)(list(joint.leaves)))[joint.num_forward :]
        given = dict(zip([n for n in names if n not in originals], out, strict=True))
        assert len(saved) == len(out)
        given |= dict(zip(originals, joint.tangents(), strict=True))
        del out
        inputs = [given.pop(n) for n in names]
        return compile_graph(backward)(inputs)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_copies_under_way_are_bounded(streams, limit) -> None:
    function, args = MODELS["mlp8"]()
    region = st.compile(function, partitioner=to_cpu(limit))
    region(*args).backward()
    assert max(streams.under_way) == limit


def test_backwards_that_are_traced_later_take_values_from_the_cpu(streams) -> None:
    """Other tangents, fewer of them (some values are then not copied back), and a second derivative."""

    def f(x, w):
        h = layers(x, w)
        return h, (h @ w).sin()

    w = torch.randn(32, 32) / 6
    x = torch.randn(32, 32)
    for make in (lambda: x.clone().requires_grad_(), lambda: TwoTensor(x.clone(), x + 1).requires_grad_()):
        region = st.compile(f, partitioner=to_cpu())
        for use in (lambda a, b: [a, b], lambda a, b: [b], lambda a, b: [a]):
            grads = []
            for call in (f, region):
                v = make()
                outs = use(*call(v, w))
                first = torch.autograd.grad(outs, v, [torch.ones_like(o).detach() for o in outs], create_graph=True)[0]
                second = torch.autograd.grad(first, v, torch.ones_like(first).detach())[0]
                grads.append([g.b if isinstance(g, TwoTensor) else g for g in (first.detach(), second)])
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
        assert len(region.specializations) == 1
    assert streams.freed_early == 0


def test_wrappers_and_a_choice_by_operation(streams) -> None:
    region = st.compile(layers, partitioner=st.MinCut(store={"aten.mm.default": "cpu"}, offload=to_cpu().offload))
    x, w = two(32, 32), torch.randn(32, 32) / 6
    out = region(x, w)
    out.backward(torch.ones_like(out).detach())
    y = x.detach().requires_grad_()
    want = layers(y, w)
    want.backward(torch.ones_like(want).detach())
    torch.testing.assert_close(x.grad.a, y.grad.a)
    torch.testing.assert_close(x.grad.b, y.grad.b)
    kept = {r.operation for r in region.specializations[0].saved if r.reason.endswith("as cpu")}
    assert kept == {"aten.mm.default"}


# ---------------------------------------------------------------------------------------------- other compilers
def test_compilers_are_given_the_operations(streams) -> None:
    seen = []

    def compiler(module, inputs):
        seen.append([n.target for n in module.graph.nodes])
        return module

    register_backend("looking", compiler)
    try:
        function, args = MODELS["mlp8"]()
        wanted = [a for a in args if a.requires_grad]
        region = st.compile(function, backend="looking", partitioner=to_cpu())
        rounded = torch.autograd.grad(region(*args), wanted)
    finally:
        unregister_backend("looking")
    ops = operations()
    assert [s.count(ops.offload) for s in seen] == [8, 0] and [s.count(ops.reload) for s in seen] == [0, 8]
    for a, b in zip(rounded, torch.autograd.grad(function(*args), wanted), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.inductor
@pytest.mark.slow
def test_inductor_keeps_the_order(streams) -> None:
    function, args = MODELS["mlp8"]()
    wanted = [a for a in args if a.requires_grad]
    region = st.compile(function, backend="inductor", partitioner=to_cpu(3))
    found = torch.autograd.grad(region(*args), wanted)
    for a, b in zip(found, torch.autograd.grad(function(*args), wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert max(streams.under_way) in (2, 3) and streams.freed_early == 0
    assert streams.log.count("copy") == streams.log.count("computation waits") >= 8


def test_as_a_partitioner_of_functorch(streams) -> None:
    function, args = MODELS["mlp8"]()
    wanted = [a for a in args if a.requires_grad]
    aot = aot_function(function, lambda module, _: make_boxed_func(module), partition_fn=to_cpu())
    for a, b in zip(torch.autograd.grad(aot(*args), wanted), torch.autograd.grad(function(*args), wanted), strict=True):
        torch.testing.assert_close(a, b)
    assert streams.log.count("copy") >= 8


# ---------------------------------------------------------------------------------------------- order
def on_cuda(joint: fx.GraphModule) -> fx.GraphModule:
    """The same graph with the example values of a GPU, which need none."""
    with FakeTensorMode():
        for n in joint.graph.nodes:
            if n.op == "placeholder":
                v = n.meta["val"]
                n.meta["val"] = torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="cuda")
            elif n.op == "call_function":
                get = lambda x: x.meta["val"]
                n.meta["val"] = n.target(*fx.map_arg(n.args, get), **fx.map_arg(n.kwargs, get))
    return joint


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_order_in_the_graphs_of_a_gpu(in_flight) -> None:
    joint = load("mlp8")
    cut = st.MinCut(store="cpu", offload=Offload(in_flight))
    forward, backward = cut(on_cuda(joint.copy()), num_fwd_outputs=joint.num_forward)
    ops = operations()
    nodes = list(forward.graph.nodes)
    place = {n: k for k, n in enumerate(nodes)}
    copies = [n for n in nodes if n.target is ops.offload]
    waits = {n.args[0]: n for n in nodes if n.target is ops.wait}
    assert len(copies) == 8 and all(nodes[place[n] - 1] is n.args[0] or n.prev.target is ops.wait for n in copies)
    for k, copy in enumerate(copies):
        assert copy.meta["val"].device.type == "cpu" and copy.args[0].meta["val"].device.type == "cuda"
        assert waits[copy].args[1] == [copy.args[0]], "the value lives until it is copied"
        later = copies[k + in_flight] if k + in_flight < len(copies) else nodes[-1]
        assert place[waits[copy]] < place[later]
    assert nodes[-1].args[0][joint.num_forward :][-8:] == list(waits.values())

    nodes = list(backward.graph.nodes)
    place = {n: k for k, n in enumerate(nodes)}
    copies = [n for n in nodes if n.target is ops.reload]
    waits = [n for n in nodes if n.target is ops.wait]
    assert [w.args[0] for w in waits] == copies and len(waits) == 8
    for k, (copy, wait) in enumerate(zip(copies, waits, strict=True)):
        assert copy.meta["val"].device.type == wait.meta["val"].device.type == "cuda"
        first = min(wait.users, key=place.__getitem__)
        assert all(n.target is ops.wait for n in nodes[place[wait] + 1 : place[first]]), "waits right before the use"
        assert list(wait.args[1]) == copies[k + 1 : k + in_flight], "begun by then"
        if k >= in_flight - 1 and k:
            assert place[copy] > place[waits[k - in_flight + 1]] - 2, "not before its turn"


def test_nothing_is_registered_on_import() -> None:
    code = (
        "import torch, subclass_trace as st\n"
        "has = lambda: hasattr(torch.ops.subclass_trace, 'offload')\n"
        "x = torch.rand(64, 64, requires_grad=True)\n"
        "st.compile(lambda x: (x @ x).sin())(x).sum().backward()\n"
        "assert not has()\n"
        "from subclass_trace.partition.offload import operations\n"
        "operations()\n"
        "assert has()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("options", [{"in_flight": 0}, {"in_flight": 1.5}, {"streams": "unheard of"}], ids=str)
def test_options_out_of_range(options) -> None:
    with pytest.raises(st.OptionError) as caught:
        Offload(**options)
    assert caught.value.path == f"Offload.{next(iter(options))}" and caught.value.expected


# ---------------------------------------------------------------------------------------------- on a GPU
class TimedStreams:
    """`torch.cuda` that notes when each copy begins and ends."""

    def __init__(self) -> None:
        self.copies: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __getattr__(self, name):
        return getattr(torch.cuda, name)

    def Event(self):
        event = torch.cuda.Event(enable_timing=True)
        self.copies.append((torch.cuda.Event(enable_timing=True), event))
        return event

    def stream(self, stream):
        self.copies[-1][0].record(stream)
        return torch.cuda.stream(stream)


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_copies_overlap_on_a_gpu(backend) -> None:
    timed = TimedStreams()
    register_streams("timed", timed)

    def f(x, *ws):
        for w in ws:
            x = (x @ w).tanh()
        return x.sum()

    x = torch.randn(8192, 2048, device="cuda", requires_grad=True)
    ws = [(torch.randn(2048, 2048, device="cuda") / 45).requires_grad_() for _ in range(8)]
    region = st.compile(f, backend=backend, partitioner=st.MinCut(store="cpu", offload=Offload(3, streams="timed")))
    exact = torch.autograd.grad(st.compile(f, backend=backend)(x, *ws), [x, *ws])
    for _ in range(3):
        timed.copies.clear()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        grads = torch.autograd.grad(region(x, *ws), [x, *ws])
        end.record()
        torch.cuda.synchronize()
    for a, b in zip(grads, exact, strict=True):
        torch.testing.assert_close(a, b)
    assert len(timed.copies) >= 10
    whole = begin.elapsed_time(end)
    spans = [(begin.elapsed_time(a), begin.elapsed_time(b)) for a, b in timed.copies]
    assert all(0 <= a <= b <= whole for a, b in spans)
    plain = st.compile(f, backend=backend)
    for _ in range(3):
        torch.cuda.synchronize()
        begin.record()
        torch.autograd.grad(plain(x, *ws), [x, *ws])
        end.record()
        torch.cuda.synchronize()
    copying = sum(b - a for a, b in spans)
    assert whole < begin.elapsed_time(end) + 0.9 * copying, "the copies take part of their time beside the kernels"
