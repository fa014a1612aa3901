"""`st.freeze`: a frozen region beside the same region that is not, and the memory of its constants.

Weights are int8 (torchao), for weights alone and with dynamic activations; batch norms of inference
behind convolutions and linear layers that nothing else follows, with inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import subclass_trace as st
from subclass_trace.subclass.flatten import flatten

from .harness import interleaved
from .results import Figure, Goal
from .subjects import WrongValues

_TIME, _BYTES = "time / not frozen", "bytes of constants / weights that they are made of"


def _int8(config: str, size: int) -> tuple[nn.Module, torch.Tensor]:
    from torchao import quantization

    model = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))
    quantization.quantize_(model, getattr(quantization, config)(version=2))
    return model.eval(), torch.randn(8, size)


def _norms(linear: bool) -> tuple[nn.Module, torch.Tensor]:
    pair = (nn.Linear, nn.BatchNorm1d, 64) if linear else (nn.Conv2d, nn.BatchNorm2d, 32)
    layer, norm, n = pair
    sizes = (n, n) if linear else (n, n, 1)
    model = nn.Sequential(*(m for _ in range(6) for m in (layer(*sizes), norm(n)))).eval()
    for t in (*model.parameters(), *model.buffers()):
        if t.is_floating_point() and t.dim() == 1:
            nn.init.uniform_(t, 0.5, 1.5)
    return model, torch.randn(512, n) if linear else torch.randn(4, n, 28, 28)


def subjects(quick: bool) -> dict[str, tuple[Callable[[], Any], str, Goal]]:
    """Name -> how it is made, its back end, and the goal of its time."""
    size = 64 if quick else 512
    made: dict[str, tuple[Callable[[], Any], str, Goal]] = {
        "int8 weights": (lambda: _int8("Int8WeightOnlyConfig", size), "eager", Goal("<=", 1.0)),
        "int8 weights and activations": (
            lambda: _int8("Int8DynamicActivationInt8WeightConfig", size),
            "eager",
            Goal("<=", 1.0),
        ),
    }
    if not quick:
        made["linear layers with batch norms, inductor"] = (
            lambda: _norms(linear=True),
            "inductor",
            Goal("<=", 1 / 1.1),
        )
        made["convolutions with batch norms, inductor"] = (
            lambda: _norms(linear=False),
            "inductor",
            Goal("<=", 1 / 1.1),
        )
    return made


def verify(quick: bool) -> None:
    """Do frozen regions give eager's values?"""
    for name, (make, backend, _) in subjects(quick).items():
        _variants(name, make, backend)


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    for name, (make, backend, goal) in subjects(quick).items():
        say(f"freezing, {name}")
        variants, x = _variants(name, make, backend)
        with torch.no_grad():
            calls = {way: _call(function, x) for way, function in variants.items()}
            times = interleaved(calls, rounds=5 if quick else 20)
        ratios = times.ratios("not frozen")
        yield Figure("freezing", _TIME, name, ratios.pop("ours"), goal, ratios, times.medians())
        kept, folded = (_bytes(variants[way]) for way in ("ours", "fold"))
        yield Figure("freezing", _BYTES, name, kept, Goal("<=", 1.0), {"fold": folded})


def _variants(name: str, make: Callable[[], Any], backend: str) -> tuple[dict[str, Any], Any]:
    torch.manual_seed(0)
    model, x = make()
    region = st.compile(model, backend=backend)
    made = {"not frozen": region, "ours": st.freeze(region), "fold": st.freeze(region, mode="fold")}
    with torch.no_grad():
        expected = model(x)
        for way, function in made.items():
            if not torch.allclose(function(x), expected, rtol=1e-3, atol=1e-4):
                raise WrongValues(f"{name}, {way}: other values than in eager mode")
    return made, x


def _call(function: Callable[[Any], Any], x: torch.Tensor) -> Callable[[], Any]:
    return lambda: function(x)


def _bytes(frozen: Any) -> float:
    """Views of weights are memory of these."""
    (entry,) = frozen.specializations
    program = entry.program.frozen
    weights = [t for w in program.weights() for t in flatten(w)[0]]
    after, before = (
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        for tensors in (program.constants, weights)
    )
    return sum(after.values()) / sum(before.values())
