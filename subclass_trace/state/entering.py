"""A profile function says that code is entered.

Two things are told to a listener, of this thread alone: ``enter(code, globals)`` once per code object, before its first
instruction, and ``world(name, frame)`` before code of the user's calls what asks or changes the world: clocks, files, random
numbers. The events are off while torch and this package work (`Events.off`): below the recorder, and below arithmetic of
symbols.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import logging
import os
import pathlib
import random
import secrets
import sys
import sysconfig
import time
import types
import uuid
from datetime import date, datetime
from typing import Any

import torch

from ..torch_api.dynamo import disabled_function, never_compiled
from .values import is_walked

#: functions of C, and code of Python's -> what asks or changes the world
_WORLD: dict[Any, str] = {
    function: f"{module.__name__}.{name}"
    for module in (time, random)
    for name, function in vars(module).items()
    if callable(function) and not isinstance(function, type) and not name.startswith("_")  # random._sqrt is math.sqrt
}
_WORLD |= {os.urandom: "os.urandom", builtins.open: "open", builtins.input: "input", builtins.id: "id"}
_WORLD |= {os.putenv: "os.putenv", os.unsetenv: "os.unsetenv", os.system: "os.system"}
_WORLD |= {type(os.environ).__setitem__.__code__: "os.environ[...] = ...", logging.Logger._log.__code__: "logging"}
_WORLD |= {
    type(os.environ).__delitem__.__code__: "del os.environ[...]",
    importlib.import_module.__code__: "import_module",
}
_WORLD |= {type(os.environ).__getitem__.__code__: "os.environ", builtins.print: "print"}
_WORLD |= {
    method.__code__: f"random.{name}"
    for name, method in vars(random.Random).items()
    if isinstance(method, types.FunctionType) and not name.startswith("__")
}
_WORLD |= dict.fromkeys((date.today, datetime.today, datetime.now), "datetime.now")
_WORLD |= {f.__code__: f.__name__ for f in (uuid.uuid1, uuid.uuid4, secrets.token_bytes, random.SystemRandom.random)}
_FILES: list[Any] = [getattr(os.path, name) for name in ("exists", "isfile", "getsize", "getmtime")]
_FILES += [getattr(pathlib.Path, name) for name in ("open", "read_text", "read_bytes", "exists", "stat", "iterdir")]
_WORLD |= {getattr(f, "__code__", f): "files" for f in (*_FILES, os.listdir, os.stat, os.scandir)}
_WORLD |= {
    inspect.unwrap(getattr(module, name)).__code__: f"{module.__name__}.{name}"
    for module in (torch.random, torch.cuda.random, torch.xpu.random, torch.mps)
    for name in dir(module)
    if ("seed" in name or "rng_state" in name or name == "fork_rng") and not name.startswith("_")
}
#: what is judged in the user's own code alone: an installed package asks for its settings and its parts
_OF_USERS = ("logging", "import_module", "os.environ", "print", "files")
#: so are the methods of these; a refusal between a library's ``__enter__`` and ``__exit__`` would leave it locked
_LOCKS = ("lock.", "RLock.")
#: what stands between ``torch.manual_seed`` and its caller
_PLUMBING = (
    torch.random.__file__,
    torch.cuda.random.__file__,
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "_dynamo", "eval_frame.py"),
)
_WORLD_MODULES = ("_io", "numpy.random.mtrand", "numpy.random._generator", "_thread", "_queue", "_random")

_PATHS = {name: os.path.join(path, "") for name, path in sysconfig.get_paths().items()}
_HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
#: parts of torch that never read an object of the user's
_DISPATCHER = (
    tuple(
        os.path.join("torch", *name.split("/"))
        for name in [
            "_dynamo/",
            "_subclasses/",
            "fx/",
            "_ops.py",
            "_prims",
            "_refs/",
            "_decomp/",
            "_meta_registrations.py",
            "_library/",
            "_guards.py",
            "_higher_order_ops/",
            "utils/_python_dispatch.py",
            "utils/_stats.py",
            "utils/weak.py",
            "utils/_pytree.py",
            "utils/_sympy/",
        ]
    )
    + tuple(os.path.join("", name, "") for name in ("sympy", "mpmath"))
    + (os.path.join("logging", "__init__.py"),)
)


@functools.lru_cache(None)
def is_below(filename: str) -> bool:
    """Code of the dispatcher and of this package: its names are no names of the region."""
    if filename.startswith(_HERE):
        return os.sep + "zoo" + os.sep not in filename[len(_HERE) - 1 :]
    return any(part in filename for part in _DISPATCHER)


@functools.lru_cache(None)
def is_users(filename: str) -> bool:
    """Neither of an installed package, nor of Python, nor of this one."""
    installed = (_PATHS["purelib"], _PATHS["platlib"], _PATHS["stdlib"], _PATHS["platstdlib"], _HERE, "<frozen")
    return not filename.startswith(installed)


def _caller(frame: types.FrameType | None) -> types.FrameType | None:
    """The nearest frame that is not the standard library's, nor plumbing of torch's."""
    while frame is not None:
        file = frame.f_code.co_filename
        installed = file.startswith((_PATHS["purelib"], _PATHS["platlib"]))
        if not file.endswith(_PLUMBING) and (installed or not file.startswith((_PATHS["stdlib"], "<frozen"))):
            break
        frame = frame.f_back
    return frame


#: where a run or a traced backward begins
_BEGIN = tuple(os.path.join(_HERE, *name) for name in (("state", "run.py"), ("capture", "tape.py")))


def _importing(frame: types.FrameType | None) -> bool:
    """Is a module being imported, which happens once and is no part of the region?"""
    while frame is not None and not frame.f_code.co_filename.startswith(_BEGIN):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _is_guard(space: dict[str, Any]) -> bool:
    """Is it a guard of Dynamo's, which compiles inside of ``torch.cond``?"""
    return "__name__" not in space and "L" in space and "G" in space


