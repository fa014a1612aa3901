"""One walk from a call to its sources, done while the function runs.

When a code object is entered for the first time, what its names reach (globals, cells, defaults, attributes) is walked and
snapshotted (``before`` of each holder), before its first instruction. Nothing else is ever walked, so that snapshot,
stand-ins and guards are one set, and the cost follows the code that ran. Objects are whole: all attributes of an instance,
a class, a function, a module. Names decide which globals, attributes of Python modules and of a library's objects count.

In: a function and its arguments, then code objects as they are entered. Out: `Walk.holders` and the lists besides it.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import enum
import functools
import gc
import operator
import random
import sys
import types
from collections.abc import Callable, Collection
from collections.abc import Mapping as MappingType
from collections.abc import Sequence as SequenceType
from typing import Any

import torch

from .. import torch_api
from ..errors import SideEffectError, UnsupportedError
from ..subclass.attributes import is_heap_type, namespace_of
from .code_names import COMPUTED, names_of, uses_of
from .entering import is_users
from .kinds import (
    CALLABLES,
    CONTAINERS,
    LOCKS,
    MODULE_TABLES,
    OF_C,
    OWN_PACKAGE,
    cannot_be_put_back,
    is_kept_by_torch,
    parts_of_c,
    refuse_managed,
    set_by_class,
)
from .source import Arguments, Bag, Cell, Holder, Mapping, Names, OfClass, Sequence, Source, Variable
from .values import ATOMS, MISSING, dict_of_class, is_a, is_walked

#: code -> the functions that have it, with their paths
Functions = MappingType[types.CodeType, SequenceType[tuple[types.FunctionType, str]]]
#: so many places, and no more; Llama with 32 layers has 10,500
LIMIT = 200_000
_BUILTINS = frozenset(vars(builtins))
_NOT_NAMESPACES = ("__builtins__", "__loader__", "__spec__")
#: a list of more plain values than this is compared in one go
_LONG = 64


class Walk:
    """The sources of one call, as far as the code that has been entered names them.

    Attributes:
        holders: the places, by the id of the thing.
        tensors, numbers: sources of tensors and of ints and floats, in the order in which they were met.
        functions, objects, bases, caches: what is guarded by identity of code, class, bases and counts.
        aliases: pairs of places inside of the arguments that hold one mutable object.
        entered: the code objects that ran.
        names: all that they name.
        by_code: the functions that were met. ``earlier``: in a backward those of the forward, which are the same in each call;
            others are found by their code.
    """

    def __init__(self, earlier: Functions | None = None) -> None:
        self.earlier = earlier
        self.by_code: dict[types.CodeType, list[tuple[types.FunctionType, str]]] = collections.defaultdict(list)
        self.generators: list[torch.Generator] = []
        self.arguments = Arguments()
        self.holders: dict[int, Holder] = {}
        self.tensors: list[tuple[Source, torch.Tensor]] = []
        self.numbers: list[Source] = []
        self.keyed: list[Holder] = []  # dicts of which tensors are keys
        self.functions: list[types.FunctionType] = []
        self.objects: list[Any] = []
        self.bases: list[tuple[type, tuple[type, ...]]] = []
        self.caches: list[tuple[str, Any, tuple[int, int]]] = []
        self.tables: dict[int, tuple[Names, str]] = {}  # id of parameters or buffers of a module -> where they are
        self.aliases: list[tuple[Source, Source]] = []
        self.entered: dict[types.CodeType, dict[str, Any]] = {}
        self.names: set[str] = set()
        self.computed = False  # code reads attributes by computed names
        self.replaced: Collection[str] = ()  # paths of what each call looks up, though a name leads there
        self.paths: dict[int, dict[str, Source | None]] = collections.defaultdict(dict)
        self.known: dict[int, Source | None] = {}  # id of each value that was met -> where
        self._alive: list[Any] = []  # so that an id stays what it is
        self._classes: set[type] = set()
        self._by_name: list[Names] = []  # for whose attributes code that computes names may ask
        self._waiting: dict[str, list[Names]] = collections.defaultdict(list)
        self.uses = collections.Counter[tuple[str, str]]()
        self._todo: collections.deque[tuple[Callable[..., None], Any, Any]] = collections.deque()
        self._count = 0

    def start(self, function: Any, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """The function itself and its arguments."""
        self.arguments.thing = call
        ATOMS.update(torch_api.placement_types())
        for name, table in torch_api.hooks_of_all().items():
            self.value(table, name)
        self.value(function, "self" if is_a(function, torch.nn.Module) else "f")
        for key, value in self.arguments.table(call).items():
            self.place(self.arguments, key, value)
        self.drain()

    def drain(self) -> None:
        """Walk what waits."""
        while self._todo or (self.computed and self._by_name):
            if self._todo:
                action, first, second = self._todo.popleft()
                action(first, second)
            else:
                self._plain_values(self._by_name.pop())

    # ------------------------------------------------------------------------------------------ code
    def enter(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Code runs for the first time: its names join, and what waits for them is walked.

        Raises:
            UnsupportedError: it has variables of an enclosing function that no name leads to, so that they are no sources;
                or it is Python of torch's that has to run in each call.
        """
        refuse_managed(code, space)
        self.entered[code] = space
        followed = is_walked(space.get("__name__"))
        self.uses.update(uses_of(code, followed))  # no global of torch's own is a list of the user's
        for name in names_of(code) - self.names:
            self._join(name)
        if followed:
            self.computed = self.computed or not COMPUTED.isdisjoint(code.co_names)
            self._globals(code, space)
        functions = self.by_code[code]
        if self.earlier is not None and not functions:
            known = [function for function, _ in self.earlier.get(code, ())]
            if code.co_freevars and not known and is_users(code.co_filename) and code.co_filename != "<string>":
                known = [f for f in gc.get_referrers(code) if type(f) is types.FunctionType]
            for function in known:
                self._function(function, function.__qualname__)  # which wakes it
        else:
            for function, path in functions:
                self._awake(function, path)
        self.drain()
        found = functions or self.earlier is not None or any(code in c.co_consts for c in self.entered)
        free = {*code.co_freevars} - {"__class__"}  # dataclasses make functions of theirs of text
        if followed and free and not found and code.co_filename != "<string>":
            raise UnsupportedError(
                "the region calls a function that closes over variables, and that no name leads to",
                path=f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})",
                expected="functions that arguments, globals, attributes, items or closures hold",
                fix="hold it in a variable, an attribute or a list that the region reads",
            )

    def _join(self, name: str) -> None:
        self.names.add(name)
        for holder in self._waiting.pop(name, ()):
            self._todo.append((self._want, holder, name))

    def _globals(self, code: types.CodeType, space: dict[str, Any]) -> None:
        holder = self._namespace(space, space.get("__name__", "globals"))
        names = set(code.co_names) if "globals" not in code.co_names else set(space)
        for name in names:  # an import inside of the function
            for full in (name, f"{space.get('__package__')}.{name}"):
                module = sys.modules.get(full)
                if module is not None and is_walked(full):
                    self.value(module, full)
        for name in names & space.keys():
            self._todo.append((self._want, holder, name))
        if added := names & (vars(builtins).keys() - _BUILTINS):
            holder = self._namespace(vars(builtins), "builtins")
            for name in added:
                self._todo.append((self._want, holder, name))

    def _function(self, function: types.FunctionType, path: str) -> None:
        if not is_walked(function.__module__) and not is_walked(function.__globals__.get("__name__")):
            for cell in function.__closure__ or ():  # a hook of torch's that calls one of the user's
                if types.FunctionType in map(type, held := gc.get_referents(cell)):
                    self.value(held[0], path)
            return
        self.by_code[function.__code__].append((function, path))
        self._opened(self._namespace(function.__dict__, path, owner=function))
        for key, value in enumerate(function.__defaults__ or ()):  # a tensor among them is no source
            self.value(value, f"{path}.__defaults__[{key}]")
        if function.__kwdefaults__:
            self.value(function.__kwdefaults__, f"{path}.__kwdefaults__")
        if function.__code__ in self.entered:
            self._awake(function, path)

    def _awake(self, function: types.FunctionType, path: str) -> None:
        self.functions.append(function)
        defaults = function.__defaults__ or ()
        if any(is_a(v, torch.Tensor) for d in defaults for v in ((d, *d) if is_a(d, tuple) else (d,))):
            raise UnsupportedError(
                "the region calls a function of which a tensor is a default",
                path=f"{path}.__defaults__",
                expected="tensors among the arguments, or in variables, attributes and containers",
                fix="let the default be None, and take the tensor from a variable",
            )
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            self._places(Cell, cell, name)

    # ------------------------------------------------------------------------------------------ namespaces
    def _namespace(self, thing: dict[str, Any], path: str, place: Source | None = None, owner: Any = None) -> Names:
        known = self.holders.get(id(thing))
        if isinstance(known, Names):
            return known
        holder = OfClass(owner, path) if is_a(owner, type) else Names(thing, path, place, owner)
        self._keep(holder, None if known is None else known.before)  # a dict that was met as a value is one too
        return holder

    def _opened(self, holder: Names) -> Names:
        """An object is whole, whatever names its attributes; a library's own, a class and a Python module go by names."""
        if holder.opened:
            return holder
        holder.opened, kind = True, type(holder.owner)
        by_name = holder.owner is None or isinstance(holder, OfClass)
        whole = not by_name and (
            is_walked(kind.__module__)
            or kind.__name__ in ("SimpleNamespace", "Namespace")
            or issubclass(kind, (types.FunctionType, torch.nn.Module))
            or kind in (torch.Tensor, torch.nn.Parameter)
        )
        if by_name and not holder.shallow:
            self._by_name.append(holder)
        for name, value in holder.before.items():
            if name in self.names or (whole and cannot_be_put_back(value) is None):
                self._todo.append((self._want, holder, name))
            else:
                self._waiting[name].append(holder)
        return holder

    def _plain_values(self, holder: Names) -> None:
        """Code reads attributes by names that it computes: the plain values of Python modules and classes are sources."""
        for name, value in holder.before.items():
            if not name.startswith("__") and (type(value) in ATOMS or is_a(value, torch.Tensor)):
                self._todo.append((self._want, holder, name))

    def _want(self, holder: Names, name: str) -> None:
        assert holder.guarded is not None
        if name in holder.guarded or name not in holder.before or name in _NOT_NAMESPACES:
            return
        value = holder.before[name]
        if holder.shallow:
            if type(value) in ATOMS:
                holder.guarded[name] = None
            return
        if name in MODULE_TABLES and is_a(holder.owner, torch.nn.Module):
            return
        foreign = holder.owner is not None and not is_walked(type(holder.owner).__module__)
        if foreign and cannot_be_put_back(value) is not None:
            return
        if type(value) in LOCKS and not is_users(holder.before.get("__file__") or ""):
            return  # a library sets something up under it, once
        if name in ("_parameters", "_buffers") and is_a(holder.owner, torch.nn.Module):
            self.tables[id(value)] = holder, name
        self.place(holder, name, value)

    def attributes_of(self, tensor: torch.Tensor, source: Source, stand_in: torch.Tensor) -> Names | None:
        """The plain attributes of a tensor, which its stand-in shall have meanwhile.

        What its class sets by itself, as the stand-in shows, follows from its inner tensors and its context, and is no source;
        but plain values are, which may have been changed since.
        """
        held = namespace_of(tensor)
        if held is None or id(held) in self.holders:
            return None
        named = source.holder.fixed and not source.items and not is_a(source.holder.owner, torch.Tensor)
        holder = Names(held, source.path, None if named else source, tensor)
        holder.live, holder.left_out = vars(stand_in), set_by_class(stand_in)
        self._keep(holder)
        self._opened(holder)
        self.drain()
        return holder

    # ------------------------------------------------------------------------------------------ values
    def _keep(self, holder: Holder, before: dict[Any, Any] | None = None) -> None:
        holder.before = holder.table(holder.thing) if before is None else before
        self.holders[id(holder.thing)] = holder
        holder.origin = self.known.get(id(holder.thing if holder.owner is None else holder.owner))
        self._alive.append(holder.thing)
        self._counted(1)

    def _counted(self, more: int) -> None:
        self._count += more
        if self._count > LIMIT:
            roots = collections.Counter(h.path.split(".")[0].split("[")[0] for h in self.holders.values())
            raise UnsupportedError(
                f"the region reaches more than {LIMIT:,} places of Python state",
                path=roots.most_common(1)[0][0],
                fix="compile a smaller function, or pass what it needs as arguments",
            )

    def _places(self, kind: type[Holder], thing: Any, path: str, place: Source | None = None) -> None:
        """A holder, all of which are sources; unless the walk has been there."""
        if id(thing) in self.holders:
            return
        holder = kind(thing, path, place)
        self._keep(holder)
        rows = holder.before
        if kind in (Sequence, Bag) and len(rows) > _LONG and ATOMS.issuperset(map(type, rows.values())):
            holder.guarded = None  # one comparison
            return
        for k, held in rows.items():
            self.place(holder, k, held)
            if kind is Mapping and type(k) not in ATOMS:
                self.value(k, f"{path}.key")
                if is_a(k, torch.Tensor) and holder not in self.keyed:
                    self.keyed.append(holder)

    def place(self, holder: Any, key: Any, value: Any) -> None:
        """The value at a key of a holder is a source."""
        if holder.guarded is not None:
            holder.guarded[key] = None
        self._counted(1)
        self.value(value, holder.text(key), Source(holder, key))

    def value(self, value: Any, path: str, source: Source | None = None) -> None:
        """Walk on from a value; ``source``: where each call finds it."""
        kind = type(value)
        if kind in ATOMS:
            if kind in (int, float) and source:
                self.numbers.append(source)
            return
        if value is MISSING:
            return
        if is_a(value, torch.Tensor):
            self._tensor(value, source)
        elif kind is frozenset or is_a(value, tuple):
            self._items(value, path, source)
        elif self._is_new(value, path, source):
            self._mutable(value, path, None if source is None or self._is_fixed(source) else source)

    def _is_fixed(self, source: Source) -> bool:
        """Does what stands there keep its identity from call to call?"""
        return source.holder.fixed and not (self.replaced and source.path in self.replaced)

    def _tensor(self, value: torch.Tensor, source: Source | None) -> None:
        if source:
            self.tensors.append((source, value))
        if id(value) not in self.known:
            self.known[id(value)] = source
            self._alive.append(value)
            if type(value) is not torch.Tensor and is_walked(type(value).__module__):
                self._join("__torch_function__")  # which it may come to have
                self._class(type(value))

    def _items(self, value: Any, path: str, source: Source | None) -> None:
        for k, item in enumerate(value):
            if type(item) in ATOMS and type(item) not in (int, float):
                continue
            inside = source and Source(source.holder, source.key, (*source.items, k))
            self.value(item, f"{path}[{k}]", inside)

    def _is_new(self, value: Any, path: str, source: Source | None) -> bool:
        self.paths[id(value)][path] = source
        if id(value) not in self.known:
            self.known[id(value)] = source
            self._alive.append(value)
            return True
        first = self.known[id(value)]
        if source is not None and first is not None and not (self._is_fixed(source) and self._is_fixed(first)):
            self.aliases.append((first, source))
        return False

    def _mutable(self, value: Any, path: str, place: Source | None) -> None:
        kind = type(value)
        if kind is torch.Generator:
            self.generators.append(value)
            return
        if torch_api.is_opaque_class(kind) and not is_a(value, enum.Enum):  # a mesh, whose tensors are ranks
            return
        for base, holding in ((dict, Mapping), ((list, collections.deque), Sequence), (set, Bag)):
            if is_a(value, base):
                self._class(kind)
                self._places(holding, value, path, place)
        if is_a(value, types.ModuleType) and kind.__module__.startswith("torch."):
            return  # torch.ops, which grows as it is asked, and torch's own settings
        if is_a(value, types.ModuleType):
            holder = self._namespace(vars(value), value.__name__)
            holder.shallow = not is_walked(value.__name__)  # its named entries are guarded, and not walked on from
            self._opened(holder)
        elif is_a(value, type):
            self._class(value)
        elif kind is types.FunctionType:
            self._function(value, path)
        elif kind in CALLABLES:
            self._of_c(value, path)
        elif (why := cannot_be_put_back(value)) is not None:
            raise SideEffectError(
                "the region names an object whose changes cannot be told or taken back",
                path=path,
                got=why,
                fix="make it inside of the region, or pass what it gives as an argument",
            )
        elif kind in (types.CellType, contextvars.ContextVar):
            self._places(Cell if kind is types.CellType else Variable, value, path)
        elif kind not in CONTAINERS and not is_a(value, random.Random) and not is_kept_by_torch(kind):
            self._instance(value, path, place)

    def _instance(self, value: Any, path: str, place: Source | None) -> None:
        kind = type(value)
        space = namespace_of(value)
        if (
            kind.__module__.startswith(OWN_PACKAGE)
            and not is_walked(kind.__module__)
            and not issubclass(kind, torch.nn.Module)
        ):
            if space is not None and "__wrapped__" in space:  # a region inside of this one
                self.value(space["__wrapped__"], path)
            return
        if space is not None:
            self._opened(self._namespace(space, path, place, owner=value))
        if place is None and (is_walked(kind.__module__) or is_a(value, torch.nn.Module)):
            self.objects.append(value)
        self._class(kind)
        if kind in (operator.attrgetter, operator.methodcaller):  # names that no code has
            self.computed = True
        if not is_heap_type(kind) and kind.__module__ in OF_C:
            self._of_c(value, path)

    def _of_c(self, value: Any, path: str) -> None:
        """An object of C that holds others: what calls a function, a view, a proxy."""
        if type(value) is functools._lru_cache_wrapper:
            self.caches.append((path, value, value.cache_info()[:2]))
        for part in parts_of_c(value):
            self.value(part, "self" if path == "f" and part is getattr(value, "__self__", None) else path)

    def _class(self, cls: type) -> None:
        for base in cls.__mro__:
            if base in self._classes or not is_walked(base.__module__):
                continue
            self._classes.add(base)
            self.bases.append((base, base.__mro__))
            if type(base) is not type and is_walked(type(base).__module__):
                self._class(type(base))
            holder = self._opened(self._namespace(dict_of_class(base), base.__qualname__, owner=base))
            for name, value in list(vars(base).items()):
                if name.startswith("__") and name.endswith("__") and callable(value):
                    self._todo.append((self._want, holder, name))

    # ------------------------------------------------------------------------------------------ what came out
    def forget(self) -> None:
        """What only the trace needed."""
        self.tensors, self._alive, self.known = [], [], {}
