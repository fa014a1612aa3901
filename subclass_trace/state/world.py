"""What asks or changes the world: clocks, files, the environment, random numbers, processes.
Refused by name."""

from __future__ import annotations

import builtins
import gc
import importlib
import inspect
import logging
import os
import pathlib
import random
import secrets
import sys
import time
import types
import uuid
from datetime import date, datetime
from typing import Any

import torch

from ..errors import SideEffectError
from ..subclass.values import is_a, is_atom
from ..torch_api.lines import warn_user
from ..torch_api.owners import Owner, owner_of_file
from . import calls
from .frames import instrumented_frame, user_frame
from .instrument import is_instrumented
from .kinds import SYMBOLS
from .recorder import user_line
from .running import Running
from .writes import PRINTED

#: functions of C, and code of Python's -> what asks or changes the world
WORLD: dict[Any, str] = {
    function: f"{module.__name__}.{name}"
    for module in (time, random)
    for name, function in vars(module).items()
    if callable(function)
    and not isinstance(function, type)
    and not name.startswith("_")  # random._sqrt is math.sqrt
}
WORLD |= {os.urandom: "os.urandom", builtins.open: "open", builtins.input: "input"}
WORLD |= {os.putenv: "os.putenv", os.unsetenv: "os.unsetenv", os.system: "os.system"}
WORLD |= {
    type(os.environ).__setitem__.__code__: "os.environ[...] = ...",
    logging.Logger._log.__code__: "logging",
}
WORLD |= {sys.getallocatedblocks: "sys.getallocatedblocks"}
WORLD |= {builtins.breakpoint: "breakpoint", gc.collect: "gc.collect", gc.get_count: "gc.get_count"}
WORLD |= {
    type(os.environ).__delitem__.__code__: "del os.environ[...]",
    importlib.import_module.__code__: "import_module",
}
WORLD |= {
    method.__code__: f"random.{name}"
    for name, method in vars(random.Random).items()
    if isinstance(method, types.FunctionType) and not name.startswith("__")
}
WORLD |= dict.fromkeys((date.today, datetime.today, datetime.now, datetime.utcnow), "datetime.now")
WORLD |= {
    f.__code__: f.__name__
    for f in (uuid.uuid1, uuid.uuid4, secrets.token_bytes, random.SystemRandom.random)
}
_FILES: list[Any] = [getattr(os.path, name) for name in ("exists", "isfile", "getsize", "getmtime")]
_FILES += [
    getattr(pathlib.Path, name)
    for name in ("open", "read_text", "read_bytes", "exists", "stat", "iterdir")
]
WORLD |= {getattr(f, "__code__", f): "files" for f in (*_FILES, os.listdir, os.stat, os.scandir)}
_SEEDS = {
    inspect.unwrap(getattr(module, name)).__code__: f"{module.__name__}.{name}"
    for module in (torch.random, torch.cuda.random, torch.xpu.random, torch.mps)
    for name in dir(module)
    if ("seed" in name or "rng_state" in name or name == "fork_rng") and not name.startswith("_")
}
#: what is judged in the user's own code alone: an installed package asks for its settings and its
#: parts
_OF_USERS = ("logging", "import_module", "print", "files")
_MODULES = (
    "_io",
    "numpy.random.mtrand",
    "numpy.random._generator",
    "_thread",
    "_queue",
    "_random",
    "mtrand",
)
_WORLD_OWNERS = (
    "time",
    "_random",
    "posix",
    "_io",
    "_socket",
    "select",
    "_uuid",
    "faulthandler",
    "signal",
    "fcntl",
    "_tracemalloc",
)
#: functions of these modules that tell nothing of the world
_HARMLESS = frozenset(
    ("fspath", "getpid", "cpu_count", "fsdecode", "fsencode", "get_terminal_size", "intern")
)


