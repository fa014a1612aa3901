"""Modules and functions of TorchScript inside a region: traced, except where their parameters would need gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import subclass_trace as st

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and warns of what it traces
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)

    @torch.jit.script
    def scripted_function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())


def scripted() -> nn.Module:
    return torch.jit.script(layers())


def traced() -> nn.Module:
    return torch.jit.trace(layers(), torch.ones(2, 3), check_trace=False)


@pytest.mark.parametrize("make", [scripted, traced])
def test_without_gradients_of_its_parameters(make) -> None:
    eager, module = make(), make()
    region = st.compile(lambda x: module(x.cos()) * 2)
    for step in range(3):
        x = torch.arange(6.0).reshape(2, 3) + step
        with torch.no_grad():
            assert torch.equal(region(x), eager(x.cos()) * 2)
            for a, b in zip(eager.parameters(), module.parameters(), strict=True):
                a.add_(1)
                b.add_(1)
        for a, b in zip(eager.buffers(), module.buffers(), strict=True):
            assert torch.equal(a, b)
    for m in (eager, module):
        for p in m.parameters():
            p.requires_grad_(False)
    found = []
    for f in (lambda x: eager(x.cos()) * 2, region):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        f(x).square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.forward(x) * 2


@pytest.mark.parametrize("make", [scripted, traced])
def test_gradients_of_its_parameters_are_refused(make) -> None:
    module = make()
    forward = module.forward
    for function, path in ((module, "self"), (lambda x: module(x), "module"), (Outer(module), "self.inner")):
        with pytest.raises(
            st.UnsupportedError, match="a module of TorchScript whose parameters require grad"
        ) as caught:
            st.compile(function)(torch.ones(2, 3))
        assert caught.value.path == path
        assert module.forward is forward
    with pytest.raises(st.UnsupportedError, match="a method of a TorchScript module"):
        st.compile(module.forward)(torch.ones(2, 3))


def test_a_function_is_traced() -> None:
    x = torch.ones(3, requires_grad=True)
    st.compile(lambda x: scripted_function(x) + 1)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).cos())
