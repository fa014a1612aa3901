"""Parameters and buffers of a module, which have stand-ins in the thread that traces; all other threads see the real ones."""

from __future__ import annotations

import threading
from collections.abc import ItemsView, ValuesView
from typing import Any


def _thread() -> int:
    """This thread. Dynamo, which turns the branches of a ``torch.cond`` into graphs, takes the answer for a constant."""
    return threading.get_ident()


_thread._dynamo_marked_constant = True  # type: ignore[attr-defined]


class ThreadTable(dict[str, Any]):
    """Stands in place of the dict ``others``, with the same keys. Methods of dict itself see what the tracing thread sees."""

    __slots__ = ("_others", "_thread")

    def __init__(self, others: dict[str, Any]) -> None:
        super().__init__(others)
        self._others, self._thread = others, _thread()

    def _seen(self) -> dict[str, Any]:
        return self if _thread() == self._thread else self._others

    def __getitem__(self, key: str) -> Any:
        return dict.__getitem__(self._seen(), key)

    def __setitem__(self, key: str, value: Any) -> None:
        dict.__setitem__(self._seen(), key, value)

    def __delitem__(self, key: str) -> None:
        dict.__delitem__(self._seen(), key)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self._seen(), key)

    def get(self, key: str, default: Any = None) -> Any:
        """As of dict."""
        return dict.get(self._seen(), key, default)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """As of dict."""
        return dict.items(self._seen())

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """As of dict."""
        return dict.values(self._seen())

    def copy(self) -> dict[str, Any]:
        """As of dict."""
        return dict(self.items())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)
