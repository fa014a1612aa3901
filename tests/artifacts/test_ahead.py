"""Compiled without weights: a region over ``meta`` is saved, and serves the real module on the device that it was told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.capture.capture import Capture
from subclass_trace.zoo import convert_linears


class Asks(nn.Module):
    """Code that looks where it is, and makes tensors there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_meta or x.device.type != "cpu" or not self.weight.is_cpu or x.is_cuda:
            return x * 100
        place = torch.arange(8, device=self.weight.device, dtype=x.dtype)
        return (x * self.weight + place + x.new_ones(8)) @ torch.eye(8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            q, k, v = self.qkv(x).view(1, -1, 2, 12).transpose(1, 2).split(4, dim=-1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).float()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).sin())


def norms() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 8))


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.dtype, dict[str, Any]]] = {
    "batch norm": (norms, torch.float32, {}),
    "asks": (Asks, torch.float32, {}),
    "attention": (Attention, torch.float32, {}),
    "tied": (Tied, torch.float32, {}),
    "wrappers": (lambda: convert_linears(norms().bfloat16()), torch.bfloat16, {}),
    "dynamic": (norms, torch.float32, {"dynamic": True}),
    "inductor": (Asks, torch.float32, {"backend": "inductor"}),
}


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    capture = Capture.capture
    monkeypatch.setattr(Capture, "capture", lambda self, run: (found.append(1), capture(self, run))[1])
    return found


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def step(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
    out = function(x)
    out.sum().backward()
    return [out.detach(), *(p.grad.to(torch.float32) + 0 for p in function.parameters())]


@pytest.mark.parametrize("way", ["file", "cache"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sweep(every=4)
def test_the_real_module_is_served(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: list[int]
) -> None:
    monkeypatch.setenv("SUBCLASS_TRACE_CACHE_DIR", str(tmp_path / "cache"))
    make, dtype, options = MODELS[name]
    ahead = st.compile(on_meta(make), frontend="trace", device="cpu", cache=True, **options)
    ahead.warm_up(torch.empty(4, 8, device="meta", dtype=dtype))
    assert ahead.save(tmp_path / "model.st") == ()
    torch.manual_seed(0)
    model, same, x = make(), make(), torch.randn(4, 8).to(dtype)
    same.load_state_dict(model.state_dict())
    made = len(traces)
    if way == "file":
        region = st.load(tmp_path / "model.st", model, frontend="trace", **options)
    else:
        region = st.compile(model, frontend="trace", cache=True, **options)
    torch.testing.assert_close(step(region, x), step(same, x))
    assert len(traces) == made, region.explain()
    torch.testing.assert_close(dict(model.named_buffers()), dict(same.named_buffers()))


def test_it_is_not_called(tmp_path: Path) -> None:
    region, x = st.compile(on_meta(norms), device="cpu"), torch.empty(4, 8, device="meta")
    region.warm_up(x)
    with pytest.raises(st.UnsupportedError, match="compiles ahead, for tensors on cpu"):
        region(x)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", 3.5])
def test_a_device_that_is_not_here(device: Any) -> None:
    with pytest.raises(st.OptionError, match="no such device"):
        st.compile(norms(), device=device)


CHILD = """
import resource, sys, torch, subclass_trace as st
from torch import nn

with torch.device("meta"):
    model = nn.Sequential(*(nn.Linear(1 << 15, 1 << 15) for _ in range(4)))  # 4 GiB each
    x = torch.empty(2, 1 << 15)
region = st.compile(model, frontend="trace", device="cpu")
region.warm_up(x[:, :1].expand(2, 1 << 15).contiguous())
region.reset()  # what is imported and made once is there
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 29), -1))
try:
    torch.empty(1 << 28)
except RuntimeError:
    pass
else:
    sys.exit("the limit is none")
region.warm_up(x)
region.save(sys.argv[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.long
def test_no_memory_of_the_models_size_is_taken(tmp_path: Path) -> None:
    """16 GiB of weights, in 512 MiB: a storage of one weight could not be made."""
    done = subprocess.run([sys.executable, "-c", CHILD, tmp_path / "model.st"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "model.st").stat().st_size < 1 << 16
