"""When a call gets a specialization of its own: guards, dynamic sizes, programs that modules share, how long inputs live."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ramps import two
from runs import Runs
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import TwoTensor, convert_linears


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


def test_torch_resets_regions_too() -> None:
    """And what they kept goes: graphs, saved values, what the trace has read."""
    weight = TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_()
    region = st.compile(lambda x: (x * weight).sum())
    for _ in range(2):  # Dynamo forgets its back ends: each trace tells it again
        region(torch.ones(2)).backward()
        graphs = weakref.ref(region.specializations[0].graphs)
        torch.compiler.reset()
        gc.collect()
        assert region.specializations == [] and graphs() is None


def test_python_runs_once_per_specialization() -> None:
    ran = Runs()
    region = st.compile(lambda x: ran.note() or x * x)
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


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.filterwarnings("ignore:a call of a region runs eagerly")
def test_dynamic_sizes_of_overlapping_arguments(written: bool) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if written:
            x.add_(1)
        return x.sum() + y * 2

    region = st.compile(f, dynamic=True)
    for size, stop in (((4,), 7), ((2, 3), 6), ((2, 3), 5), ((3, 2), 5)):  # the last two lie at the same bytes
        memory, again = torch.arange(7.0), torch.arange(7.0)
        count = torch.Size(size).numel()
        got = region(memory[:count].view(size), memory[2:stop])
        assert got.equal(f(again[:count].view(size), again[2:stop])) and memory.equal(again)


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


def test_sizes_0_and_1() -> None:
    region = st.compile(lambda x: x.sum(0) + x.shape[0])
    for n in (4, 5, 1, 0, 6, 1, 0):
        assert region(torch.ones(n, 2)).tolist() == [2.0 * n, 2.0 * n]
    assert len(region.specializations) <= 4


def test_two_equal_sizes_that_become_different() -> None:
    region = st.compile(lambda x, y: (x.sum() + y.sum(), x.shape[0] == y.shape[0])[0], dynamic=True)
    for n, m in ((3, 3), (4, 4), (4, 5), (6, 7)):
        assert region(torch.ones(n), torch.ones(m)).item() == n + m


def test_automatic_dynamic_marks_only_what_changed() -> None:
    region = st.compile(lambda x, y: x.sum() + y.sum())
    for n in (4, 5, 6):
        region(torch.ones(n, 3), torch.ones(7))
    assert len(region.specializations) == 2
    sizes = [str(i.spec.size) for i in region.specializations[1].plan.inputs.rows]
    assert sizes[1] == "(7,)" and sizes[0] != "(6, 3)" and "3)" in sizes[0]


# ---------------------------------------------------------------------------------------------- life times


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


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"a": t}, lambda t: TwoTensor(t, t.clone())])
def test_arguments_of_less_rank_once_sizes_are_symbols(wrap: Callable[[torch.Tensor], Any]) -> None:
    def function(x: Any) -> torch.Tensor:
        return (x["a"] if isinstance(x, dict) else x) * 2

    region = st.compile(function)
    for shape in ((3,), (4,), (2, 2), (), (3, 4), (3, 4, 5), (0,), (), (5,)):
        x = wrap(torch.ones(shape))
        assert region(x).shape == shape


def test_other_kinds_of_arguments_once_sizes_are_symbols() -> None:
    region = st.compile(lambda x, y: x * y)
    ones = torch.ones
    for x, y in (
        (ones(3), 2),
        (ones(4), 2),
        (2, ones(3)),
        (ones(5), ones(5)),
        (ones(6), ones(6)),
        (3, ones(3)),
        (ones(7), 2.5),
    ):
        torch.testing.assert_close(region(x, y), x * y)


class Remembers(torch.nn.Module):
    """Appends to a list of its own, to a global one, and adds to a set, in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[torch.Tensor] = []
        self.seen: set[str] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        self.history.append(y.sum())
        LOG.append(y.mean())
        self.seen.add("forward")
        return y


LOG: list[torch.Tensor] = []


def test_what_is_only_appended_to_is_not_compared() -> None:
    module = Remembers()
    region = st.compile(module)
    for n in range(1, 6):
        region(torch.ones(3))
        assert len(module.history) == len(LOG) == n and module.seen == {"forward"}
    assert len(region.specializations) == 1


