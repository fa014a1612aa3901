"""FakeTensorMode: making fake tensors, their aliases, and what fake kernels raise."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv


def fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """The mode in which the user function runs during capture."""
    return FakeTensorMode(shape_env=shape_env, static_shapes=True, allow_non_fake_inputs=False)


@contextlib.contextmanager
def quiet_fake_errors() -> Iterator[None]:
    """Fake kernels that refuse inside are not logged: the caller tries something that may fail."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def like_format_of(fake: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A fresh fake tensor with the memory format that ``other`` suggests."""
    from torch._prims_common import suggest_memory_format

    return torch.empty_like(fake, memory_format=suggest_memory_format(other))


def detached(mode: FakeTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """An alias of a fake tensor without autograd history; issues no operation that a mode could see."""
    return fast_detach(mode, fake, False)  # type: ignore[arg-type]


def fake_result(
    mode: FakeTensorMode,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    source: torch.Tensor | None,
) -> torch.Tensor:
    """A fake tensor of this metadata, in the storage of ``source`` or in one of its own; no fake kernel runs."""
    if source is None:
        with torch._C._DisableTorchDispatch():
            plain = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    else:
        with in_kernel_invocation_manager(mode):
            plain = torch.as_strided(source, size, stride, offset)
    return FakeTensor(mode, plain, device)


@contextlib.contextmanager
def missing_attributes_of_fakes(look: Callable[[torch.Tensor, str], Any]) -> Iterator[None]:
    """While inside, ``look`` is asked for attributes that a fake tensor does not have; it may raise AttributeError."""

    def missing(fake: torch.Tensor, name: str) -> Any:
        return look(fake, name)

    before = vars(FakeTensor).get("__getattr__")
    FakeTensor.__getattr__ = missing  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before is None:
            del FakeTensor.__getattr__  # type: ignore[attr-defined]
        else:
            FakeTensor.__getattr__ = before  # type: ignore[attr-defined]


NO_FAKE_KERNEL = UnsupportedOperatorException

DATA_DEPENDENT_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
