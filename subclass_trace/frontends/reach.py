"""What the code of a function reaches besides its arguments: closure cells, globals, attributes of plain objects.

Each such place is a `Slot`. What a slot holds decides what it means to a region: a tensor is an input, a module is a root
whose state are inputs, everything else is guarded. The walk is static. It starts at the function and goes on through

- code inside of it (comprehensions, lambdas, inner functions), and functions, methods and partials that it names;
- ``self``, other plain objects, and classes: those of their attributes whose names stand in the code that was reached, and
  all their methods with such names;
- items of lists, tuples and dicts.

Code of torch and of the standard library is taken as it is.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import sysconfig
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..capture.user_code import is_foreign, is_library, is_user_code
from ..runtime.guards import ABSENT, HOOK_TABLES, OF_EVERY_MODULE, is_simple
from ..subclass.paths import Path

Module = torch.nn.Module
#: a walk looks at no more objects and pieces of code than this: what lies beyond is taken as it is
_MOST = 2000
_MOST_ITEMS = 1000
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_STANDARD = sysconfig.get_paths()["stdlib"]


@dataclass(frozen=True, eq=False)
class Slot:
    """A place that the code reads: a closure cell (``key`` None), or ``holder[key]`` of the globals, of the ``__dict__``
    of an object or class, or of the `Slotted` attributes of an object without one."""

    holder: Any
    key: str | None
    path: Path
    value: Any

    @property
    def name(self) -> str:
        """The name that stands in the code."""
        return self.path.root if self.key is None else self.key

    def read(self) -> Any:
        """What it holds now, or ABSENT."""
        try:
            return self.holder.cell_contents if self.key is None else self.holder.get(self.key, ABSENT)
        except ValueError:  # the cell was emptied
            return ABSENT


@dataclass(frozen=True, eq=False)
class Reached:
    """What a walk found, in order: slots, the module trees in them, and containers, objects, classes and caches that may
    be changed; ``unbound``: globals that the code names, and that are not set."""

    slots: tuple[Slot, ...]
    modules: tuple[tuple[Module, Path], ...]
    held: tuple[tuple[Any, Path], ...]
    unbound: tuple[Slot, ...] = ()
    counters: frozenset[str] = frozenset()  # names that the code only moves on (``+= 1``, ``.append(x)``)


class Slotted:
    """The attributes of an object whose class has ``__slots__``, read like a dict."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> Any:
        """The attribute; KeyError where it is not set."""
        try:
            return getattr(self.value, key)
        except AttributeError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self.value, key, value)

    def __delitem__(self, key: str) -> None:
        delattr(self.value, key)

    def get(self, key: str, default: Any = None) -> Any:
        """The attribute, or ``default``."""
        return getattr(self.value, key, default)

    def __iter__(self) -> Iterator[str]:
        """The attributes that are set."""
        names = (n for cls in type(self.value).__mro__ for n in _as_names(vars(cls).get("__slots__", ())))
        return (n for n in names if n not in ("__dict__", "__weakref__") and hasattr(self.value, n))


def _as_names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def attributes_of(value: Any) -> Any:
    """The own attributes of an object, as a dict-like view; None where it has none."""
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        return held
    return Slotted(value) if any("__slots__" in vars(cls) for cls in type(value).__mro__[:-1]) else None


def is_plain_object(value: Any) -> bool:
    """An instance of a class of the user's: neither a tensor, a module, a class or function, nor of a foreign library."""
    cls = type(value)
    if cls in (types.SimpleNamespace,):
        return True
    if isinstance(value, (torch.Tensor, Module, type, types.ModuleType, *_CONTAINERS)) or callable_code(value):
        return False
    return not is_foreign(cls) and attributes_of(value) is not None


def callable_code(value: Any) -> bool:
    """Is it a function, method or partial, whose code is looked at?"""
    return isinstance(value, (types.FunctionType, types.MethodType, functools.partial, types.BuiltinFunctionType))


class _Mentions(NamedTuple):
    """Names in a piece of code: globals, what it reads (attributes, but globals and cells too), attributes that it only
    calls, names that it only moves on (``n += 1``, ``tally[k] += 1``, ``log.append(n)``), code inside of it."""

    globals: tuple[str, ...]
    reads: frozenset[str]
    calls: frozenset[str]
    counted: frozenset[str]
    everything: bool  # it may read any attribute
    inside: tuple[types.CodeType, ...]