def _of_world(function: Any, owner: Any) -> str | None:
    """The name of a C function that asks or changes what is outside of the region."""
    try:
        known = _WORLD.get(function)
    except TypeError:  # it has no hash
        return None
    if known is not None:
        return known
    kind = type(owner)
    name = getattr(function, "__name__", "")
    if issubclass(kind, (random.Random, torch.Generator)) or kind.__module__ in _WORLD_MODULES:
        return f"{kind.__qualname__}.{name}"
    if kind.__name__ == "ContextVar" and name != "get":
        return f"ContextVar.{name}"
    if name in ("register_hook", "register_prehook") and isinstance(owner, torch.autograd.graph.Node):
        return f"grad_fn.{name}"  # a view that is replayed has another node, without the hook
    return None


def draws_by_numpy(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Does code name ``numpy.random``, or a function of it? No event tells of a call of one."""
    for name in code.co_names:
        value: Any = space.get(name, sys.modules.get(name))
        owner = value.__self__ if type(value) in (types.MethodType, types.BuiltinMethodType) else value
        module = owner.__name__ if type(owner) is types.ModuleType else type(owner).__module__
        if module.startswith("numpy.random") or (module == "numpy" and owner is value and "random" in code.co_names):
            return True
    return False


class Events:
    """The events of one run: on while code of the user's runs. A profiler that was active is set aside meanwhile."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.before = sys.getprofile()
        self.entered: set[types.CodeType] = set()
        #: of most events: code that starts, and code that calls something of C, of which nothing is to be told
        self.known: set[types.CodeType] = set()
        self.silent: set[types.CodeType] = set()

    def on(self) -> None:
        """Code of the user's runs from here."""
        sys.setprofile(self)

    def off(self) -> None:
        """Code of torch's and of this package runs from here."""
        sys.setprofile(None)

    def close(self) -> None:
        """The trace is over."""
        if self.before is None or callable(self.before):
            sys.setprofile(self.before)
        else:  # of C, as `cProfile` is: it alone can
            self.before.enable()

    @never_compiled
    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """One event of the interpreter's; Dynamo, which may be at work (``torch.cond``), shall not compile this code."""
        code = frame.f_code
        if event == "call":
            if code not in self.known:
                below = is_below(code.co_filename)
                if below and (hidden := disabled_function(frame)) is not None:
                    # generated code has none
                    if is_users(inspect.unwrap(hidden).__code__.co_filename) and hidden.__module__:
                        self.listener.world(
                            f"{hidden.__qualname__}, which torch.compiler.disable keeps out of graphs", frame
                        )
                    return
                if not below:
                    self._started(code, frame)
                    if sys.version_info < (3, 11):  # it writes these back after the event: cells hold stand-ins by now
                        _ = frame.f_locals
                if below or (code in self.entered and code not in _WORLD):
                    self.known.add(code)
        elif event == "c_call" and code not in self.silent:
            if not is_walked(frame.f_globals.get("__name__")) and not is_users(code.co_filename):
                self.silent.add(code)
            elif (name := _of_world(arg, getattr(arg, "__self__", None))) is not None and not _importing(frame):
                self._judge(name, frame, frame)

    def _started(self, code: types.CodeType, frame: types.FrameType) -> None:
        """A Python function starts."""
        if code not in self.entered:
            if _is_guard(frame.f_globals) or _importing(frame):
                return
            self.entered.add(code)
            self.listener.enter(code, frame.f_globals)
        if code in _WORLD:
            self._judge(_WORLD[code], _caller(frame.f_back), frame)

    def _judge(self, name: str, caller: types.FrameType | None, frame: types.FrameType) -> None:
        """Code of this caller's asks or changes the world."""
        if caller is None:
            return
        users = is_users(caller.f_code.co_filename)
        if users if name in _OF_USERS or name.startswith(_LOCKS) else is_walked(caller.f_globals.get("__name__")):
            self.listener.world(name, frame)
