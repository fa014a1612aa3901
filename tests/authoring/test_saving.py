"""pickle, torch.save, weights_only, deepcopy, Parameter, state_dict, swap_tensors."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from authored import (
    MAKERS,
    FunctionScaled,
    Grid,
    Pair,
    Rounding,
    Scaled,
    Shifted,
    TaggedPair,
    assert_equal,
    leaves,
    randn,
)
from torch import nn

import subclass_trace as st
from subclass_trace.authoring.saving import rebuild

every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def saved(value: Any, **how: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **how)


@every
def test_pickle_and_weights_only(make) -> None:
    for requires_grad in (False, True):
        x = make().requires_grad_(requires_grad)
        for y in (pickle.loads(pickle.dumps(x)), saved(x, weights_only=True), saved(x, weights_only=False)):
            assert_equal(y, x)
            assert all(a.data_ptr() != b.data_ptr() for a, b in zip(leaves(x), leaves(y), strict=True))


def test_deepcopy_keeps_ties_and_marks() -> None:
    p = nn.Parameter(Scaled(randn(2, 2), torch.tensor(2.0)))
    p.label = ["kept"]
    module = nn.Module()
    module.p = module.q = p
    other = copy.deepcopy(module)
    assert other.p is other.q is not p and isinstance(other.p, nn.Parameter) and type(other.p) is Scaled
    assert other.p.label == ["kept"] and other.p.label is not p.label
    shared = Pair(t := randn(2), t)
    both = copy.deepcopy([shared, t])
    assert both[0].a is both[0].b is both[1]
    with pytest.raises(st.UnsupportedError, match="a Pair with a grad_fn cannot be copied deeply"):
        copy.deepcopy(Pair(randn(2), randn(2)).requires_grad_() * 2)


@pytest.mark.long
def test_weights_only_in_a_fresh_process(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight = nn.Parameter(FunctionScaled(randn(4, 4), torch.tensor(2.0)))
    model[1].weight = nn.Parameter(Shifted(randn(4, 4), randn(4, 4), Grid(3, Rounding.DOWN)))
    x = randn(2, 4)
    torch.save({"model": model.state_dict(), "x": x, "y": model(x)}, tmp_path / "model.pt")
    code = f"""
import torch, authored
found = torch.load({str(tmp_path / "model.pt")!r}, weights_only=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
model.load_state_dict(found["model"], assign=True)
assert type(model[0].weight) is authored.FunctionScaled and model[1].weight.grid.rounding is authored.Rounding.DOWN
torch.testing.assert_close(model(found["x"]), found["y"], rtol=0, atol=0)
print("loaded")
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=_environment(), check=False
    )
    assert run.stdout.strip() == "loaded", run.stderr


def _environment() -> dict[str, str]:
    import os

    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_fields_that_come_and_go(monkeypatch) -> None:
    x = TaggedPair(randn(2), randn(2), 5)
    function, (cls, values, *rest) = x.__reduce_ex__(2)
    assert function is rebuild
    old = {k: v for k, v in values.items() if k != "note"}
    assert rebuild(cls, old, *rest).note == "none"  # a field that was added later has its default
    with pytest.raises(st.ProtocolError, match="TaggedPair was saved with other fields"):
        rebuild(cls, {**values, "gone": 1}, *rest)
    with pytest.raises(st.ProtocolError, match="TaggedPair was saved with other fields"):
        rebuild(cls, {k: v for k, v in values.items() if k != "a"}, *rest)
    with pytest.raises(st.ProtocolError, match="a wrapper of a class that is none"):
        rebuild(dict, values, *rest)


# ------------------------------------------------------------------------------------------------------------- modules


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_state_dict(swap, assign, monkeypatch) -> None:
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", swap, raising=False)
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        for make in (MAKERS["pair"], MAKERS["shifted"], MAKERS["scaled"], MAKERS["pair of scaled"]):
            source, target = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            source.weight, target.weight = nn.Parameter(make()), nn.Parameter(make())
            with torch.no_grad():
                for t in leaves(source.weight):
                    t.mul_(2) if t.dim() else None
            target.load_state_dict(saved(source.state_dict(), weights_only=True), assign=assign)
            assert isinstance(target.weight, nn.Parameter)
            assert_equal(target.weight, source.weight)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", ["pair", "scaled", "shifted", "halves", "function"])
def test_optimizer_step(name, optimizer) -> None:
    p = nn.Parameter(MAKERS[name]())
    p.grad = torch.ones_like(p) if name == "pair" else torch.ones(p.shape)
    dense = [t.clone() for t in ([p.a, p.b] if name == "pair" else [p.detach().dequantize()])]
    want = [nn.Parameter(t) for t in dense]
    for t in want:
        t.grad = torch.ones_like(t)
    for parameters in ([p], want):
        optimizer(parameters, lr=0.1).step()
    got = [p.a, p.b] if name == "pair" else [p.detach().dequantize()]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.detach())
    state = optimizer([p], lr=0.1)
    state.load_state_dict(saved(state.state_dict(), weights_only=True))


# --------------------------------------------------------------------------------------------------------- torch's hooks
def test_stable_hash() -> None:
    x = MAKERS["scaled pair"]()
    assert x._stable_hash_for_caching() == MAKERS["scaled pair"]()._stable_hash_for_caching()
    others = [
        Scaled(x.codes, x.scale, torch.float16),
        Scaled(x.codes.t(), x.scale),
        x.detach().requires_grad_(),
        Scaled(Pair(x.codes.a, x.codes.b.double()), x.scale),
        FunctionScaled(x.codes, x.scale),
        Scaled(x.codes.a, x.scale),
    ]
    hashes = {y._stable_hash_for_caching() for y in [x, *others]}
    assert len(hashes) == len(others) + 1
    code = "import authored; print(authored.MAKERS['shifted']()._stable_hash_for_caching())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=_environment())
    assert run.stdout.strip() == MAKERS["shifted"]()._stable_hash_for_caching(), run.stderr


def test_metadata_guard() -> None:
    nan = float("nan")
    assert Pair.__metadata_guard__((1, nan), (1, float("nan"))) and Pair.__metadata_guard__(None, None)
    assert not Pair.__metadata_guard__((1,), (2,)) and not Pair.__metadata_guard__((1,), None)
