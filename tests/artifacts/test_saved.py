"""`Region.save`, `load`, `warm_up`: what is served, what is refused and what the error says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace.artifacts import container
from subclass_trace.capture.capture import Capture
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

FACTOR = {"by": 2.0}


class Model(nn.Module):
    def __init__(self, width: int = 4, kind: type = nn.ReLU) -> None:
        super().__init__()
        self.first, self.act, self.drop = nn.Linear(4, width), kind(), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.act(self.first(x))) * FACTOR["by"]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many traces there were."""
    noted: list[int] = []
    capture = Capture.capture
    monkeypatch.setattr(Capture, "capture", lambda self, run: (noted.append(1), capture(self, run))[1])
    # As in a process of its own: no module has another one's program.
    monkeypatch.setattr("subclass_trace.frontends.equal_modules._of_class", lambda module: {})
    return noted


@pytest.fixture
def saved(tmp_path: Path, traces: list[int]) -> Path:
    """Of a model in training and in evaluation, each for two sizes."""
    region, path = st.compile(Model(), frontend="trace"), tmp_path / "model.st"
    for _ in range(2):
        region(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            region.eval()(torch.ones(3, 4))
        region.train()
    assert region.save(path, torch.ones(2, 4)) == () and [*tmp_path.iterdir()] == [path]
    traces.clear()
    return path


def test_specializations_are_bound_as_they_are_needed(saved: Path, traces: list[int]) -> None:
    region, eager = st.load(saved, Model(), frontend="trace"), Model()
    eager.load_state_dict(region.state_dict())
    assert isinstance(region, Model) and "0 are bound" in region.explain()
    region(torch.ones(2, 4)).sum().backward()
    assert "of 2 specializations" in region.explain() and "1 are bound" in region.explain()
    with torch.no_grad():
        assert region.eval()(torch.ones(3, 4)).equal(eager.eval()(torch.ones(3, 4)))
    assert not traces and len(region.specializations) == 2
    assert region(torch.ones(5, 4)).equal(eager(torch.ones(5, 4))) and traces  # of another size: traced as usual
    assert "2 are bound" in region.explain()


def test_a_served_process_may_never_trace(saved: Path, traces: list[int]) -> None:
    region = st.load(saved, Model(), frontend="trace")
    with torch.compiler.set_stance("fail_on_recompile"):
        region(torch.ones(2, 4))
        with pytest.raises(st.GuardError, match=r"expected 2, actual 7; of 2 specializations in .* 1 are bound"):
            region(torch.ones(7, 4))
    assert not traces


def test_options_of_the_cache() -> None:
    for value in ("graphs", "yes", 1):
        with pytest.raises(st.OptionError) as caught:
            st.compile(Model(), cache=value)
        assert caught.value.path == "cache"


def test_reset_binds_again(saved: Path, traces: list[int]) -> None:
    region = st.load(saved, Model(), frontend="trace")
    for _ in range(2):
        region(torch.ones(2, 4))
        region.reset()
    assert not traces


def test_warm_up_binds_and_compiles_the_backward(saved: Path, traces: list[int]) -> None:
    region, x = st.load(saved, Model(), frontend="trace"), torch.ones(2, 4)
    made = region.warm_up(x)
    assert all(b.call._compiled is not None for b in made.program.backwards.compiled)
    with torch.compiler.set_stance("fail_on_recompile"):
        region(x).sum().backward()
    assert not traces
    fresh = st.compile(Model(), frontend="trace")
    fresh.warm_up(x)
    assert len(traces) == 1
    fresh(x).sum().backward()
    assert len(traces) == 1


def other_code(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2


DIFFERENT: dict[str, tuple[Any, dict[str, Any], str, str, str]] = {
    "a size": (lambda: Model(width=5), {}, "self.first.weight", "4, 4", "5, 4"),
    "a class": (lambda: Model(kind=nn.GELU), {}, "self.act", "ReLU", "GELU"),
    "a dtype": (lambda: Model().bfloat16(), {}, "self.first.weight", "float32", "bfloat16"),
    "an option": (Model, {"partitioner": "default"}, "options", "None", "default"),
    "another function": (lambda: nn.Linear(4, 4), {}, "", "", ""),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_named(saved: Path, name: str, traces: list[int]) -> None:
    make, options, path, expected, got = DIFFERENT[name]
    with pytest.raises(st.ArtifactError) as caught:
        st.load(saved, make(), frontend="trace", **options)
    error = caught.value
    assert path in str(error.path) and expected in str(error.expected) and got in str(error.got) and error.fix
    model, x = make(), torch.ones(2, 4)
    x = x.to(next(model.parameters()).dtype)
    region = st.load(saved, model, strict=False, frontend="trace", **options)
    torch.manual_seed(0)
    out = region(x)
    torch.manual_seed(0)
    assert out.equal(model(x)) and traces


def test_a_changed_global_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTOR, "by", 3.0)
    with pytest.raises(st.ArtifactError) as caught:
        st.load(saved, Model())
    error = caught.value
    assert "FACTOR['by']" in str(error.path) and (error.expected, error.got) == ("2.0", "3.0")


def test_a_patched_method_is_seen(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "forward", other_code)
    with pytest.raises(st.ArtifactError, match="code"):
        st.load(saved, Model())


RANKS = [
    ([8, None, []], "8 of them", "None"),
    ([None, 1, ["its rank"]], "rank 1, since the trace has read its rank", "rank None"),
]


@pytest.mark.parametrize("ranks, expected, got", RANKS)
def test_another_rank(saved: Path, ranks: Any, expected: str, got: str) -> None:
    header, descriptions = container.unpack(saved.read_bytes())
    saved.write_bytes(container.pack(header, [{**d, "constants": {}, "ranks": ranks} for d in descriptions]))
    with pytest.raises(st.ArtifactError) as caught:
        st.load(saved, Model())
    assert (caught.value.path, caught.value.expected, caught.value.got) == ("ranks", expected, got)


HEADERS = [("versions", ["1.0", "", "3.0", "1"]), ("libraries", {"numpy": "0.1"}), ("table", "x")]
HEADERS += [("devices", {"cuda:99": "some GPU 8.0"})]


@pytest.mark.parametrize("field, value", HEADERS)
def test_another_version_or_library(saved: Path, field: str, value: Any, traces: list[int]) -> None:
    header, descriptions = container.unpack(saved.read_bytes())
    plain = [{**d, "constants": {}} for d in descriptions]
    saved.write_bytes(container.pack({**header, field: value}, plain))
    with pytest.raises(st.ArtifactError) as caught:
        st.load(saved, Model())
    assert str(caught.value.path).startswith(field)
    region = st.load(saved, Model(), strict=False, frontend="trace")
    region(torch.ones(2, 4))
    assert traces


def test_what_is_no_file_of_ours(tmp_path: Path, traces: list[int]) -> None:
    (tmp_path / "file").write_bytes(b"PK\3\4 something else")
    for strict in (True, False):
        with pytest.raises(st.ArtifactError) as caught:
            st.load(tmp_path / "file", Model(), strict=strict)
        assert caught.value.path == "magic"
        with pytest.raises(FileNotFoundError):
            st.load(tmp_path / "none", Model(), strict=strict)
    with pytest.raises(st.OptionError):
        st.load(tmp_path / "file", Model(), no_such_option=1)


def asserted(x: torch.Tensor) -> torch.Tensor:
    if x.sum() < 0:
        raise ValueError("too small")
    return x * 2


def stepped(x: torch.Tensor) -> Any:
    """With hooks whose ids are others in each process, and numbers that are computed in the graph."""
    w = torch.nn.Parameter(torch.ones(3))
    w.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: None)
    optimizer = torch.optim.RAdam([w])
    optimizer.register_step_pre_hook(lambda *a: None)

    def step(x: torch.Tensor) -> torch.Tensor:
        (w * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return w.detach().clone()

    for _ in range(3):
        step(x)
    return step


def test_asserted_and_hooked(tmp_path: Path, traces: list[int]) -> None:
    x = torch.ones(3)
    for make in (lambda: asserted, lambda: stepped(x)):
        region, other = st.compile(make(), backend="eager", frontend="trace"), make()
        region(x)
        region.save(tmp_path / "a.st", x)
        traces.clear()
        torch.nn.Linear(1, 1).register_forward_hook(lambda *a: None)  # the next id
        assert torch.equal(st.load(tmp_path / "a.st", other, backend="eager", frontend="trace")(x), make()(x))
        assert not traces


def test_modules_of_torch_fx(tmp_path: Path) -> None:
    region = st.compile(torch.fx.symbolic_trace(torch.nn.Linear(3, 3)), backend="eager", frontend="trace")
    region(torch.ones(3))
    with pytest.raises(st.ArtifactError, match="nothing to save"):
        region.save(tmp_path / "a.st")


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(st.ArtifactError) as caught:
        st.compile(Model()).save(tmp_path / "x.st")
    assert "not called" in str(caught.value.got) and not [*tmp_path.iterdir()]


def test_arguments_that_nothing_serves(tmp_path: Path, traces: list[int]) -> None:
    region = st.compile(Model(), frontend="trace")
    region(torch.ones(2, 4))
    with pytest.raises(st.ArtifactError, match="serves this call"):
        region.save(tmp_path / "x.st", torch.ones(9, 4))
    assert not [*tmp_path.iterdir()]
    assert region.save(tmp_path / "x.st") == ()  # without arguments it is compared with the function


def test_a_file_that_cannot_be_written_leaves_the_old_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, region = saved.read_bytes(), st.compile(Model(), frontend="trace")
    region(torch.ones(2, 4))

    def no_space(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError):
        region.save(saved)
    assert saved.read_bytes() == before and [*saved.parent.iterdir()] == [saved]


# ---------------------------------------------------------------------------------------------- calls
def f(x: Any) -> Any:
    return (x * 3).sin()


def kept(function: Any, path: Path, *args: Any) -> None:
    region = st.compile(function, frontend="trace")
    region(*args)
    region.save(path, *args)


CALLS = {
    "dtype": lambda: torch.ones(3).double(),
    "inner dtype": lambda: TwoTensor(torch.ones(3).double(), torch.ones(3).double()),
    "dtype of one inner tensor": lambda: half_double(),
    "nested": lambda: TwoTensor(TwoTensor(torch.ones(3), torch.ones(3)), TwoTensor(torch.ones(3), torch.ones(3))),
    "dense": lambda: torch.ones(3),
    "meta": lambda: TwoTensor(torch.ones(3, device="meta"), torch.ones(3, device="meta")),
    "stride": lambda: TwoTensor(torch.ones(3, 2)[:, 0], torch.ones(3, 2)[:, 0]),
    "gradient": lambda: TwoTensor(torch.ones(3), torch.ones(3)).requires_grad_(),
}


def half_double() -> TwoTensor:
    found = TwoTensor(torch.ones(3), torch.ones(3))
    found.b = torch.ones(3).double()  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_compared_outside_and_inside(call: str, tmp_path: Path, traces: list[int]) -> None:
    """No bytes are read as those of another dtype."""
    wrapped = TwoTensor(torch.ones(3), torch.zeros(3))
    kept(f, tmp_path / "f.st", wrapped)
    traces.clear()
    region = st.load(tmp_path / "f.st", f, frontend="trace")
    for bound_first in (False, True):
        if bound_first:
            region.reset()
            region(wrapped)
        traces.clear()
        got, want = region(CALLS[call]()), f(CALLS[call]())
        assert traces, "another call was served"
        assert type(got) is type(want)
        for a, b in zip(leaves_of(got), leaves_of(want), strict=True):
            assert a.dtype == b.dtype and a.device == b.device and (a.is_meta or torch.equal(a, b))


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_where_it_was_saved_and_where_not(inside: bool, tmp_path: Path, traces: list[int]) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = torch.ones(3, 3)
    with torch.autocast("cpu", enabled=inside):
        kept(product, tmp_path / "p.st", x)
    traces.clear()
    region = st.load(tmp_path / "p.st", product, frontend="trace")
    with torch.autocast("cpu", enabled=not inside):
        assert region(x).dtype == product(x).dtype and traces
    traces.clear()
    with torch.autocast("cpu", enabled=inside):
        assert region(x).dtype == product(x).dtype and not traces


def test_attributes_of_tensors_are_compared(tmp_path: Path, traces: list[int]) -> None:
    def tagged(x: Any) -> Any:
        return x * x.tag

    def made(tag: float) -> torch.Tensor:
        x = torch.ones(3)
        x.tag = tag  # type: ignore[attr-defined]
        return x

    kept(tagged, tmp_path / "t.st", made(2.0))
    traces.clear()
    region = st.load(tmp_path / "t.st", tagged, frontend="trace")
    assert region(made(3.0)).tolist() == [3.0] * 3 and traces
    traces.clear()
    assert region(made(2.0)).tolist() == [2.0] * 3 and not traces


def test_sizes_that_are_symbols(tmp_path: Path, traces: list[int]) -> None:
    region = st.compile(f, dynamic=True, frontend="trace")
    region(torch.ones(5))
    region.save(tmp_path / "f.st", torch.ones(6))
    traces.clear()
    loaded = st.load(tmp_path / "f.st", f, dynamic=True, frontend="trace")
    for n in (3, 9, 4):
        assert loaded(torch.ones(n)).equal(f(torch.ones(n)))
    assert not traces


def test_a_description_that_is_json_alone_has_its_constants(traces: list[int]) -> None:
    import json

    def with_constant(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0])

    region = st.compile(with_constant, frontend="trace")
    region(torch.ones(2))
    text = json.dumps(region.specializations[0].describe().data)
    other = st.compile(with_constant, frontend="trace")
    other.bind(json.loads(text), torch.ones(2))
    assert other(torch.ones(2)).tolist() == [2.0, 3.0]


@pytest.mark.inductor
def test_inductor_compiles_what_was_saved(tmp_path: Path, traces: list[int]) -> None:
    model, x = Model().eval(), torch.ones(2, 4)
    region = st.compile(model, backend="inductor", frontend="trace")
    region(x).sum().backward()
    region.save(tmp_path / "m.st", x)
    traces.clear()
    loaded = st.load(tmp_path / "m.st", model, backend="inductor", frontend="trace")
    torch.testing.assert_close(loaded(x), model(x))
    loaded(x).sum().backward()
    assert not traces
    with pytest.raises(st.ArtifactError) as caught:
        st.load(tmp_path / "m.st", model)
    assert caught.value.path in ("options", "table")


def many(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(nn.functional.gelu(x).cos()) + nn.functional.dropout(x, 0.0) + torch.ones(3)


def hundredfold(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x * 100


PATCHES = [(torch, "relu"), (nn.functional, "gelu"), (torch.Tensor, "cos"), (nn.functional, "dropout")]


@pytest.mark.parametrize("owner, name", PATCHES, ids=lambda p: str(getattr(p, "__name__", p)))
def test_a_patched_function_of_torchs(
    owner: Any, name: str, tmp_path: Path, traces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(3)
    kept(many, tmp_path / "m.st", x)
    monkeypatch.setattr(owner, name, hundredfold)
    with pytest.raises(st.ArtifactError):
        st.load(tmp_path / "m.st", many)
    assert st.load(tmp_path / "m.st", many, strict=False, frontend="trace")(x).equal(many(x))


def test_a_flag_of_torchs_that_was_set(tmp_path: Path, traces: list[int]) -> None:
    kept(many, tmp_path / "m.st", torch.ones(3))
    region, before = st.load(tmp_path / "m.st", many, frontend="trace"), torch.get_default_dtype()
    traces.clear()
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.ones(3, dtype=torch.float32)
        assert region(x).dtype == many(x).dtype == torch.float64 and traces
    finally:
        torch.set_default_dtype(before)


class Quantised(st.WrapperTensor, default="weight"):
    codes: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def outer_metadata(cls, fields: Any) -> Any:
        return st.authoring.Outer(dtype=fields.scale.dtype)

    @classmethod
    def quantize(cls, x: torch.Tensor) -> Any:
        scale = x.detach().abs().amax(1, keepdim=True) / 127
        return cls((x.detach() / scale).round().to(torch.int8), scale)

    def dequantize(self) -> torch.Tensor:
        return self.codes * self.scale


def quantised() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Linear(4, 4)
    made.weight = nn.Parameter(Quantised.quantize(made.weight))
    return made


def test_a_class_with_a_default_for_weights(tmp_path: Path, traces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    region, x = st.compile(quantised(), frontend="trace"), torch.randn(2, 4)
    region(x).sum().backward()
    assert region.save(tmp_path / "f", x) == ()
    traces.clear()
    assert torch.equal(st.load(tmp_path / "f", quantised(), frontend="trace")(x), region(x)) and not traces
    monkeypatch.setattr(Quantised, "_wrapper_default", "dequantize")
    with pytest.raises(st.ArtifactError, match="_wrapper_default"):
        st.load(tmp_path / "f", quantised(), frontend="trace")