def world_name(f: Any, owner: Any) -> str | None:
    """The name of a C function that asks or changes what is outside of the region."""
    try:
        known = WORLD.get(f)
    except TypeError:  # it has no hash
        return None
    if known is not None:
        return known
    kind, name = type(owner), getattr(f, "__name__", "")
    if is_a(owner, types.ModuleType):
        return (
            f"{owner.__name__}.{name}"
            if owner.__name__ in _WORLD_OWNERS and name not in _HARMLESS
            else None
        )
    if issubclass(kind, (random.Random, torch.Generator)) or kind.__module__ in _MODULES:
        return f"{kind.__qualname__}.{name}"
    if name in ("register_hook", "register_prehook") and isinstance(
        owner, torch.autograd.graph.Node
    ):
        return f"grad_fn.{name}"  # a view that is replayed has another node, without the hook
    return None


def refuse_world(rec: Running, name: str) -> None:
    """Code asks or changes the world: refused, unless a library asks for its settings.

    Raises:
        SideEffectError: it is.
        UnsupportedError: Dynamo does not see it either.
    """
    if _is_importing():
        return
    frame = instrumented_frame()
    if (
        name.startswith(("lock.", "RLock."))
        and frame is not None
        and owner_of_file(frame.f_code.co_filename) is Owner.PYTHON
    ):
        return  # a library's own
    while frame is not None and (
        not is_instrumented(frame.f_code) or owner_of_file(frame.f_code.co_filename) is Owner.PYTHON
    ):
        frame = frame.f_back
    if frame is None or owner_of_file(frame.f_code.co_filename) is Owner.TORCH:
        return
    users = owner_of_file(frame.f_code.co_filename) is Owner.USER
    if not users and (name in _OF_USERS or name.startswith(("lock.", "RLock."))):
        return
    if rec.warns and name in ("print", "logging", "posix.write"):
        warn_user(f"{user_line()}: {name} happens once, while the region is traced")
        return
    of_device = name.startswith(("torch.cuda", "torch.xpu", "torch.mps"))
    rec.refuse(
        SideEffectError(
            f"the region calls {name}",
            code="asks-device" if of_device else "asks-world",
            path=user_line(),
            expected="code that depends on its arguments and on Python state alone",
            fix="call it outside of the region, or hand over what it gives as an argument",
        )
    )


def _is_importing() -> bool:
    """Is a module being imported, which happens once and is no part of the region?"""
    frame: Any = sys._getframe(2)
    while frame is not None and not is_instrumented(frame.f_code):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _python_of_world(rec: Running, f: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    refuse_world(rec, WORLD.get(f.__code__) or _SEEDS[f.__code__])
    return f(*a, **k)


def _c_of_world(rec: Running, f: Any, a: tuple[Any, ...], k: dict[str, Any]) -> Any:
    refuse_world(rec, WORLD[f])
    return f(*a, **k)


def _print(rec: Running, f: Any, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Texts and numbers are printed by each call."""
    file = options.get("file")
    values = tuple(map(rec.give, values))
    plain = all(is_atom(v) or is_a(v, SYMBOLS) or v is file for v in (*values, *options.values()))
    of_c = file is None or (rec.place_of(file) is not None and type(file).__module__ == "_io")
    if not plain or not of_c or sys.stdout is not rec.stdout:
        refuse_world(rec, "print with something else than texts and numbers, or to another place")
        return None
    rec.printed.append((PRINTED, options, values))
    return None


def refuse_disabled(rec: Running, f: Any) -> None:
    """A function that ``torch.compiler.disable`` keeps out of graphs.

    Raises:
        SideEffectError: always.
    """
    refuse_world(rec, f"{f.__qualname__}, which torch.compiler.disable keeps out of graphs")


for _function in WORLD:
    if type(_function) is types.CodeType:
        calls.FUNCTIONS[_function] = _python_of_world
    else:
        calls.C_TABLE[_function] = _c_of_world
calls.FUNCTIONS.update(dict.fromkeys(_SEEDS, _python_of_world))
calls.C_TABLE[print] = _print
_FRAME = user_frame
