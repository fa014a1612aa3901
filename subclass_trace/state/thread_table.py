"""Parameters and buffers of a module, which have stand-ins in the thread that traces; all other threads see the real ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def _thread() -> int:
    """This thread. Dynamo, which turns the branches of a ``torch.cond`` into graphs, takes the answer for a constant."""
    return threading.get_ident()


_thread._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _seen(name: str) -> Callable[..., Any]:
    """A method of dict, of the table that the running thread sees."""

    def of_thread(self: Any, *args: Any) -> Any:
        return getattr(dict, name)(self if _thread() == self._thread else self._others, *args)

    return of_thread


class ThreadTable(dict[str, Any]):
    """Stands in place of the dict ``others``, with the same keys. Methods of dict itself see what the tracing thread sees."""

    __slots__ = ("_others", "_thread")

    def __init__(self, others: dict[str, Any]) -> None:
        super().__init__(others)
        self._others, self._thread = others, _thread()

    __getitem__, __setitem__, __delitem__ = _seen("__getitem__"), _seen("__setitem__"), _seen("__delitem__")
    __contains__, get, items = _seen("__contains__"), _seen("get"), _seen("items")
    values, copy = _seen("values"), _seen("copy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)
