"""Settings of torch that a function leaves otherwise than it found them: the default dtype and device, and how kernels compute.

A trace runs the function once. What it sets for good is taken back, and set in each call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from ..plan import SettingPlan


@dataclass(frozen=True, eq=False)
class _Setting:
    """How to read and write a setting; ``name`` is for people."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


@dataclass(frozen=True, eq=False)
class SettingChange:
    """``write(value)``, at the end of a call."""

    write: Callable[[Any], None]
    value: Any

    def plan(self, result: int) -> SettingPlan:
        """The same with the value of a call, which is number ``result``."""
        return SettingPlan(self.write, result)


def _flag(name: str, holder: Any, key: str) -> _Setting:
    return _Setting(name, lambda: getattr(holder, key), lambda value: setattr(holder, key, value))


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_determinism(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


#: operations are recorded with the dtypes and devices that these gave them
_DEFAULTS = (
    _Setting("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting("torch.set_default_device", _torch.default_device, torch.set_default_device),
)
#: the graph runs as a whole under those of its caller
_OF_KERNELS = (
    _Setting("torch.use_deterministic_algorithms", _determinism, _set_determinism),
    _Setting(
        "torch.set_float32_matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    _flag("torch.backends.cudnn.enabled", torch.backends.cudnn, "enabled"),
    _flag("torch.backends.cudnn.benchmark", torch.backends.cudnn, "benchmark"),
    _flag("torch.backends.cudnn.deterministic", torch.backends.cudnn, "deterministic"),
)


@contextlib.contextmanager
def settings_of_torch() -> Iterator[list[SettingChange]]:
    """Inside, the function runs; afterwards the settings are as before.

    Yields a list that is filled on the way out: what each call has to set.

    Raises:
        UnsupportedError: it sets for good how kernels compute: part of its operations would run under another setting.
    """
    changes: list[SettingChange] = []
    before = [(row, row.read()) for row in (*_DEFAULTS, *_OF_KERNELS)]
    refused = None
    try:
        yield changes
    finally:
        for row, was in before:
            now = row.read()
            if now == was:
                continue
            row.write(was)
            if row in _DEFAULTS:
                changes.append(SettingChange(row.write, now))
            else:
                refused = refused or (row, was, now)
    if refused is not None:
        row, was, now = refused
        raise UnsupportedError(
            f"the region sets {row.name}, which decides how kernels compute",
            path=row.name,
            expected=f"the setting of the caller, {was}, for the whole region",
            got=f"{now}, from somewhere inside of it",
            fix="set it outside of the region",
        )
