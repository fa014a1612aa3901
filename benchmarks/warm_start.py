"""The first call of a process, with and without what another process has saved: ``st.compile(f)``
beside ``st.load(path, f)``, ``cache=True`` and ``cache="graph"``.

Each measurement is a process of its own, which imports torch and this package, runs the subject
once in eager mode (a kernel's first run costs as much as a bind), and then times loading and the
first forward and backward, or the whole step, in CPU time. Cold and bound processes take turns.
What a trace imports on top counts, as it does for users.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .results import Figure, Goal
from .subjects import WrongValues, transformer

_WHAT = {
    "bound": "cold first call / bound first call",
    "cache": "cold first call / found in the cache",
    "graph": "cold first call / partition found by its graph",
}
_GOALS = {
    "6 layers, TwoTensor": Goal(">=", 8.0),
    "2 layers, llama": Goal(">=", 8.0),
    "step with AdamW": Goal(">=", 20.0),
}


def _of_layers(layers: int) -> tuple[Any, tuple[Any, ...]]:
    subject = transformer("TwoTensor", layers=layers)
    return subject.function, subject.inputs


def _llama(layers: int) -> tuple[Any, tuple[Any, ...]]:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "vocab_size": 64,
    }
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    )
    tokens = torch.arange(32).view(2, 16)

    def loss(tokens: torch.Tensor) -> Any:
        return model(tokens, labels=tokens, use_cache=False).loss

    return loss, (tokens,)


def _step(layers: int) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    rows = [m for _ in range(layers) for m in (torch.nn.Linear(16, 16), torch.nn.GELU())]
    model = torch.nn.Sequential(*rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for p in model.parameters():  # as after a checkpoint: its state is there
        p.grad = torch.ones_like(p)
    optimizer.step()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, (torch.randn(4, 16),)


SUBJECTS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "2 layers, TwoTensor": lambda: _of_layers(2),
    "6 layers, TwoTensor": lambda: _of_layers(6),
    "2 layers, llama": lambda: _llama(2),
    "step with AdamW": lambda: _step(2),
}


def subjects(quick: bool) -> list[str]:
    """Names of what is measured."""
    return [*SUBJECTS][:1] if quick else [*SUBJECTS][1:]


def verify(quick: bool) -> None:
    """Does what was saved give the values of a trace?"""
    for name in subjects(quick):
        with tempfile.TemporaryDirectory() as folder:
            first = _process("save", name, folder)[1]
            for how in (*_WHAT, *_WHAT):  # the second call finds what the first one keeps
                if (second := _process(how, name, folder)[1]) != first:
                    raise WrongValues(f"{name}: {second} from {how}, {first} before")


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    for name in subjects(quick):
        with tempfile.TemporaryDirectory() as folder:
            say(f"warm start, {name}")
            for how in ("save", "cache", "graph"):
                _process(how, name, folder)
            times: dict[str, list[float]] = {how: [] for how in ("cold", *_WHAT)}
            for _ in range(1 if quick else 5):
                for how, found in times.items():
                    found.append(_process(how, name, folder)[0])
            size = float((Path(folder) / "saved.st").stat().st_size)
        raw = {how: statistics.median(found) for how, found in times.items()} | {
            "bytes of the file": size
        }
        for how, what in _WHAT.items():
            value = statistics.median(a / b for a, b in zip(times["cold"], times[how], strict=True))
            goal = _GOALS.get(name) if how == "bound" else None
            yield Figure("warm_start", what, name, value, goal, raw=raw if how == "bound" else {})


def _process(how: str, name: str, folder: str) -> tuple[float, str]:
    """CPU microseconds of the first call in a process of its own, and its result."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, how, name, folder]
    env = {**os.environ, "SUBCLASS_TRACE_CACHE_DIR": str(Path(folder) / "cache")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env=env, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    seconds, value = done.stdout.split("\n")[-2].split(" ", 1)
    return float(seconds), value


def _child(how: str, name: str, folder: str) -> None:
    import subclass_trace as st

    torch.set_num_threads(1)
    path = Path(folder) / "saved.st"
    makes: dict[str, Callable[[Any], Any]] = {
        "save": lambda f: st.compile(f, frontend="trace"),
        "cold": lambda f: st.compile(f, frontend="trace"),
        "bound": lambda f: st.load(path, f, frontend="trace"),
        "cache": lambda f: st.compile(f, frontend="trace", cache=True),
        "graph": lambda f: st.compile(f, frontend="trace", cache="graph"),
        "eager": lambda f: f,
    }
    st.compile  # noqa: B018  # its import is no part of a first call
    for made in ("eager", how):
        function, args = SUBJECTS[name]()
        torch.manual_seed(0)
        start = time.process_time_ns()
        region = makes[made](function)
        out = region(*args)
        if out.requires_grad:
            out.sum().backward()
        spent = time.process_time_ns() - start
    if how == "save":
        for _ in range(2):  # what is there after the first step
            region(*args)
        region.save(path)
    print(spent / 1e3, [leaf.tolist() for leaf in _leaves(out)])


def _leaves(out: Any) -> list[torch.Tensor]:
    from subclass_trace.subclass.flatten import leaves_of

    return [leaf.detach().double() for leaf in leaves_of(out)]


if __name__ == "__main__":
    _child(*sys.argv[1:])
