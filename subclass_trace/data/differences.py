"""Where two descriptions of one call say something else.

Not compared is what is there for people (lines of the user's code, sizes in bytes), and the numbers
that a trace met where symbols stand.

>>> difference({"plan": [1, 2], "constants": {}}, {"plan": [1, 3], "constants": {}})
'plan[1]: expected 2, got 3'
"""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

from ..plan import SavedValue

_SYMBOLIC = ("int", "float", "bool")
_SAVED = [k for k, f in enumerate(fields(SavedValue), 2) if f.name in ("where", "bytes")]


def difference(known: Any, now: Any) -> str | None:
    """The first place at which they differ, with what is there; None: they say the same."""
    was, is_now = (_compared(data) for data in (known, now))
    return None if _same(was, is_now) else _first(was, is_now, "").removeprefix(".")


def _compared(data: dict[str, Any]) -> Any:
    held = {
        name: value if isinstance(value, str) else base64.b64encode(value).decode()
        for name, value in data["constants"].items()
    }
    ranks = [data["ranks"][:2]] if "ranks" in data else []
    symbols = {name: [row[0], *row[2:]] for name, row in data.get("symbols", {}).items()}
    rest = {"ranks": ranks, "constants": held, "symbols": symbols}
    last = {name: data[name] for name in ("proofs", "templates") if name in data}  # they follow
    first = {name: value for name, value in data.items() if name not in last}
    return json.loads(json.dumps(_without({**first, **rest, **last})))


def _same(known: Any, now: Any) -> bool:
    """(``1 == True``, but not here.)"""
    return json.dumps(known, sort_keys=True) == json.dumps(now, sort_keys=True)


def _without(data: Any) -> Any:
    """A part, without what is not compared."""
    if isinstance(data, dict):
        return {name: _without(value) for name, value in data.items() if name != "stack_trace"}
    if not isinstance(data, list):
        return data
    if data[:2] == ["record", "SavedValue"]:
        return [_without(value) for k, value in enumerate(data) if k not in _SAVED]
    return [*map(_without, data[:-1] if _has_hint(data) else data)]


def _has_hint(data: list[Any]) -> bool:
    """Is it a symbolic number, as graphs have it?"""
    kind, expression = data[-3:-1] if len(data) == 3 or data[:1] == ["number"] else (None, None)
    return kind in _SYMBOLIC and isinstance(expression, list) and expression[:1] == ["expression"]


def _first(known: Any, now: Any, path: str) -> str:
    if isinstance(known, dict) and isinstance(now, dict):
        for name in {**known, **now}:
            if not _same(known.get(name), now.get(name)) or (name in known) != (name in now):
                return _first(known.get(name), now.get(name), f"{path}.{name}")
    if isinstance(known, list) and isinstance(now, list) and len(known) == len(now):
        for k, (a, b) in enumerate(zip(known, now, strict=True)):
            if not _same(a, b):
                return _first(a, b, f"{path}[{k}]")
    if isinstance(known, list) and isinstance(now, list):
        return f"{path}: expected {len(known)} of them, got {len(now)}"
    return f"{path}: expected {_short(known)}, got {_short(now)}"


def _short(data: Any) -> str:
    text = json.dumps(data)
    return text if len(text) <= 120 else f"{text[:120]}..."
