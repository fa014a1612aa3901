"""Steps of torchtitan's shape: forward, loss and all gradients, as its graph trainer captures them.

The base of the first call and of a step is what that trainer does at best: ``make_fx`` over the
same step of a model whose wrappers were unwrapped by hand, and its graph run as it is, without
guards. Beside it, a model in SimpleFSDP's way on two ranks of gloo against eager mode.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import subclass_trace as st

from .harness import interleaved, once
from .results import Figure, Goal
from .subjects import WrongValues, ranks

Tensor = torch.Tensor
Step = Callable[[], Any]
_FIRST, _STEADY = "first call / make_fx by hand", "time of a step / make_fx by hand"
_SHARDED = "time of a step on 2 ranks / eager mode"
_HEADS, _GROUPS, _WORDS, _LENGTH = 8, 4, 512, 64


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding, complex, as LLaMA has it; ``x``: (batch, length, heads, width)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[: x.shape[1], None]).flatten(3).type_as(x)


class Attention(nn.Module):
    """Grouped queries, rotary embedding; written out, as DTensor has no rule for the fused one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width // _HEADS
        linear = functools.partial(nn.Linear, bias=False)
        self.wq, self.wo = linear(width, width), linear(width, width)
        self.wk, self.wv = (linear(width, _GROUPS * self.width) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """``x``: (batch, length, width)."""
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, self.width) for layer in (self.wq, self.wk, self.wv)
        )
        q, k = _rotated(q, angles).transpose(1, 2), _rotated(k, angles).transpose(1, 2)
        shape = (batch, _GROUPS, _HEADS // _GROUPS, length, self.width)
        k, v = (
            t[:, :, None].expand(shape).reshape(batch, _HEADS, length, -1)
            for t in (k, v.transpose(1, 2))
        )
        seen = torch.softmax(q @ k.transpose(2, 3) * self.width**-0.5, -1) @ v
        return self.wo(seen.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class Gated(nn.Module):
    """A gated linear unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, length, width)."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Two of four experts for each token, all in one product; a buffer counts their tokens."""

    tokens: Tensor

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.count, self.gate = count, nn.Linear(width, count, bias=False)
        self.w1, self.w2, self.w3 = (
            nn.Parameter(torch.randn(count, width, width) / width**0.5) for _ in range(3)
        )
        self.register_buffer("tokens", torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (batch, length, width)."""
        rows = x.flatten(0, 1)
        weights, chosen = torch.topk(torch.sigmoid(self.gate(rows).float()), 2, dim=1)
        taken = F.one_hot(chosen, self.count).type_as(x)  # (rows, 2, experts)
        with torch.no_grad():
            self.tokens.add_(taken.sum((0, 1)))
        share = (taken * weights[..., None].type_as(x)).sum(1).t()[:, :, None]
        per_expert = rows.expand(self.count, *rows.shape)
        hidden = F.silu(torch.bmm(per_expert, self.w1)) * torch.bmm(per_expert, self.w3)
        return (torch.bmm(hidden, self.w2) * share).sum(0).view_as(x)


class Block(nn.Module):
    """Attention, and a gated unit or experts, each behind a norm."""

    def __init__(self, width: int, experts: bool) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.rest = Experts(width) if experts else Gated(width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """``x``: (batch, length, width)."""
        x = x + self.attention(self.norms[0](x), angles)
        return x + self.rest(self.norms[1](x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A decoder with tied embeddings; ``experts``: in every other layer."""

    angles: Tensor

    def __init__(self, layers: int, width: int, experts: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, width)
        self.layers = nn.ModuleDict(
            {str(k): Block(width, experts and k % 2 == 1) for k in range(layers)}
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, _WORDS, bias=False)
        self.tie()
        each = 10000.0 ** -torch.arange(0, 1, 2 * _HEADS / width)
        turns = torch.outer(torch.arange(float(_LENGTH)), each)
        self.register_buffer("angles", torch.polar(torch.ones_like(turns), turns), persistent=False)

    def tie(self) -> None:
        """One weight for the embedding and the head."""
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """``words``: (batch, length)."""
        x = self.words(words)
        for layer in self.layers.values():
            x = layer(x, self.angles)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def _decoder(quick: bool, experts: bool) -> Decoder:
    torch.manual_seed(0)
    return Decoder(2, 64, experts) if quick else Decoder(6, 256, experts)


def _gradients(model: Callable[..., Tensor], parameters: list[Any], words: Tensor) -> Any:
    loss = F.cross_entropy(model(words)[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())
    return (loss, *torch.autograd.grad(loss, parameters))


def _by_hand(model: Decoder, words: Tensor) -> Step:
    """The graph of the step of a model without wrappers."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [name for name, _ in model.named_parameters()]

    def step(state: dict[str, Tensor], words: Tensor) -> Any:
        def call(words: Tensor) -> Tensor:
            found: Tensor = torch.func.functional_call(model, state, (words,), tie_weights=True)
            return found

        return _gradients(call, [state[name] for name in names], words)

    graph = make_fx(step, tracing_mode="fake")(state, words)
    return lambda: graph(state, words)


def _ours(model: Decoder, words: Tensor) -> Step:
    parameters = list(model.parameters())
    region = st.compile(lambda w: _gradients(model, parameters, w))
    return lambda: region(words)


def _replicated(model: Decoder, words: Tensor) -> tuple[Decoder, Tensor]:
    """The model with DTensors for parameters and buffers, tied again."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_module, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    model = distribute_module(model, mesh)  # type: ignore[assignment]
    model.tie()
    return model, DTensor.from_local(words, mesh, [Replicate()])


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    for wrapped in (False, True):
        for experts in (False, True):
            yield from _against_make_fx(quick, say, wrapped, experts)
    say("SimpleFSDP's way, 2 ranks")
    yield _sharded(quick)


def _against_make_fx(
    quick: bool, say: Callable[[str], None], wrapped: bool, experts: bool
) -> Iterator[Figure]:
    kind = "mixture of experts" if experts else "gated units"
    case = f"{2 if quick else 6} layers, {kind}{', replicated DTensors' * wrapped}"
    say(f"torchtitan's shape, {case}")
    words = torch.randint(0, _WORDS, (2, _LENGTH))
    with ranks(1):
        plain, given = _decoder(quick, experts), (_decoder(quick, experts), words)
        model, taken = _replicated(*given) if wrapped else given

        def first(step: Callable[..., Step], *args: Any) -> Callable[[], Step]:
            return lambda: lambda: step(*args)()

        makers = {"by hand": first(_by_hand, plain, words), "ours": first(_ours, model, taken)}
        firsts = once(makers, rounds=2 if quick else 5)
        yield Figure(
            "titan",
            _FIRST,
            case,
            firsts.ratio("ours", "by hand"),
            Goal("<=", 0.8),
            raw=firsts.medians(),
        )
        steps = {"by hand": _by_hand(plain, words), "ours": _ours(model, taken)}
        for a, b in zip(steps["by hand"](), steps["ours"](), strict=True):
            if not torch.allclose(a, b.to_local() if wrapped else b, rtol=1e-3, atol=1e-5):
                raise WrongValues(f"{case}: other gradients than make_fx's")
        times = interleaved(steps, rounds=3 if quick else 15, warm_up=3)
        yield Figure(
            "titan",
            _STEADY,
            case,
            times.ratio("ours", "by hand"),
            Goal("<=", 1.0),
            raw=times.medians(),
        )


# ---- SimpleFSDP
class Gathered(nn.Module):
    """A linear layer that gathers its weight where it is used; its gradient is scattered."""

    def __init__(self, mesh: Any, width: int) -> None:
        from torch.distributed.tensor import Shard, distribute_tensor

        super().__init__()
        value = torch.randn(width, width) / width**0.5
        self.weight = nn.Parameter(distribute_tensor(value, mesh, [Shard(0)]))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, width)."""
        from torch.distributed.tensor import Partial, Replicate

        whole = self.weight.redistribute(placements=[Replicate()])  # type: ignore[operator]
        return (x @ whole.to_local(grad_placements=[Partial()]).t()).tanh()


def _sharded(quick: bool) -> Figure:
    """Two processes train; the slower one counts."""
    code = f"from benchmarks.titan import rank; rank({{}}, {{!r}}, {quick})"
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen([sys.executable, "-c", code.format(k, folder)], stderr=subprocess.PIPE)
            for k in range(2)
        ]
        for process in processes:
            _, error = process.communicate(timeout=600)
            if process.returncode:
                raise WrongValues(f"SimpleFSDP on 2 ranks: {error.decode()[-2000:]}")
        found = [json.loads((Path(folder) / f"{k}.json").read_text()) for k in range(2)]
    ours, eager = (max(f[name] for f in found) for name in ("ours", "eager"))
    raw = {"ours": ours, "eager": eager}
    case = f"{4 if quick else 12} layers in SimpleFSDP's way"
    return Figure("titan", _SHARDED, case, ours / eager, Goal("<=", 0.9), {}, raw)


def rank(number: int, folder: str, quick: bool) -> None:
    """What each process does: medians of the wall time of a step, ours and eager by turns."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/at", rank=number, world_size=2)
    mesh, samples = init_device_mesh("cpu", (2,)), {"eager": list[float](), "ours": list[float]()}
    steps: dict[str, Step] = {}
    for name in samples:
        torch.manual_seed(0)
        layers = [Gathered(mesh, 64) for _ in range(4 if quick else 12)]
        model: Any = nn.Sequential(*layers)
        model = st.compile(model) if name == "ours" else model
        steps[name] = functools.partial(_train, model, list(model.parameters()))
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    if not torch.allclose(*map(torch.stack, losses.values()), rtol=1e-4):
        raise WrongValues(f"SimpleFSDP on 2 ranks: losses {losses}")
    for _ in range(5 if quick else 40):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            samples[name].append(time.perf_counter() - start)
    medians = {name: sorted(s)[len(s) // 2] for name, s in samples.items()}
    (Path(folder) / f"{number}.json").write_text(json.dumps(medians))
    dist.destroy_process_group()


def _train(model: Callable[..., Tensor], parameters: list[nn.Parameter]) -> Tensor:
    loss = model(torch.ones(16, 64)).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in parameters:
            p -= 0.1 * p.grad  # type: ignore[operator]
            p.grad = None
    return loss.detach()