@functools.lru_cache(maxsize=4096)
def _mentions(code: types.CodeType) -> _Mentions:
    names: dict[str, None] = {}
    reads, calls, counted, texts = set[str](), set[str](), set[str](), set[str]()
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for k, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            names[step.argval] = None
        if _is_call(step):
            calls.add(step.argval)
        elif step.opname in _READS:
            moved = _moves_on(steps, k) or _moves_item_on(steps, k) or _grows(steps[k : k + 2])
            (counted if moved else reads).add(step.argval)
        elif step.opname == "LOAD_CONST" and type(step.argval) is str:
            texts.add(step.argval)
    if {"getattr", "hasattr"} & names.keys():
        reads |= {t for t in texts if t.isidentifier()}
    inside = tuple(c for c in code.co_consts if isinstance(c, types.CodeType))
    everything = bool("vars" in names or reads & {"__dict__", "__getattribute__"})
    return _Mentions(tuple(names), frozenset(reads), frozenset(calls), frozenset(counted), everything, inside)


_READS = ("LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")


def _moves_on(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Is the value that step ``k`` loads the left side of ``name += amount``, and nothing else?"""
    end = _added_to(steps, k)
    return end is not None and any(
        s.opname.startswith("STORE_") and s.argval == steps[k].argval for s in steps[end + 1 : end + 4]
    )


def _moves_item_on(steps: Sequence[dis.Instruction], k: int) -> bool:
    """Is it ``name[key] += amount``, with a key that is a constant or a local name?"""
    if len(steps) < k + 5 or steps[k + 1].opname not in (
        "LOAD_CONST",
        "LOAD_SMALL_INT",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
    ):
        return False
    copies = [s for s in steps[k + 2 : k + 4] if s.opname in ("COPY", "DUP_TOP_TWO")]
    item = k + 2 + len(copies)
    reads = steps[item].opname == "BINARY_SUBSCR" or (steps[item].opname == "BINARY_OP" and steps[item].argrepr == "[]")
    end = _added_to(steps, item) if copies and reads else None
    return end is not None and any(s.opname == "STORE_SUBSCR" for s in steps[end + 1 : end + 4])


def _added_to(steps: Sequence[dis.Instruction], k: int) -> int | None:
    """The step that adds to (or subtracts from) what step ``k`` leaves on the stack, in place, if that is what uses it."""
    depth = 0  # of the stack above it
    for j, step in enumerate(steps[k + 1 :], k + 1):
        if step.opcode in _JUMPS:
            return None
        if depth == 1 and (step.opname == "BINARY_OP" or step.opname.startswith(("BINARY_", "INPLACE_", "COMPARE_"))):
            adds = step.opname in ("INPLACE_ADD", "INPLACE_SUBTRACT") or step.argrepr in ("+=", "-=")
            return j if adds else None
        shuffles = step.opname in ("COPY", "SWAP", "DUP_TOP", "DUP_TOP_TWO") or step.opname.startswith("ROT_")
        if shuffles and (step.arg or 4) > depth:
            return None
        depth += dis.stack_effect(step.opcode, step.arg)
        if depth < 0:
            return None
    return None


_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


def _grows(steps: Sequence[dis.Instruction]) -> bool:
    """Is it ``name.append(...)`` or the like, of which the code sees nothing?"""
    return len(steps) == 2 and _is_call(steps[1]) and steps[1].argval in ("append", "extend", "add", "update")


def _is_call(step: dis.Instruction) -> bool:
    """Does it look up a method to call it?"""
    bit = sys.version_info >= (3, 12) and step.arg is not None and bool(step.arg & 1)
    return step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and bit)


def reach(function: Callable[..., Any], arguments: Iterable[tuple[Any, Path]] = ()) -> Reached:
    """What ``function`` reaches, and what plain objects among its arguments lead to."""
    walk = _Walk()
    walk.look(function, Path("self") if not isinstance(function, types.FunctionType) else Path("function"))
    for value, path in arguments:
        if is_plain_object(value):
            walk.look(value, path)
    walk.finish()
    counters = frozenset() if walk.everything else frozenset(walk.counted - walk.reads)
    return Reached(tuple(walk.slots), tuple(walk.modules), tuple(walk.held), tuple(walk.unbound), counters)


class _Walk:
    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.modules: list[tuple[Module, Path]] = []
        self.held: list[tuple[Any, Path]] = []
        self.unbound: list[Slot] = []
        self.objects: list[tuple[Any, Path]] = []
        self.reads, self.calls, self.counted, self.everything = set[str](), set[str](), set[str](), False
        self._slotted: set[tuple[int, str | None]] = set()
        self._seen: dict[int, Any] = {}
        self._codes: set[tuple[int, int]] = set()
        self._classes: dict[type, Any] = {}

    def finish(self) -> None:
        """Code names attributes, and attributes lead to code, until nothing is new."""
        before = -1
        while before != (now := len(self._slotted) + len(self._codes) + len(self._seen)) and now < _MOST:
            before = now
            for value, path in list(self.objects):
                self._attributes(value, path)

    def look(self, value: Any, path: Path) -> None:
        """What a slot, an item or an argument holds."""
        if isinstance(value, (torch.Tensor, types.ModuleType, str, bytes, int, float, complex, type(None))):
            return
        if id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen[id(value)] = value
        if value is ABSENT:
            return
        if isinstance(value, type):
            if not is_foreign(value):
                self.held.append((value, path))
                if not is_library(value):
                    self.objects.append((value, path))
        elif isinstance(value, Module):
            self._module(value, path)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.look(value.__func__, path)
            self.look(value.__self__, path)
        elif isinstance(value, functools.partial):
            self._items(((value.func), *value.args, *value.keywords.values()), path)
        elif isinstance(value, _CONTAINERS):
            self.held.append((value, path))
            self._items(value, path)
        elif isinstance(value, torch.optim.Optimizer):
            self._slot(vars(value), "param_groups", path.attr("param_groups"), value.param_groups)
        elif is_plain_object(value):
            self.held.append((value, path))
            self.objects.append((value, path))
        else:
            inner = getattr(value, "__dict__", {}).get("__wrapped__")  # of a region, of a cached function
            if isinstance(inner, types.FunctionType):
                self.held.append((value, path))
                self.look(inner, path)

    def _items(self, value: Any, path: Path) -> None:
        if len(value) <= _MOST_ITEMS:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self.look(item, path.item(key))

    def _slot(self, holder: Any, key: str | None, path: Path, value: Any, library: bool = False) -> None:
        """``library``: the place is an installed library's. There are hundreds of such; those are slots that may change."""
        if library and not isinstance(value, (torch.Tensor, Module)) and not is_simple(value):
            self.look(value, path)
        elif (id(holder), key) not in self._slotted:
            self._slotted.add((id(holder), key))
            self._seen.setdefault(id(holder), holder)  # keeps it alive, and its id
            self.slots.append(Slot(holder, key, path, value))
            self.look(value, path)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if not _is_own(code):  # a decorator's, such as that of torch.no_grad()
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):
                    self.look(cell.cell_contents, Path(function.__name__))
            return
        library = is_installed(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # an empty cell
                self._slot(cell, None, Path(name), cell.cell_contents, library)
        self._items(function.__defaults__ or (), Path(function.__name__))
        self._items(function.__kwdefaults__ or {}, Path(function.__name__))
        self._code(code, function.__globals__)

    def _code(self, code: types.CodeType, table: Mapping[str, Any]) -> None:
        if (id(code), id(table)) in self._codes:  # equal code of another module names other globals
            return
        self._codes.add((id(code), id(table)))
        said = _mentions(code)
        self.reads |= said.reads
        self.calls |= said.calls
        self.counted |= said.counted
        self.everything |= said.everything
        for name in said.globals:
            if name in table:
                self._slot(table, name, Path(name), table[name], is_installed(code))
            else:
                self.unbound.append(Slot(table, name, Path(name), ABSENT))
        for inner in said.inside:
            self._code(inner, table)

    def _module(self, root: Module, path: Path) -> None:
        """Its code, and what its attributes hold; its tensors, numbers and hooks have guards of their own."""
        self.modules.append((root, path))
        for name, module in root.named_modules():
            where = path
            for part in filter(None, name.split(".")):
                where = where.item(int(part)) if part.isdigit() else where.attr(part)
            self._seen.setdefault(id(module), module)
            foreign = is_foreign(type(module))
            if not foreign:
                self.objects.append((module, where))
                self._methods(type(module), ["forward"])
            for key, value in list(vars(module).items()):
                if key in HOOK_TABLES:
                    self._items(value, where.attr(key))
                elif key not in OF_EVERY_MODULE and not (foreign and key.startswith("_")):
                    self.look(value, where.attr(key))

    def _attributes(self, value: Any, path: Path) -> None:
        if isinstance(value, type):
            self._methods(value, [n for n in _methods_of(value) if n in self.reads | self.calls])
            for base in value.__mro__:
                if not is_foreign(base):
                    self._class(base, path, frozenset(), is_library(base))
            return
        own, cls = attributes_of(value), type(value)
        names = self.reads | self.calls
        self._methods(cls, [n for n in _methods_of(cls) if n in names or n.startswith("__")])
        if own is None:
            return
        library = is_library(cls) and cls is not types.SimpleNamespace
        for key in () if isinstance(value, Module) else list(own):
            if self.everything or key in self.reads or (key in self.calls and callable(own.get(key))):
                self._slot(own, key, path.attr(key), own.get(key), library)
            elif key in self.counted:
                self.look(own.get(key), path.attr(key))
        for base in cls.__mro__:
            if not is_foreign(base):
                if base not in self._classes:
                    self.held.append((base, Path(base.__qualname__)))
                for key in self._class(base, path, frozenset(own), library):
                    if not library and not isinstance(value, Module):  # which counts its attributes
                        self._slot(own, key, path.attr(key), ABSENT)

    def _class(self, base: type, path: Path, hidden: frozenset[str], library: bool) -> list[str]:
        """What a class holds, but for what an instance hides. Returns the names of what is compared."""
        table = self._classes.setdefault(base, vars(base))  # a new view in each call
        for key in sorted(self.counted & table.keys()):
            self.look(table[key], path.attr(key))
        values = (bool, int, float, complex, str, torch.Tensor, *_CONTAINERS)
        names = [k for k in sorted(self.reads & table.keys() - hidden) if isinstance(table[k], values)]
        for key in names:
            self._slot(table, key, path.attr(key), table[key], library)
        return names

    def _methods(self, cls: type, names: Iterable[str]) -> None:
        table = _methods_of(cls)
        for name in names:
            for function in table.get(name, ()):
                if id(function) not in self._seen:
                    self._seen[id(function)] = function
                    self._function(function)


def is_installed(code: types.CodeType) -> bool:
    """Is it the code of an installed library?"""
    return "site-packages" in code.co_filename


def _is_own(code: types.CodeType) -> bool:
    """Is it neither torch's, nor ours, nor of the standard library?"""
    name = code.co_filename
    standard = name.startswith(_STANDARD) and "site-packages" not in name
    return is_user_code(code) and not standard and not name.startswith("<frozen")


_SKIPPED = frozenset({"__init__", "__new__", "__repr__", "__str__", "__del__", "__init_subclass__"})


def _methods_of(cls: type) -> Mapping[str, tuple[types.FunctionType, ...]]:
    """The functions behind each name of a class: of a property its getter; those of base classes too (``super()``)."""
    if cls in _METHODS:
        return _METHODS[cls]
    found: dict[str, tuple[types.FunctionType, ...]] = {}
    for base in cls.__mro__:
        if not is_foreign(base):
            for name, held in vars(base).items():
                if name not in _SKIPPED:
                    found[name] = (*found.get(name, ()), *_functions_in(held))
    methods = _METHODS[cls] = {name: functions for name, functions in found.items() if functions}
    return methods


_METHODS: MutableMapping[type, Mapping[str, tuple[types.FunctionType, ...]]] = weakref.WeakKeyDictionary()


def _functions_in(held: Any) -> Iterator[types.FunctionType]:
    for value in (held, getattr(held, "fget", None), getattr(held, "__func__", None), getattr(held, "func", None)):
        if isinstance(value, types.FunctionType):
            yield value
