"""Programs as users type them: first call and steady state of the whole step, against eager mode
and ``torch.compile``.

A program is compiled in one place (a model, an optimizer's step, a training step) and measured as
it is run: with what stays eager around that place. On a GPU (``--gpu``) both stacks run inductor's
kernels, and time is of the wall.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

import subclass_trace as st

from . import stacks
from .harness import interleaved, once
from .results import Figure, Goal
from .subjects import WrongValues

Wrap = Callable[[Any], Any]
Step = Callable[[], Any]
Program = Callable[[Wrap, str], Step]
_FIRST, _STEADY = "time of the first call / torch.compile", "time of a step / eager mode"
_PEAK = "peak of a step / eager mode"
_COUNTS = "specializations - graphs of torch.compile"


def _training(model: nn.Module, call: Any, arguments: dict[str, Any] | tuple[Any, ...]) -> Step:
    """Forward and backward in eager around what is compiled, and AdamW."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> torch.Tensor:
        out = call(**arguments) if isinstance(arguments, dict) else call(*arguments)
        loss: torch.Tensor = out.loss if hasattr(out, "loss") else out.float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _llama(device: str, **more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, **more)
    ).to(device)


def llama_training(wrap: Wrap, device: str) -> Step:
    """``model(input_ids, labels=...)`` of Transformers."""
    model, ids = _llama(device), torch.arange(64, device=device).view(2, 32)
    return _training(model, wrap(model), {"input_ids": ids, "labels": ids})


def llama_decoding(wrap: Wrap, device: str) -> Step:
    """One token with a static cache."""
    from transformers import StaticCache

    model = _llama(device).eval()
    cache = StaticCache(config=model.config, max_cache_len=32)
    call, token = wrap(model), torch.ones(1, 1, dtype=torch.long, device=device)

    @torch.no_grad()
    def step() -> torch.Tensor:
        cache.reset()
        out = call(
            input_ids=token, past_key_values=cache, cache_position=torch.tensor([3], device=device)
        )
        return out.logits  # type: ignore[no-any-return]

    return step


