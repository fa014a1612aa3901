"""Settings of torch that a region changes for good are set in each call, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import subclass_trace as st


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)


def test_the_default_dtype_is_set_in_each_call() -> None:
    def f(x):
        y = x + torch.ones(2)
        torch.set_default_dtype(torch.float64)
        return y, torch.ones(2)

    region = st.compile(f)
    for _ in range(3):
        torch.set_default_dtype(torch.float32)
        y, ones = region(torch.ones(2))
        assert torch.get_default_dtype() is torch.float64
        assert (y.dtype, ones.dtype) == (torch.float32, torch.float64)
    assert len(region.specializations) == 1


def test_the_default_device_is_set_in_each_call_and_unset_too() -> None:
    def f(x, device):
        torch.set_default_device(device)
        return x * 2, torch.ones(2)

    region = st.compile(f)
    for device in ("meta", "meta", None, None):
        torch.set_default_device("cpu" if device is None else None)
        assert region(torch.ones(2, device="cpu"), device)[1].device.type == (device or "cpu")
        assert torch.get_default_device().type == (device or "cpu")
        assert (torch.ones(1).device.type) == (device or "cpu")
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_setting_stands_where_the_function_raises_and_not_where_it_is_refused() -> None:
    def f(x, refused):
        torch.set_default_dtype(torch.float64)
        if refused and x.sum() > 0:
            return x
        raise KeyError("mine")

    region = st.compile(f)
    with pytest.raises(st.DataDependentError):
        region(torch.ones(2), True)
    assert torch.get_default_dtype() is torch.float32
    with pytest.raises(KeyError):
        region(torch.ones(2), False)
    assert torch.get_default_dtype() is torch.float64


def test_settings_of_kernels_are_refused_unless_they_are_as_before() -> None:
    def f(x):
        torch.use_deterministic_algorithms(True)
        return x * 2

    region = st.compile(f)
    with pytest.raises(st.UnsupportedError, match=r"sets torch\.use_deterministic_algorithms"):
        region(torch.ones(2))
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert region(torch.ones(2)).tolist() == [2.0, 2.0]