def test_code_that_computes_names_reads_no_global_of_a_module_that_it_does_not_have() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        LOG.append(x.sum())
        return x * getattr(LIMITS, "max" + "")

    def read(x: torch.Tensor) -> torch.Tensor:
        LOG.append(x.sum())
        return x * len(globals()["LO" + "G"])

    for function, count in ((scaled, 1), (read, 3)):
        LOG.clear()
        region = st.compile(function, frontend="trace")
        for n in range(1, 4):
            assert region(torch.ones(2)).tolist() == ([2.0, 2.0] if count == 1 else [float(n)] * 2)
        assert len(LOG) == 3 and len(region.specializations) == count


LIMITS = types.SimpleNamespace(max=2.0)


class Experts(torch.nn.Module):
    """As mixtures of experts hand on their losses, and hooks their statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.losses, self.last = torch.nn.Linear(3, 3), [], {}
        self.layer.register_forward_hook(lambda module, args, out: STATISTICS["mean"].append(out.mean().item()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.losses, self.last = [], {"x": x.sum()}
        for _ in range(2):
            x = self.layer(x)
            self.losses.append(x.square().mean())
        return x


STATISTICS: dict[str, list[float]] = {"mean": []}


def test_lists_that_are_new_in_each_call() -> None:
    module = Experts()
    region = st.compile(module, frontend="trace")
    for n in range(1, 6):
        seen = module.losses
        y = region(torch.full((2, 3), float(n)))
        assert module.losses is not seen and len(STATISTICS["mean"]) == 2 * n
        torch.testing.assert_close(module.losses[1], y.square().mean())
        torch.testing.assert_close(module.last["x"], torch.tensor(6.0 * n))
        sum(module.losses).backward()
    assert len(region.specializations) == 1


def test_the_bytes_of_a_tensor_of_changing_size() -> None:
    region = st.compile(lambda x: x * 2 if x.nbytes < 10**9 else x.half())
    for n in range(2, 8):
        assert torch.equal(region(torch.ones(n)), torch.full((n,), 2.0))
    assert len(region.specializations) == 2


# ----------------------------- regions of modules of one class share programs: the second layer of a list is not traced
Tensor = torch.Tensor


class Layer(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.up, self.down, self.heads, self.act, self.p = nn.Linear(8, 8), nn.Linear(8, 8), 2, F.gelu, 0.0
        vars(self).update(given)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x)).unflatten(-1, (self.heads, -1)).cumsum(-1).flatten(-2)
        return x + F.dropout(self.down(y), self.p, self.training)


class Indexed(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.index


class Tabled(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.t["scale"]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        ctx.layer = layer
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.layer.heads, None


class Scaled(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Scale.apply(self.up(x), self)


class Hooked(Layer):
    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y.register_hook(lambda grad: grad * self.heads)
        return y


class First(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) * (2 if self is FIRST[0] else 3)


class Counts(Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.heads += 1
        return self.up(x) * self.heads


FIRST: list[Any] = [None]
TABLE = {"scale": 2.0}


def first() -> list[nn.Module]:
    made = [First() for _ in range(3)]
    FIRST[0] = made[0]
    return made


def tied(layer: Layer) -> Layer:
    layer.down.weight = layer.up.weight
    return layer


def hooked(layer: Layer, n: float) -> Layer:
    layer.up.register_forward_hook(lambda module, args, out: out * n)
    return layer


#: what makes the layers, and which are not traced
LISTS: dict[str, tuple[Callable[[], list[nn.Module]], str]] = {
    "equal layers": (lambda: [Layer() for _ in range(4)], "-sss"),
    "numbers that decide shapes": (lambda: [Layer(heads=n) for n in (2, 4, 4, 2)], "--ss"),
    "an index, a symbol from the third on": (lambda: [Indexed(index=n) for n in range(5)], "---ss"),
    "functions": (lambda: [Layer(act=f) for f in (F.gelu, torch.sin, F.gelu)], "--s"),
    "floats": (lambda: [Layer(p=p) for p in (0.0, 0.5, 0.5, 0.1)], "--s-"),
    "training or not": (lambda: [Layer(p=0.5).train(n % 2 == 0) for n in range(4)], "--ss"),
    "tied parameters": (lambda: [Layer(), tied(Layer()), Layer(), tied(Layer())], "--ss"),
    "frozen parameters": (lambda: [Layer(), Layer().requires_grad_(False), Layer()], "--s"),
    "sizes": (lambda: [nn.Sequential(nn.Linear(8, n), nn.Linear(n, 8)) for n in (8, 4, 8)], "--s"),
    "hooks of their own": (lambda: [hooked(Layer(), n) for n in (2.0, 3.0)], "--"),
    "one table, another table": (lambda: [Tabled(t=t) for t in (TABLE, TABLE, {"scale": 2.0}, {"scale": 3.0})], "-ss-"),
    "tables that nothing reads": (lambda: [Layer(t=t) for t in (TABLE, TABLE, {"scale": 2.0}, {"scale": 3.0})], "-sss"),
    "a global is one of them": (first, "--s"),
    "a custom backward that reads the layer": (lambda: [Scaled(heads=n) for n in (2, 2, 3)], "---"),
    "hooks that read the layer": (lambda: [Hooked(heads=n) for n in (2, 2, 3)], "---"),
    "side effects": (lambda: [Counts() for _ in range(2)], "-s"),
    "wrappers": (lambda: [convert_linears(Layer()) for _ in range(3)], "-ss"),
}


def shared(regions: list[Any]) -> str:
    """Which of them has a program of an earlier one: "s"."""
    programs = [region.specializations[0].program for region in regions]
    return "".join("s" if program in programs[:k] else "-" for k, program in enumerate(programs))


@pytest.mark.parametrize("by_method", [False, True])
@pytest.mark.parametrize("name", LISTS)
@pytest.mark.sweep(every=3)
def test_layers_of_a_list(name: str, by_method: bool) -> None:
    gc.collect()  # the regions of other tests
    make, expected = LISTS[name]
    torch.manual_seed(0)
    layers = make()
    torch.manual_seed(0)
    found = make() if name != "a global is one of them" else layers
    regions = [st.compile(layer.forward if by_method else layer, frontend="trace") for layer in found]
    for _ in range(2):
        for layer, own, region in zip(layers, found, regions, strict=True):
            rows = []
            for call, module in ((layer, layer), (region, own)):
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
                torch.manual_seed(2)
                y = call(x)
                leaves = [x, *(p for p in module.parameters() if p.requires_grad)]
                grads = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
                rows.append([y, *(g for g in grads if g is not None), torch.tensor(float(getattr(module, "heads", 0)))])
            assert all(map(torch.equal, *rows))
    assert shared(regions) == expected


def test_a_layer_that_changes_is_traced_by_itself() -> None:
    layers = [Layer(p=0.5) for _ in range(3)]
    regions = [st.compile(layer) for layer in layers]
    x = torch.randn(4, 8)
    for region in regions:
        region(x)
    layers[1].eval()
    assert torch.equal(regions[1](x), layers[1](x))
    assert [len(r.specializations) for r in regions] == [1, 2, 1]


def test_other_tangents_and_freed_layers() -> None:
    class Two(Layer):
        def forward(self, x: Tensor) -> Any:
            return self.up(x).sin(), self.down(x).cos()

    layers = [Two() for _ in range(3)]
    regions = [st.compile(layer) for layer in layers]
    x = torch.randn(4, 8)
    for layer, region in zip(layers, regions, strict=True):
        for k in (0, 1):
            given = [*(layer.up, layer.down)[k].parameters()]
            got, want = (torch.autograd.grad(call(x)[k].sum(), given) for call in (region, layer))
            assert all(map(torch.equal, got, want))
    assert shared(regions) == "-ss"
    first, second = weakref.ref(layers[0]), weakref.ref(layers[1])
    del layer, region, regions[:2], layers[:2], given
    gc.collect()
    assert first() is None and second() is None
    assert all(map(torch.equal, regions[0](x), layers[0](x)))


def test_thresholds_are_told() -> None:
    region = st.compile(lambda x: x * 2)
    region(torch.ones(2))
    assert "misses: 8" in region.explain(thresholds=True) and "misses: 8" not in region.explain()


def test_calls_that_raise_in_eager_mode_are_no_misses() -> None:
    def checked(x: torch.Tensor, k: int) -> torch.Tensor:
        if k:
            raise KeyError(k)
        return x * 2

    region = st.compile(checked, frontend="auto")
    region(torch.ones(2), 0)
    for k in range(1, 20):
        with pytest.raises(KeyError, match=f"^{k}$"):
            region(torch.ones(2), k)
    assert region(torch.ones(2), 0).equal(torch.full((2,), 2.0)) and len(region.specializations) == 1
    assert "served by our trace" in region.explain()
