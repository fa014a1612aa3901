"""Which of torch's functions a call reaches: tests compare a table of operations with their cases by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def names_called(calls: Iterable[Callable[[], object]]) -> set[str]:
    """The names of all functions of torch that Python calls in these.

    >>> x = torch.ones(2)
    >>> sorted(names_called([lambda: x.diag(1), lambda: torch.diagflat(x)]))
    ['diag', 'diagflat']
    """
    names: set[str] = set()

    class Noting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.add(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    with Noting():
        for call in calls:
            call()
    return names