def whole_step(wrap: Wrap, device: str) -> Step:
    """Forward, backward and AdamW in one region."""
    model = _llama(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.arange(64, device=device).view(2, 32)

    def train(ids: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()  # type: ignore[no-any-return]

    call = wrap(train)
    return lambda: call(ids)


def mlp_training(wrap: Wrap, device: str) -> Step:
    """Three layers, a small batch: bound by overhead."""
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    return _training(model, wrap(model), (torch.randn(16, 64, device=device),))


def convolutions(wrap: Wrap, device: str) -> Step:
    """Convolutions with batch norm, whose statistics are written in place."""
    layers = [
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(6)
    ]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.Flatten(), nn.LazyLinear(4)).to(device)
    x = torch.randn(2, 3, 16, 16, device=device)
    model(x)
    return _training(model, wrap(model), (x,))


class _Cached(nn.Module):
    """Attention over a cache in buffers, one position a call."""

    def __init__(self, layers: int = 4, width: int = 64) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.register_buffer("keys", torch.zeros(layers, 1, 4, 32, width // 4))
        self.register_buffer("values", torch.zeros(layers, 1, 4, 32, width // 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.qkv):
            q, k, v = (t.view(1, 1, 4, -1).transpose(1, 2) for t in layer(x).chunk(3, -1))
            self.keys[number][:, :, at] = k
            self.values[number][:, :, at] = v
            x = x + F.scaled_dot_product_attention(
                q, self.keys[number], self.values[number]
            ).transpose(1, 2).flatten(2)
        return x


def cache_in_buffers(wrap: Wrap, device: str) -> Step:
    """A token of a decoder that writes its cache in place."""
    model = _Cached().to(device)
    call, x, at = (
        wrap(model),
        torch.randn(1, 1, 64, device=device),
        torch.tensor([3], device=device),
    )
    return torch.no_grad()(lambda: call(x, at))


class _Experts(nn.Module):
    """A mixture of experts that adds up what each gives in place."""

    def __init__(self, count: int = 4, width: int = 64) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out += weights[:, number, None] * expert(x).relu()
        return out


def experts(wrap: Wrap, device: str) -> Step:
    """Two layers of `_Experts`, trained."""
    model = nn.Sequential(_Experts(), _Experts()).to(device)
    return _training(model, wrap(model), (torch.randn(16, 64, device=device),))


def recurrent(wrap: Wrap, device: str) -> Step:
    """``nn.LSTM``, trained."""
    model = nn.LSTM(32, 32, 2, batch_first=True).to(device)
    call, x = wrap(model), torch.randn(4, 16, 32, device=device)
    return _training(model, lambda x: call(x)[0], (x,))


class _Block(nn.Module):
    """Attention and a gated MLP, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, 8 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (16, -1)).transpose(1, 2)
            for t in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        )
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def blocks(wrap: Wrap, device: str) -> Step:
    """Eight layers in bf16; of width 1,024 on a GPU, where kernels and memory count."""
    width, shape = (1024, (8, 1024)) if device == "cuda" else (64, (1, 16))
    model = nn.Sequential(*[_Block(width) for _ in range(8)]).to(device, torch.bfloat16)
    return _training(
        model, wrap(model), (torch.randn(*shape, width, device=device, dtype=torch.bfloat16),)
    )


def adapters_on_int8(wrap: Wrap, device: str) -> Step:
    """A LLaMA whose weights torchao has quantised, with trainable norms and embedding."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = _llama(device)
    quantize_(model, Int8WeightOnlyConfig())
    ids = torch.arange(64, device=device).view(2, 32)
    return _training(model, wrap(model), {"input_ids": ids, "labels": ids})


PROGRAMS: dict[str, Program] = {
    "MLP, training": mlp_training,
    "LLaMA, training": llama_training,
    "LLaMA, a token with a static cache": llama_decoding,
    "LLaMA, whole step with AdamW": whole_step,
    "LLaMA in int8, training": adapters_on_int8,
    "convolutions with batch norm, training": convolutions,
    "attention over a cache in buffers": cache_in_buffers,
    "mixture of experts, training": experts,
    "LSTM, training": recurrent,
    "eight blocks in bf16, training": blocks,
}
#: of these the first call was slow once
_FAST_FIRST = {
    "convolutions with batch norm, training",
    "attention over a cache in buffers",
    "mixture of experts, training",
}


def _stacks(device: str, made: list[Any]) -> dict[str, Wrap]:
    def ours(f: Any) -> Any:
        made.append(st.compile(f, backend="inductor" if device == "cuda" else "eager"))
        return made[-1]

    backend = "inductor" if device == "cuda" else "aot_eager"
    return {
        "eager": lambda f: f,
        "ours": ours,
        "torch.compile": lambda f: torch.compile(f, backend=backend),
    }


def _start(program: Program, wrap: Wrap, device: str) -> Step:
    torch.manual_seed(0)
    return program(wrap, device)


def check(name: str, device: str = "cpu") -> int:
    """Do three steps give eager's values? Also, how many more specializations than torch.compile
    has graphs there are."""
    made: list[Any] = []
    found: dict[str, list[torch.Tensor]] = {}
    stacks.forget()
    counters.clear()
    for stack, wrap in _stacks(device, made).items():
        step = _start(PROGRAMS[name], wrap, device)
        found[stack] = [step() for _ in range(3)]
    for value, expected in zip(found["ours"], found["eager"], strict=True):
        try:
            near = 1e-2 if device == "cuda" else 1e-3  # fused kernels round elsewhere
            torch.testing.assert_close(value, expected, rtol=near, atol=near)
        except AssertionError as error:
            raise WrongValues(f"{name}: {error}") from error
    return sum(len(r.specializations) for r in made) - counters["stats"]["unique_graphs"]


def run(quick: bool, say: Callable[[str], None], device: str = "cpu") -> Iterator[Figure]:
    """Measure."""
    where = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""
    ratios: dict[str, list[float]] = {_FIRST: [], _STEADY: []}
    for name in [*PROGRAMS][:1] if quick else PROGRAMS:
        say(f"programs, {name}")
        more = check(name, device)  # what happens once per process has happened then
        yield Figure("programs", _COUNTS, name + where, more, Goal("<=", 0))
        # a first call by inductor takes many seconds, even where its kernels are in its cache
        for figure in _figures(name, device, 1 if quick or device == "cuda" else 3):
            ratios.setdefault(figure.what, []).append(figure.ours)
            yield figure
    if not quick:
        yield Figure(
            "programs", _FIRST, "median" + where, statistics.median(ratios[_FIRST]), Goal("<=", 0.2)
        )
        yield Figure(
            "programs",
            _STEADY,
            "median" + where,
            statistics.median(ratios[_STEADY]),
            Goal("<=", 0.9),
        )


def _figures(name: str, device: str, rounds: int) -> Iterator[Figure]:
    program, wraps = PROGRAMS[name], _stacks(device, [])
    where = f", {torch.cuda.get_device_name()}" if device == "cuda" else ""

    def first(wrap: Wrap) -> Callable[[], Step]:
        return lambda: _start(program, wrap, device)

    compilers = {stack: first(wrap) for stack, wrap in wraps.items() if stack != "eager"}
    times = once(compilers, rounds=rounds, fresh=stacks.forget)
    goal = Goal("<=", 0.2) if name in _FAST_FIRST else None
    yield Figure(
        "programs",
        _FIRST,
        name + where,
        times.ratio("ours", "torch.compile"),
        goal,
        raw=times.medians(),
    )
    steps = {stack: _start(program, wrap, device) for stack, wrap in wraps.items()}
    if device == "cuda":
        steps = {stack: _synchronized(step) for stack, step in steps.items()}
        peaks = {stack: _peak(step) for stack, step in steps.items()}
        others = {"torch.compile": peaks["torch.compile"] / peaks["eager"]}
        yield Figure(
            "programs", _PEAK, name + where, peaks["ours"] / peaks["eager"], None, others, peaks
        )
    clock = time.perf_counter_ns if device == "cuda" else time.thread_time_ns
    times = interleaved(steps, rounds=7 * rounds, warm_up=5, clock=clock)
    others = {"torch.compile": times.ratio("torch.compile", "eager")}
    yield Figure(
        "programs",
        _STEADY,
        name + where,
        times.ratio("ours", "eager"),
        Goal("<=", 1.15),
        others,
        times.medians(),
    )


def _peak(step: Step) -> int:
    """Bytes on the GPU beyond those before a step."""
    for _ in range(2):
        step()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated() - before


def _synchronized(step: Step) -> Step:
    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run
