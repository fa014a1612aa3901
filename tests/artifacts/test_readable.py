"""`save_source`: a Python file that serves what it was made of where this package cannot be imported; whatever differs, it refuses."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from readable_models import KINDS, SETTINGS, Net, Tied, loaded, pair, plain
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import subclass_trace as st
from subclass_trace import zoo

SCRIPT = Path(__file__).parent / "readable_models.py"


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each kind in a process that cannot import this package."""
    folder = tmp_path_factory.mktemp("readable")
    for how in ("make", "use"):
        done = subprocess.run([sys.executable, SCRIPT, how, folder], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    text = "".join((folder / f"{name}.py").read_text() for name in KINDS)
    assert "import subclass_trace" not in text and "from subclass_trace" not in text
    return json.loads((folder / "use.json").read_text())


@pytest.mark.parametrize("name", KINDS)
def test_it_is_eager_without_this_package(used: Any, name: str) -> None:
    assert all(used[name]["equal"]), used[name]["rows"]
    assert used[name]["refused"].startswith("no specialization serves this call\n  [0] expects: ")


# ---- what differs is refused
class Choice(nn.Module):
    """An attribute that is code."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.activation, self.factor = nn.Linear(8, 8), F.relu, lambda x: x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor(self.activation(self.layer(x)))


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + y * 3


def other_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def saved(function: Any, path: Path, *args: Any, **options: Any) -> Any:
    region = st.compile(function, frontend="trace", **options)
    region.warm_up(*args)
    region.save_source(path / "saved.py")
    return loaded(path / "saved.py")


def _changed(change: Callable[[Any], object]) -> Callable[[Any], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def during(model: Any) -> Iterator[None]:
        change(model)
        yield

    return during


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "a number": (Net, _changed(lambda m: setattr(m, "scale", 3.0))),
    "the type of a number": (Net, _changed(lambda m: setattr(m, "scale", 2))),
    "evaluation": (Net, _changed(lambda m: m.eval())),
    "an untied weight": (Tied, _changed(lambda m: setattr(m.down, "weight", nn.Parameter(torch.randn(8, 8))))),
    "a wrapper": (Tied, _changed(lambda m: setattr(m.up, "weight", nn.Parameter(pair(0, 8, 8).detach())))),
    "a frozen weight": (Tied, _changed(lambda m: m.requires_grad_(False))),
    "another dtype": (Tied, _changed(lambda m: m.double())),
    "another stride": (Tied, _changed(lambda m: setattr(m.up.weight, "data", m.up.weight.data.t()))),
    "a hook": (Net, _changed(lambda m: m.a.register_forward_hook(lambda m, a, out: out * 2))),
    "a function of torch's": (Choice, _changed(lambda m: setattr(m, "activation", F.gelu))),
    "a function": (Choice, _changed(lambda m: setattr(m, "factor", lambda x: x * 3))),
    "a method": (Net, _changed(lambda m: setattr(m, "forward", lambda x: x))),
    "another layer": (Choice, _changed(lambda m: setattr(m, "layer", nn.Identity()))),
    "no grad": (Net, lambda m: torch.no_grad()),
    "inference": (Net, lambda m: torch.inference_mode()),
    "autocast": (Net, lambda m: torch.autocast("cpu", dtype=torch.bfloat16)),
    "forward-mode derivatives": (Net, lambda m: torch.autograd.forward_ad.dual_level()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_refused(name: str, tmp_path: Path) -> None:
    make, during = CHANGES[name]
    model, x = make(), torch.randn(4, 8)
    file = saved(model, tmp_path, x)
    served = file.bind(model)
    served(x)
    with during(model), pytest.raises(file.NoSpecialization, match=r"^no specialization serves this call\n  \[0\] "):
        served(x)


CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "another size": lambda: (torch.randn(5, 8),),
    "another dtype": lambda: (torch.randn(4, 8).double(),),
    "another stride": lambda: (torch.randn(8, 4).t(),),
    "it requires grad": lambda: (torch.randn(4, 8).requires_grad_(),),
    "a wrapper": lambda: (pair(0, 4, 8).detach(),),
    "meta": lambda: (torch.empty(4, 8, device="meta"),),
    "no tensor": lambda: (3,),
    "conjugated": lambda: (torch.randn(4, 8, dtype=torch.complex64).conj(),),
    "a keyword": lambda: (),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_calls_are_refused(name: str, tmp_path: Path) -> None:
    model = Net()
    file = saved(model, tmp_path, torch.randn(4, 8))
    with pytest.raises(file.NoSpecialization):
        file.bind(model)(*CALLS[name]())


def test_globals_and_classes_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = (pair(0, 4, 8), pair(1, 8, 8))
    served, model = saved(plain, tmp_path, *args).bind(plain), Net()
    served(*args)
    monkeypatch.setitem(SETTINGS, "scale", 4.0)
    with pytest.raises(RuntimeError, match=r"SETTINGS\['scale'\] == 3.0"):
        served(*args)
    monkeypatch.setitem(SETTINGS, "scale", 0.0)
    served = saved(plain, tmp_path, *args).bind(plain)
    served(*args)
    monkeypatch.setitem(SETTINGS, "scale", -0.0)
    with pytest.raises(RuntimeError, match=r"SETTINGS\['scale'\] == 0.0"):
        served(*args)
    file = saved(model, tmp_path, torch.randn(4, 8))
    monkeypatch.setattr(Net, "forward", other_forward)
    with pytest.raises(file.NoSpecialization, match=r"Net\.forward has the same code"):
        file.bind(model)(torch.randn(4, 8))
    monkeypatch.setattr(torch, "__version__", "1.0")
    with pytest.raises(ImportError, match=r"for torch and Python \('2\."):
        loaded(tmp_path / "saved.py")


def test_arguments_by_keyword(tmp_path: Path) -> None:
    def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask

    region, x = st.compile(masked), torch.randn(3)
    region(x, mask=torch.ones(3))
    region.save_source(tmp_path / "saved.py")
    served = loaded(tmp_path / "saved.py").bind(masked)
    assert torch.equal(served(x, mask=x.clone()), x * x)

    def named(**kwargs: torch.Tensor) -> torch.Tensor:
        return kwargs["it's"] * 2

    region = st.compile(named)
    region(**{"it's": x})
    region.save_source(tmp_path / "saved.py")
    assert torch.equal(loaded(tmp_path / "saved.py").bind(named)(**{"it's": x}), x * 2)


def test_inputs_that_are_written(tmp_path: Path) -> None:
    x, y = torch.ones(8), torch.ones(8)
    served = saved(written, tmp_path, x, y).bind(written)
    assert served(x, y).tolist() == [5.0] * 8 and x.tolist() == [2.0] * 8
    both = torch.ones(12)
    for a, b in ((both[:8], both[4:]), (x, x), (x, x.view(8))):
        with pytest.raises(RuntimeError, match="no specialization serves this call"):
            served(a, b)


def test_backwards(tmp_path: Path) -> None:
    """Other layouts are fitted; others than those that came, and second derivatives, are refused."""
    x, w = torch.randn(4, 8).requires_grad_(), pair(1, 8, 8)
    file = saved(plain, tmp_path, x, w)
    served, eager = file.bind(plain), plain(x, w)
    gradient = TwoTensor(torch.randn(8, 4).t(), torch.randn(8, 4).t())
    found, wanted = (torch.autograd.grad(out, (x, w), gradient, retain_graph=True) for out in (served(x, w), eager))
    for a, b in zip(found, wanted, strict=True):
        assert type(a) is type(b)
        torch.testing.assert_close(a.a if type(a) is TwoTensor else a, b.a if type(b) is TwoTensor else b)
    out = served(x, w)
    with pytest.raises(file.NoSpecialization, match="one to differentiate"):
        torch.autograd.grad(out, x, gradient, create_graph=True)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward(gradient)


def test_random_numbers_are_eagers(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    served = saved(model, tmp_path, x).bind(model)
    torch.manual_seed(1)
    found = served(x)
    torch.manual_seed(1)
    torch.testing.assert_close(found, model(x))


def test_quantized_weights(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model, x = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).eval(), torch.randn(4, 32)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with torch.no_grad():
        served = saved(model, tmp_path, x).bind(model)
        assert torch.equal(served(x), model(x))


# ---- what cannot be written
class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2


def branched(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def under_autocast() -> Any:
    region = st.compile(plain, frontend="trace")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        region.warm_up(torch.ones(8, 8), torch.ones(8, 8))
    return region


def of(function: Any, *args: Any) -> Callable[[], Any]:
    def made() -> Any:
        region = st.compile(function, frontend="trace")
        region.warm_up(*args)
        return region

    return made


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "no call": (lambda: st.compile(plain, frontend="trace"), "there is nothing to write", "specializations"),
    "effects": (of(Counts(), torch.ones(2)), "effects on Python state", "specializations[0]: the plan"),
    "branches": (of(branched, torch.ones(2)), "cannot be written as source", "specializations[0]: "),
    "a wrapper of ours": (
        of(plain, zoo.TwoTensor(torch.ones(8, 8), torch.ones(8, 8)), torch.ones(8, 8)),
        "a class that is not found without this process",
        "specializations[0]: args[0]",
    ),
    "autocast": (under_autocast, "autocast around the call", "specializations[0]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    make, what, path = REFUSED[name]
    region = make()
    with pytest.raises(st.ExportError) as caught:
        region.save_source(tmp_path / "saved.py")
    assert what in str(caught.value) and str(caught.value.path).startswith(path), caught.value
    assert not (tmp_path / "saved.py").exists()
