"""`st.freeze`: what depends on weights alone is computed once; a weight that changes later is seen and named."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.runtime.frozen import Erased, FrozenProgram
from subclass_trace.subclass.flatten import flatten
from subclass_trace.zoo import PackedInt4, TwoTensor

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 24).reshape(3, 8)
EXAMPLES = {"model": X, "packed": torch.randn(5, 16), "norms": torch.randn(2, 3, 9, 9)}


def two(module: nn.Module) -> Any:
    """Its parameters as wrappers."""
    for child in module.modules():
        for name, p in [*child._parameters.items()]:
            if p is not None:
                setattr(child, name, nn.Parameter(TwoTensor(p.detach().clone(), p.detach() + 0.5)))
    return module


def model() -> Any:
    return two(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))


def packed() -> Any:
    linear = nn.Linear(16, 32)
    linear.weight = nn.Parameter(PackedInt4.quantize(linear.weight), requires_grad=False)
    return linear


def norms() -> Any:
    first = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1))
    made = nn.Sequential(*first, nn.Flatten(), nn.Linear(8, 6), nn.BatchNorm1d(6))
    for t in (*made.parameters(), *made.buffers()):
        if t.is_floating_point():
            nn.init.uniform_(t, 0.5, 1.5)
    return made.eval()


def programs(region: Any) -> list[FrozenProgram]:
    return [s.program.frozen for s in region.specializations]


def held(region: Any) -> int:
    """Bytes of the constants that are not memory of a weight."""
    found = {
        c.untyped_storage().data_ptr(): c.untyped_storage().nbytes() for p in programs(region) for c in p.constants
    }
    return sum(found.values())


def read_bytes(program: FrozenProgram) -> int:
    """Bytes of the weights that constants are made of."""
    dense = [t for w in program.weights() for t in flatten(w)[0]]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}.values())


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, TwoTensor):
        torch.testing.assert_close((got.a, got.b), (want.a, want.b))
    else:
        torch.testing.assert_close(got, want)


# ---------------------------------------------------------------------------------------------- what is folded
@pytest.mark.parametrize("mode", ["keep", "fold"])
@pytest.mark.parametrize("make", [model, packed, norms], ids=lambda f: f.__name__)
def test_results_are_those_of_eager(make: Callable[[], Any], mode: str) -> None:
    module, x = make(), EXAMPLES[make.__name__]
    frozen = st.freeze(module, mode=mode)
    with torch.no_grad():
        for _ in range(2):
            same(frozen(x), module(x))
    with torch.inference_mode():
        same(frozen(x), module(x))
    assert all(p.constants and p.folded.first.body for p in programs(frozen))


def test_constants_never_grow_with_keep_and_an_int4_weight_stays_packed() -> None:
    module, x = packed(), EXAMPLES["packed"]
    keep, fold = st.freeze(module), st.freeze(module, mode="fold")
    with torch.no_grad():
        same(keep(x), fold(x))
    assert held(keep) <= read_bytes(programs(fold)[0]) < held(fold)
    dense = [
        any(c.numel() == 32 * 16 and c.is_floating_point() for c in programs(f)[0].constants) for f in (keep, fold)
    ]
    assert dense == [False, True]


def test_specializations_share_equal_constants() -> None:
    module = packed()
    frozen = st.freeze(module, mode="fold")
    with torch.no_grad():
        frozen(torch.randn(5, 16))
        one = held(frozen)
        frozen(torch.randn(2, 4, 16))
    assert len(frozen.specializations) == 2 and held(frozen) == one


def test_batch_norms_go_into_convolutions_and_linear_layers_or_become_scale_and_shift() -> None:
    module = norms()
    frozen = st.freeze(module)
    with torch.no_grad():
        for n in (2, 5):  # of the second one the number of rows is a symbol
            x = torch.randn(n, 3, 9, 9)
            same(frozen(x), module(x))
    for program in programs(frozen):
        names = [str(n.target) for n in program.folded.rest.body]
        assert not any("batch_norm" in name or "rsqrt" in name for name in names)
        assert sum("aten.mul" in name for name in names) == 1, "the one after ReLU, which has no weight"


def test_a_batch_norm_in_training_is_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    other, frozen, x = copy.deepcopy(module), st.freeze(module), torch.randn(6, 4)
    with torch.no_grad():
        for _ in range(3):
            same(frozen(x), other(x))
    same(module[1].running_mean, other[1].running_mean)


# ---------------------------------------------------------------------------------------------- staleness
def step(optimizer: type, **options: Any) -> Callable[[Any], None]:
    def run(m: Any) -> None:
        for p in m.parameters():
            p.grad = torch.ones_like(p)
        optimizer(m.parameters(), lr=0.1, **options).step()

    return run


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "add_": (lambda m: m[0].weight.add_(1), "self[0].weight"),
    "add_ to an inner tensor": (lambda m: m[0].weight.b.add_(1), "self[0].weight.b"),
    "a write to detach()": (lambda m: m[2].weight.detach().mul_(2), "self[2].weight"),
    "a write to data": (lambda m: m[0].weight.a.data.mul_(2), "self[0].weight.a"),
    "load_state_dict": (lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}), "self[0].weight"),
    "load_state_dict, assign": (
        lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
        "self[0].weight",
    ),
    "assignment": (lambda m: setattr(m[2], "weight", nn.Parameter(m[2].weight.detach() * 2)), "self[2].weight"),
    "another inner tensor": (lambda m: setattr(m[0].weight, "a", m[0].weight.a * 2), "self[0].weight.a"),
    "foreach": (lambda m: torch._foreach_add_([m[2].weight], 1.0), "self[2].weight.a"),
    "AdamW": (step(torch.optim.AdamW, foreach=False), "self[0].weight"),
    "AdamW, foreach": (step(torch.optim.AdamW, foreach=True), "self[0].weight.a"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_version_counters_of_folded_constants(change: str) -> None:
    """And what moves none: each change is seen, named, and folded again without a trace."""
    module = model()
    frozen = st.freeze(module)
    write, path = CHANGES[change]
    with torch.no_grad():
        frozen(X), frozen(X)
        write(module)
        for _ in range(2):
            with pytest.raises(st.FrozenError, match="a weight has changed") as caught:
                frozen(X)
            assert str(caught.value.path) == path
            assert caught.value.got and "refreeze()" in str(caught.value.fix)
        frozen.refreeze()
        for _ in range(2):
            same(frozen(X), module(X))
    assert len(frozen.specializations) == 1, "nothing was traced"


@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_that_changes_no_number_that_is_looked_at_is_seen(foreach: bool) -> None:
    """A foreach step moves no version of a wrapper, and here it changes one number only."""
    module = model()
    frozen = st.freeze(module)
    with torch.no_grad():
        frozen(X)
        for p in module[:1].parameters():
            p.grad = torch.zeros_like(p)
            p.grad.a.view(-1)[0] = 1.0
        torch.optim.SGD(module.parameters(), lr=0.1, foreach=foreach).step()
        with pytest.raises(st.FrozenError, match=r"self\[0\].weight"):
            frozen(X)
        frozen.refreeze()
        same(frozen(X), module(X))


@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_in_a_compiled_region_is_seen(foreach: bool) -> None:
    module = model()
    frozen, optimizer = st.freeze(module), torch.optim.AdamW(module.parameters(), foreach=foreach)

    @st.compile
    def train(x: Tensor) -> None:
        module(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        with torch.no_grad():
            same(frozen(X), module(X))
        train(X)
        with torch.no_grad(), pytest.raises(st.FrozenError, match="weight"):
            frozen(X)
        frozen.refreeze()
    assert train.specializations, "the last steps were traced"


def test_strict_misses_no_change_of_a_number() -> None:
    module, x = norms(), EXAMPLES["norms"]
    loose, strict = st.freeze(module), st.freeze(module, strict=True)
    with torch.no_grad():
        want = module(x)
        loose(x), strict(x), strict(x)
        module[0].weight.data[0, 0, 0, 0] = 7.0  # no version moves, and it is none of the numbers in the midst
        same(loose(x), want)
        with pytest.raises(st.FrozenError, match=r"self\[0\].weight"):
            strict(x)
        strict.refreeze()
        same(strict(x), module(x))


def test_a_weight_that_each_call_reads_may_change() -> None:
    module = model()
    frozen = st.freeze(module)
    with torch.no_grad():
        frozen(X)
        module[2].bias.mul_(2)
        same(frozen(X), module(X))
        module[2].bias = nn.Parameter(module[0].bias.detach()[:4] * 3)
        same(frozen(X), module(X))


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.double, lambda m: m.to(torch.bfloat16)])
def test_half_and_to_still_work(cast: Callable[[Any], Any]) -> None:
    module = model()
    frozen = st.freeze(module)
    with torch.no_grad():
        frozen(X)
        cast(module)
        for _ in range(2):  # another kind of weight: traced, once
            same(frozen(X.to(module[0].weight.dtype)), module(X.to(module[0].weight.dtype)))
    assert len(frozen.specializations) == 2


# ---------------------------------------------------------------------------------------------- discard
@pytest.mark.long
def test_discarded_weights_raise_by_name_and_their_memory_is_free() -> None:
    module, x = norms(), EXAMPLES["norms"]
    weight, frozen = weakref.ref(module[0].weight), st.freeze(module, discard=True, mode="fold")
    with torch.no_grad():
        want = module(x)
        for _ in range(3):
            same(frozen(x), want)
        gc.collect()
        assert weight() is None and type(module[0].weight) is Erased
        assert module[0].weight.shape == (8, 3, 3, 3) and "given up" in repr(module[0].weight)
        uses = (lambda: module(x), module.half, lambda: module[0].weight + 1, lambda: frozen(torch.randn(3, 3, 9, 9)))
        for use in uses:
            with pytest.raises(st.FrozenError, match="given up") as caught:
                use()
            assert str(caught.value.path) == "self[0].weight"
        same(frozen(x), want)


def test_several_kinds_of_calls_are_made_ready_before_weights_are_discarded() -> None:
    module = norms()
    frozen, calls = st.freeze(module, discard=True), [torch.randn(n, 3, 9, 9) for n in (2, 3)]
    with torch.no_grad():
        wants = [module(x) for x in calls]
        for x in calls:
            frozen.specialize(x)
        for x, want in zip(calls, wants, strict=True):
            same(frozen(x), want)
        with pytest.raises(st.FrozenError, match="given up"):
            frozen.refreeze()
        same(frozen(calls[0]), wants[0])


# ---------------------------------------------------------------------------------------------- beside the rest
def test_a_copy_and_a_pickled_one_are_frozen_by_themselves() -> None:
    module = model()
    frozen = st.freeze(module, mode="fold")
    with torch.no_grad():
        frozen(X)
        for other in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
            same(other(X), frozen(X))
            other[0].weight.add_(1)
            with pytest.raises(st.FrozenError):
                other(X)
        same(frozen(X), module(X))


def test_a_frozen_region_is_saved_and_loaded(tmp_path: Any) -> None:
    module = model()
    frozen = st.freeze(module)
    with torch.no_grad():
        frozen(X)
        assert frozen.save(tmp_path / "frozen.st", X) == ()
        other = model()
        served = st.load(tmp_path / "frozen.st", st.freeze(other))
        with torch.compiler.set_stance("fail_on_recompile"):
            same(served(X), other(X))
        other[0].weight.add_(1)
        with pytest.raises(st.FrozenError, match=r"self\[0\].weight"):
            served(X)
        with pytest.raises(st.ArtifactError, match="frozen"):
            st.load(tmp_path / "frozen.st", model())


def test_a_frozen_region_is_kept_in_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBCLASS_TRACE_CACHE_DIR", str(tmp_path / "cache"))
    with torch.no_grad():
        st.freeze(st.compile(model(), cache=True))(X)
        module = model()
        frozen = st.freeze(st.compile(module, cache=True))
        with torch.compiler.set_stance("fail_on_recompile"):
            same(frozen(X), module(X))
    assert programs(frozen)[0].constants


def test_the_module_of_an_exported_program_is_frozen() -> None:
    module = model()
    with torch.no_grad():
        program = st.export(module, (X,)).program.module()
        frozen = st.freeze(program, mode="fold")
        same(frozen(X)[0], module(X).a)
        program.get_parameter("0.weight.a").add_(1)
        with pytest.raises(st.FrozenError, match="weight"):
            frozen(X)


@pytest.mark.parametrize("make", [model, packed, norms], ids=lambda f: f.__name__)
def test_a_frozen_region_is_exported_with_its_constants(make: Callable[[], Any]) -> None:
    module, x = make(), EXAMPLES[make.__name__]
    frozen = st.freeze(module, mode="fold")
    with torch.no_grad():
        exported = st.export(frozen, (x,))
        same(exported.unflatten_outputs(exported.program.module()(*exported.flatten_inputs(x))), module(x))
        frozen(x)
    names = [*exported.program.state_dict]
    assert sum(name.startswith("frozen.") for name in names) == len(programs(frozen)[0].constants) > 0
    assert not any("weight" in name for name in names), names
    with pytest.raises(st.ExportError, match="no gradients"):
        st.export(frozen, (x,), joint=True)


def test_specializations_share_no_views_of_weights() -> None:
    """Two equal weights: what is written to one of them is no change of a program that has the other."""

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.load_state_dict(self.a.state_dict())

        def forward(self, x: Tensor, first: bool) -> Tensor:
            return self.a(x) if first else self.b(x)

    module, x = Either(), torch.randn(3, 4)
    frozen = st.freeze(module)
    with torch.no_grad():
        frozen(x, True), frozen(x, False)
        module.a.weight.mul_(2)
        same(frozen(x, False), module.b(x))
        with pytest.raises(st.FrozenError, match=r"self\.a\.weight"):
            frozen(x, True)


def test_what_cannot_be_frozen_says_so() -> None:
    with pytest.raises(st.OptionError, match="mode has no such value"):
        st.freeze(model(), mode="thaw")
    with pytest.raises(st.OptionError, match="nothing to freeze"):
        st.freeze(lambda x: x)
    with pytest.raises(st.OptionError, match="not frozen"):
        st.compile(model()).refreeze()
    with pytest.raises(st.FrozenError, match="no gradients"):
        st.freeze(model())(X)


@pytest.mark.inductor
def test_inductor_gets_what_is_left() -> None:
    module, x = norms(), EXAMPLES["norms"]
    frozen = st.freeze(st.compile(module, backend="inductor"))
    with torch.no_grad():
        for _ in range(2):
            same(frozen(x), module(x))
        module[1].running_mean.add_(1)
        with pytest.raises(st.FrozenError, match=r"self\[1\].running_mean"):
            frozen(x)
        frozen.refreeze()
        same(frozen(x), module(x))
    assert any(
        c.is_contiguous(memory_format=torch.channels_last) for c in programs(frozen)[0].constants if c.dim() == 4
    )
