"""Arguments of ATen operations: tensors, numbers, lists of them. Found and replaced without torch's pytrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def substitute(cls: type, function: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with ``function`` applied to each instance of ``cls`` in it; lists, tuples and dicts are copied."""
    if isinstance(value, cls):
        return function(value)
    if isinstance(value, tuple):
        return tuple([substitute(cls, function, v) for v in value])
    if isinstance(value, list):
        return [substitute(cls, function, v) for v in value]
    if isinstance(value, dict):
        return {k: substitute(cls, function, v) for k, v in value.items()}
    return value


def instances(cls: type, value: Any, found: list[Any]) -> list[Any]:
    """The instances of ``cls`` in ``value``, appended to ``found`` in order."""
    if isinstance(value, cls):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            instances(cls, v, found)
    elif isinstance(value, dict):
        for v in value.values():
            instances(cls, v, found)
    return found
