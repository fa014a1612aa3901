"""364 small programs that read and change Python state; eager is the oracle over four calls.

`programs.txt` has them. Each is a module with ``f(x)``, and optionally ``outside(i)``, which changes something from outside
before call ``i``, and ``args(i)``, the arguments of that call. Expected is "right" (result, arguments, all state, and which
names lead to one object), or "refused" by our own trace, with the state as before the call.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as nn_module
from torch.utils.hooks import RemovableHandle

import subclass_trace as st

from .alike import Twins

_TEXT = (Path(__file__).parent / "programs.txt").read_text()
PROGRAMS = {
    name: (source, expected)
    for name, expected, source in re.findall(r"^# ==== (\w+): (\w+)\n(.*?)(?=^# ====|\Z)", _TEXT, re.M | re.S)
}
_NOT_STATE = ("torch", "f", "outside", "args")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Some programs change what is everybody's."""
    hooks = {
        name: dict(t) for name, t in vars(nn_module).items() if name.startswith("_global_") and isinstance(t, dict)
    }
    path = list(sys.path)
    yield
    for name, table in hooks.items():
        vars(nn_module)[name].clear()
        vars(nn_module)[name].update(table)
    sys.path[:] = path
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)


def _load(name: str, source: str, which: str) -> dict[str, Any]:
    module: Any = types.ModuleType(f"program_{which}")
    sys.modules[module.__name__] = module
    module.torch = torch
    torch.manual_seed(0)
    RemovableHandle.next_id = 0
    exec(compile(source, f"{which}_{name}.py", "exec"), module.__dict__)
    return vars(module)


def _state(space: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in space.items() if not k.startswith("__") and k not in _NOT_STATE}


def _outcome(function: Any, args: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        with torch.no_grad():
            return "value", function(*args)
    except st.UnsupportedError as error:
        return "refused", error
    except Exception as error:
        return "raises", error


def _prepared(space: dict[str, Any], call: int) -> tuple[Any, ...]:
    RemovableHandle.next_id = 100 + call
    space.get("outside", lambda i: None)(call)
    found: tuple[Any, ...] = space["args"](call) if "args" in space else (torch.full((3,), call + 1.0),)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep(every=2)
def test_program(name: str) -> None:
    """As eager, or refused with the state as before."""
    source, expected = PROGRAMS[name]
    eager, traced = _load(name, source, "eager"), _load(name, source, "traced")
    region = st.compile(traced["f"], frontend="trace")
    for call in range(4):
        x, y = _prepared(eager, call), _prepared(traced, call)
        got, theirs = _outcome(region, y)
        if got == "refused":
            assert Twins()([x, _state(eager), eager["f"]], [y, _state(traced), traced["f"]]), f"not restored: {theirs}"
            break
        kind, ours = _outcome(eager["f"], x)
        assert kind == got, f"call {call}: eager {kind} {ours!r}, traced {got} {theirs!r}"
        if kind == "raises":
            assert type(ours) is type(theirs), f"call {call}: {ours!r} {theirs!r}"
            ours = theirs = None
        for k, v in _state(eager).items():
            assert k in traced and Twins()(v, traced[k]), f"call {call}: {k} is {v} in eager, {traced.get(k)} traced"
        everything = [[r, a, _state(s), s["f"]] for r, a, s in ((ours, x, eager), (theirs, y, traced))]
        assert Twins()(*everything), f"call {call}: eager {ours} {x}, traced {theirs} {y}"
    assert expected == ("refused" if got == "refused" else "right"), f"{got}: {theirs}"


def test_all_programs_are_read() -> None:
    """None is lost between its header and the next."""
    assert len(PROGRAMS) == _TEXT.count("# ==== ")
    assert functools.reduce(max, (len(s) for s, _ in PROGRAMS.values())) < 2000
