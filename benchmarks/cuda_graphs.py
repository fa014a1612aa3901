"""CUDA graphs. On the CPU: what a replayed call costs besides the replay, against static buffers
by hand. On a GPU (``--gpu``): a launch-bound transformer, against
``torch.compile(mode="reduce-overhead")``.

The recorder of the CPU part does nothing in a replay, so that all of the time is overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

import subclass_trace as st
from subclass_trace.backends import Backend
from subclass_trace.plan import SavedValue
from subclass_trace.plan.descriptors import Input
from subclass_trace.torch_api.operators import copy_all
from subclass_trace.zoo.scaled_fp8 import convert_linears

from .harness import interleaved, quiet
from .results import Figure, Goal
from .subjects import WrongValues

_OVERHEAD = "time of a replayed call / static buffers by hand"
_COPIES = "copies of a step - inputs and tangents"
_STEADY = "time of a step / torch.compile(mode='reduce-overhead')"
_MEMORY = "memory of 5 sizes / of 1 and buffers"


class Still:
    """A recorder whose replays do nothing. It counts copies."""

    copies = 0

    def on_host(self, t: torch.Tensor) -> bool:
        return False

    def on_device(self, t: torch.Tensor) -> torch.Tensor:
        return t

    def warm(self, work: Any) -> Sequence[Any]:
        return work.run()  # type: ignore[no-any-return]

    def record(self, work: Any) -> tuple[Callable[[], object], Sequence[Any]]:
        return (lambda: None), work.run()

    def copy(self, to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        self.copies += len(to)
        if to:
            copy_all(to, of)


def by_hand() -> Backend:
    """What one writes for one model: buffers for inputs, a replay, clones of results."""

    def compiler(role: str) -> Callable[..., Any]:
        def compile_static(gm: Any, examples: Sequence[Any]) -> Any:
            inputs = [n.meta["descriptor"] for n in gm.graph.nodes if n.op == "placeholder"]
            copied = [k for k, d in enumerate(inputs) if not _stays(d, role == "backward")]
            kept = {k for k, d in enumerate(gm.meta["descriptors"]) if isinstance(d, SavedValue)}
            made = list[Any]()

            def replay() -> None:
                pass

            def call(given: list[Any]) -> list[Any]:
                if not made:
                    buffers = [given[k].clone() for k in copied]
                    made.append((buffers, list(gm(*given))))
                buffers, results = made[0]
                copy_all(buffers, [given[k] for k in copied])
                given.clear()
                replay()
                return [t if k in kept else t.clone() for k, t in enumerate(results)]

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        return compile_static

    return Backend("by hand", *map(compiler, ("forward", "backward", "inference")))


def _stays(what: Any, is_backward: bool) -> bool:
    return isinstance(what, SavedValue) or (
        isinstance(what, Input) and (what.is_static or is_backward)
    )


def _mlp() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(*layers)


def _inference(region: Any, x: torch.Tensor) -> Callable[[], Any]:
    return torch.no_grad()(lambda: region(x))


def _training(region: Any, x: torch.Tensor) -> Callable[[], Any]:
    def step() -> None:
        region(x).backward(x)
        for p in region.parameters():
            p.grad = None

    return step


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """The figures of the CPU part."""
    for case, make, counted in (("inference", _inference, 1), ("training", _training, 2)):
        say(f"cuda_graphs: {case}")
        recorder, x = Still(), torch.randn(8, 16)
        ours = st.compile(_mlp(), backend="cudagraphs", options={"recorder": recorder})
        actions = {
            "ours": make(ours, x),
            "hand": make(st.compile(_mlp(), backend=by_hand()), x),
            "eager": make(_mlp(), x),
        }
        with quiet():
            times = interleaved(actions, rounds=3 if quick else 21)
        raw = times.medians()
        yield Figure(
            "cuda_graphs", _OVERHEAD, case, times.ratio("ours", "hand"), Goal("<=", 1.3), raw=raw
        )
        recorder.copies = 0
        actions["ours"]()
        yield Figure("cuda_graphs", _COPIES, case, float(recorder.copies - counted), Goal("<=", 0))


# ---- on a GPU
class _Layer(nn.Module):
    """A small transformer layer: bound by its launches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


def _transformer(prepare: Callable[[nn.Module], object]) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[_Layer(64) for _ in range(6)]).cuda()
    prepare(model)
    return model


def _weights() -> dict[str, Callable[[nn.Module], object]]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cuda", (1,))
    return {
        "dense": lambda model: None,
        "DTensor": lambda model: distribute_module(model, mesh),
        "FP8": lambda model: convert_linears(model, fp8_weight=True),
    }


def _step(call: Any, model: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = call(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run_on_gpu(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """The figures of a GPU."""
    for case, prepare in _weights().items():
        say(f"cuda_graphs: {case} on a GPU")
        x = torch.randn(4, 32, 64, device="cuda")
        models = {name: _transformer(prepare) for name in ("ours", "torch", "eager")}
        region = st.compile(models["ours"], backend="inductor", mode="reduce-overhead")
        other = torch.compile(models["torch"], mode="reduce-overhead")
        calls = {"ours": region, "torch": other, "eager": models["eager"]}
        steps = {name: _step(calls[name], models[name], x) for name in calls}
        _compare(steps, 10 if quick else 50)
        times = interleaved(steps, rounds=3 if quick else 21)
        yield Figure(
            "cuda_graphs",
            _STEADY,
            case,
            times.ratio("ours", "torch"),
            Goal("<=", 1.0),
            {"eager": times.ratio("eager", "torch")},
            times.medians(),
        )
        yield Figure("cuda_graphs", _COPIES, case, float(_device_copies(steps["ours"])))
    yield from _sizes(quick)


def _compare(steps: dict[str, Callable[[], torch.Tensor]], count: int) -> None:
    """Steps with dropout are those of eager mode, to rounding.

    Raises:
        WrongValues: they are not.
    """
    for k in range(count):
        found = {}
        for name in ("ours", "eager"):
            torch.manual_seed(k)
            found[name] = steps[name]()
        if not torch.allclose(found["ours"], found["eager"], rtol=1e-3, atol=1e-4):
            raise WrongValues(f"step {k}: {found}")


def _device_copies(step: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    return sum("Memcpy DtoD" in event.name for event in found.events())


def _sizes(quick: bool) -> Iterator[Figure]:
    """The pool grows by buffers only."""
    found = []
    for sizes in ((16,), (16, 12, 8, 4, 2)):
        model = _transformer(lambda model: None).eval().requires_grad_(False)
        region = st.compile(model, backend="cudagraphs")
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for n in sizes * 3:
            region(torch.randn(n, 32, 64, device="cuda"))
        found.append(torch.cuda.memory_reserved() - before)
    yield Figure("cuda_graphs", _MEMORY, "inference", found[1] / found[0], Goal("<=", 1.5))
