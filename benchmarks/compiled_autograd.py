"""Compiled autograd: time and memory of a backward from its tape, beside the eager engine and
torch's own.

The subject is a chain of tiny layers, where overheads are all there is. A sample is the mean over
fresh forwards, of which only the backwards are timed, in thread CPU time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from subclass_trace import compiled_autograd

from .harness import Timings, memory_events, quiet
from .results import Figure, Goal
from .subjects import WrongValues

Around = Callable[[], Any]
_TIME, _CAPTURE, _PEAK = (
    "backward time / eager engine",
    "capture time / torch's",
    "peak of a backward / eager engine",
)
_HALF = "backward time / torch's compiled autograd"


def _theirs() -> Any:
    """Torch's compiled autograd with the compiler that does nothing."""
    from torch._dynamo.compiled_autograd import _enable

    return _enable(lambda gm: gm, dynamic=False)


def _theirs_with_dynamo() -> Any:
    """Torch's compiled autograd as it is meant to be used, with kernels of eager mode."""
    from torch._dynamo.compiled_autograd import _enable

    return _enable(torch.compile(backend="eager"), dynamic=False)


OURS: dict[str, Around] = {
    "tape": compiled_autograd,
    "segments": lambda: compiled_autograd(backend="eager"),
}


class Chain:
    """Linear and tanh, ``layers`` times."""

    def __init__(self, layers: int, width: int = 8, batch: int = 8) -> None:
        pairs = (m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.Tanh()))
        self.model, self.x = torch.nn.Sequential(*pairs), torch.randn(batch, width)
        self.parameters = list(self.model.parameters())

    def loss(self) -> torch.Tensor:
        """A forward, with gradients of earlier steps gone."""
        for p in self.parameters:
            p.grad = None
        return self.model(self.x).sum()  # type: ignore[no-any-return]

    def gradients(self, around: Around) -> list[torch.Tensor]:
        """Those of one step."""
        loss = self.loss()
        with around():
            loss.backward()
        return [p.grad for p in self.parameters if p.grad is not None]


def verify(quick: bool) -> None:
    """Do all variants give eager's gradients?"""
    chain = Chain(4)
    expected = [g.clone() for g in chain.gradients(contextlib.nullcontext)]
    for name, around in {**OURS, "torch": _theirs}.items():
        compiled_autograd.reset()
        for _ in range(3):
            for a, b in zip(chain.gradients(around), expected, strict=True):
                if not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
                    raise WrongValues(f"{name} gives other gradients than the eager engine")


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    verify(quick)
    chain = Chain(12)
    compiled_autograd.reset()
    say("compiled autograd, steady state")
    rounds = 5 if quick else 30
    # Torch's tapes and ours would evict each other: each is timed against the eager engine, in
    # turn.
    times = steady(chain, {"eager": contextlib.nullcontext, **OURS}, rounds)
    for name, bound in (("tape", 2.0), ("segments", 1.5)):
        case = f"{name}, {len(compiled_autograd.tapes[-1].nodes)} nodes"
        yield Figure(
            "compiled_autograd",
            _TIME,
            case,
            times.ratio(name, "eager"),
            Goal("<=", bound),
            {},
            times.medians(),
        )
    others = {}
    for name, around in {"no compiler": _theirs, "Dynamo": _theirs_with_dynamo}.items():
        compiled_autograd.reset()
        other = steady(chain, {"eager": contextlib.nullcontext, "torch": around}, rounds)
        others[name] = other.ratio("torch", "eager")
        yield Figure(
            "compiled_autograd", _TIME, f"torch's, {name}", others[name], None, {}, other.medians()
        )
    for ours, theirs in (("tape", "no compiler"), ("segments", "Dynamo")):
        ratio = times.ratio(ours, "eager") / others[theirs]
        yield Figure(
            "compiled_autograd", _HALF, f"{ours} / {theirs}", ratio, Goal("<=", 0.5), {}, {}
        )
    say("compiled autograd, capture")
    captured = captures(
        Chain(12 if quick else 60), {"tape": compiled_autograd, "torch": _theirs}, 2 if quick else 5
    )
    ratio = captured.ratio("tape", "torch")
    yield Figure(
        "compiled_autograd",
        _CAPTURE,
        "chain of layers",
        ratio,
        Goal("<=", 0.2),
        {},
        captured.medians(),
    )
    say("compiled autograd, memory")
    for kind, bound in (("plain", 1.02), ("offload", 1.05), ("checkpoint", 1.15)):
        peaks = {
            name: float(peak_of(kind, around))
            for name, around in {"eager": contextlib.nullcontext, **OURS}.items()
        }
        for name in OURS:
            ratio, goal = (
                peaks[name] / peaks["eager"],
                Goal("<=", bound) if name == "tape" else None,
            )
            yield Figure("compiled_autograd", _PEAK, f"{kind}, {name}", ratio, goal, {}, peaks)
    compiled_autograd.reset()


# ---- time
def steady(chain: Chain, variants: Mapping[str, Around], rounds: int, calls: int = 20) -> Timings:
    """Backwards in turn, after some untimed ones."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    with quiet():
        for number in range(rounds + 1):
            for name, around in variants.items():
                spent = 0
                for k in range(2 * calls):
                    loss = chain.loss()
                    start = time.thread_time_ns()
                    with around():
                        loss.backward()
                    if k >= calls:
                        spent += time.thread_time_ns() - start
                if number:
                    samples[name].append(spent / calls / 1e3)
    return Timings(samples)


def captures(chain: Chain, variants: Mapping[str, Around], rounds: int) -> Timings:
    """First backwards, each with an empty cache."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, around in variants.items():
            compiled_autograd.reset()
            loss = chain.loss()
            start = time.thread_time_ns()
            with around():
                loss.backward()
            if number:
                samples[name].append((time.thread_time_ns() - start) / 1e3)
    return Timings(samples)


# ---- memory
WIDTH, BATCH, LAYERS = 64, 512, 12


class Offload(saved_tensors_hooks):
    """Keeps activations elsewhere (here: as numpy arrays, which are no tensor memory); parameters
    stay."""

    def __init__(self) -> None:
        def pack(t: torch.Tensor) -> Any:
            return t.detach().numpy().copy() if t.numel() == BATCH * WIDTH else t

        super().__init__(pack, lambda x: x if isinstance(x, torch.Tensor) else torch.tensor(x))


def deep_forward(layers: Sequence[torch.nn.Module], kind: str) -> torch.Tensor:
    """A forward whose activations are "plain", offloaded ("offload") or recomputed
    ("checkpoint")."""
    x = torch.ones(BATCH, WIDTH)
    with Offload() if kind == "offload" else contextlib.nullcontext():
        for k in range(0, LAYERS, 3):
            part = torch.nn.Sequential(*layers[k : k + 3])
            x = checkpoint(part, x, use_reentrant=False) if kind == "checkpoint" else part(x)
        return x.sum()


def peak_of(kind: str, around: Around) -> int:
    """Peak bytes of a backward in the steady state, above what there is before it."""
    layers = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)
    ]
    found = 0
    for _ in range(3):  # the first ones capture and trace
        for layer in layers:
            layer.zero_grad()
        loss = deep_forward(layers, kind)
        with around():
            found = peak(loss.backward)
    return found


def peak(function: Callable[[], Any]) -> int:
    """The highest number of bytes above what there was before."""
    now = high = 0
    for n in memory_events(function):
        now += n
        high = max(high, now)
    return high
