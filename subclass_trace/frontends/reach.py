"""What the code of a function reaches besides its arguments: closure cells, globals, attributes of plain objects.

Each such place is a `Slot`. What a slot holds decides what it means to a region: a tensor is an input, a module is a root
whose state are inputs, everything else is guarded. The walk is static. It starts at the function and goes on through

- code inside of it (comprehensions, lambdas, inner functions), and functions, methods and partials that it names;
- ``self``, other plain objects, and classes: those of their attributes whose names stand in the code that was reached, and
  all their methods with such names;
- items of lists, tuples and dicts.

Code of torch and of the standard library is taken as it is; which of the user's code it calls, and what it reads of
distributions, is told by `inside_torch`, and the hooks that it calls are looked into.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from .. import _torch
from ..capture.user_code import is_foreign, is_library
from ..runtime.guards import HOOK_TABLES, OF_EVERY_MODULE
from ..runtime.held import ABSENT, TEXTS, Slotted, container_behind, is_fixed, is_simple
from ..subclass.arguments import NAMESPACES
from ..subclass.context import is_buffer
from ..subclass.paths import Path
from ..subclass.protocol import is_plain, is_traceable
from .asked import ENVIRONMENT, Asked, answers_of, variables_of
from .inside_torch import held_for_torch, overrides_of
from .late_reach import LateParts
from .members import (
    CONTAINERS,
    SKIPPED,
    attributes_of,
    functions_in,
    imported_by,
    is_data_descriptor,
    is_installed,
    is_of_library,
    is_own,
    is_plain_object,
    is_short,
    is_thread_local,
    is_users_module,
    member_of,
    methods_of,
)
from .mentions import mentions
from .optimizers import hooks_around_steps, slots_of
from .reached import Reached as Reached
from .reached import Slot as Slot

Module = torch.nn.Module
#: a walk looks at no more objects and pieces of code than this: what lies beyond is taken as it is
_MOST = 2000
_MOST_ITEMS = 1000


def reach(
    function: Callable[..., Any],
    arguments: Iterable[tuple[Any, Path]] = (),
    by_value: Collection[int] = (),
) -> Reached:
    """What ``function`` reaches, and what plain objects and functions among its arguments lead to.

    ``by_value``: ids of objects whose attributes are compared as a whole.
    """
    walk = _Walk(by_value)
    walk.look(function, Path("self") if not isinstance(function, types.FunctionType) else Path("function"))
    for value, path in arguments:
        walk.look(value, path)
    walk.finish()
    counters = frozenset() if walk.everything else frozenset(walk.counted - walk.reads)
    found = tuple(walk.slots), tuple(walk.modules), tuple(walk.held), tuple(walk.unbound), tuple(walk.optimizers)
    unread = frozenset() if walk.everything else frozenset(walk.stored - walk.reads - walk.counted - walk.calls)
    called = walk.reads | walk.calls
    late = set() if walk.everything else walk.late.names(walk.methods.values()) - called - walk.counted - walk.stored
    on_nodes = "register_prehook" in called or {"grad_fn", "register_hook"} <= called
    return Reached(
        *found,
        counters,
        frozenset(walk.stored),
        unread,
        frozenset(late),
        on_nodes,
        tuple(walk.of_libraries),
        frozenset(walk.lessened),
    )


class _Walk:
    def __init__(self, by_value: Collection[int]) -> None:
        self._by_value = set(by_value)
        self.slots: list[Slot] = []
        self.modules: list[tuple[Module, Path]] = []
        self.held: list[tuple[Any, Path]] = []
        self.unbound: list[Slot] = []
        self.optimizers: list[tuple[torch.optim.Optimizer, Path]] = []
        self.objects: list[tuple[Any, Path]] = []
        self.reads, self.calls, self.counted, self.everything = set[str](), set[str](), set[str](), False
        self.lessened = set[str]()
        self.asked, self.texts, self.stored = set[str](), set[str](), set[str]()
        self._stepped = set[int]()
        self._slotted: set[tuple[int, str | None]] = set()
        self._theirs = set[int]()  # what code of libraries names
        self.late = LateParts()
        self._seen: dict[int, Any] = {}
        self._codes: set[tuple[int, int]] = set()
        self._classes: set[type] = set()
        self._of_bases: dict[type, frozenset[str]] = {}
        self._dunders: dict[type, set[str]] = {}
        self._checked: set[type] = set()
        self._tables: dict[Any, Any] = {}
        self.of_libraries: list[tuple[Any, Path]] = []
        self.named: list[tuple[Any, str | None, Path]] = []  # slots with tensors that have Python attributes
        self.methods: dict[type, Mapping[str, tuple[types.FunctionType, ...]]] = {}
        self._views: dict[int, Slotted] = {}

    def finish(self) -> None:
        """Code names attributes, and attributes lead to code, until nothing is new."""
        before = -1
        while before != (now := len(self._slotted) + len(self._codes) + len(self._seen)) and now < _MOST:
            before = now
            self._checked.clear()
            self.late.look(self.reads | self.calls)
            for value, path in list(self.objects):
                self._attributes(value, path)
                self._answers(value, path)
            if "step" in self.reads | self.calls:
                self._around_steps()
            for holder, name, path in self.named:
                self._set_on_tensor(holder, name, path)
            if not ENVIRONMENT.isdisjoint(self.reads | self.calls):
                for name, now in variables_of(self.texts):
                    self._place(os.environ, name, Path("os").attr("environ").item(name), now)

    def look(self, value: Any, path: Path) -> None:
        """What a slot, an item or an argument holds."""
        if isinstance(value, torch.Tensor) and is_plain(type(value)):
            value = type(value)
            self._names(value, path)
        if isinstance(value, (torch.Tensor, str, bytes, int, float, complex, type(None))):
            return
        if id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen[id(value)] = value
        if value is ABSENT:
            return
        if isinstance(value, type):
            if not is_foreign(value):
                if value not in self._classes:
                    self._classes.add(value)
                    self.held.append((value, path))
                if not is_library(value):
                    self.objects.append((value, path))
                if issubclass(value, torch.autograd.Function):  # `apply` calls these
                    self.calls |= {"forward", "setup_context", "jvp"}
                    self.late.hooks |= {"backward", "vjp"}
                    self.late.todo.append(lambda: self.calls.update(("backward", "vjp")))
        elif isinstance(value, types.ModuleType):
            if is_users_module(value):
                self.held.append((value, path))
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
            if not is_fixed(value.args):
                self._place(self._view(value), "args", path.attr("args"), value.args)
            self._place(self._view(value), "keywords", path.attr("keywords"), value.keywords)
        elif isinstance(value, CONTAINERS):
            self.held.append((value, path))
            self._items(value, path)
            if not is_library(type(value)) and hasattr(value, "__dict__"):  # a container of a class of the user's
                self.objects.append((value, path))
        elif is_buffer(value):
            self.held.append((value, path))
        else:
            self._object(value, path)

    def _names(self, cls: type, path: Path) -> None:
        """The names that a class of parameters has: one that comes to be may hide what every parameter has."""
        bases = [base for base in cls.__mro__ if base not in torch.nn.Parameter.__mro__]
        table = self._tables.setdefault((cls, "names"), Asked(lambda _: tuple(n for b in bases for n in vars(b))))
        self._place(table, "names", path.attr("__class__"), table["names"])

    def _object(self, value: Any, path: Path) -> None:
        inside = container_behind(value)
        if inside is not None:
            self.look(inside, path)
        if isinstance(value, torch.optim.Optimizer):
            self._slot(vars(value), "param_groups", path.attr("param_groups"), value.param_groups)
            self._optimizer(value, path)
        if isinstance(value, weakref.ref):
            self.look(value(), path)
        elif is_plain_object(value):
            self.held.append((value, path))
            self.objects.append((value, path))
            if id(value) not in self._by_value:
                self._place(self._view(value), "__class__", path.attr("__class__"), type(value))
        elif isinstance(inner := getattr(value, "__dict__", {}).get("__wrapped__"), types.FunctionType):
            self.held.append((value, path))  # a region, a cached function
            self.look(inner, path)
        elif is_of_library(value):
            if is_thread_local(value):
                self.held.append((value, path))
            self.objects.append((value, path))
            followed = is_thread_local(value) or isinstance(value, torch.optim.Optimizer)
            if isinstance(getattr(value, "__dict__", None), dict) and not followed:
                self.of_libraries.append((value, path))
        for key, held in held_for_torch(value) if id(value) not in self._by_value else ():
            self._slot(vars(value), key, path.attr(key), held)

    def _optimizer(self, value: torch.optim.Optimizer, path: Path) -> None:
        self.optimizers.append((value, path))
        self._slotted.add((id(vars(value)), "state"))  # no slot of its own: its parts have them
        for row in slots_of(value, path):
            self._seen.setdefault(id(row.holder), row.holder)
            self._place(row.holder, row.key, row.path, row.value)

    def _around_steps(self) -> None:
        """The hooks of optimizers run in ``step()``."""
        for owner, path in ((None, Path("torch.optim.Optimizer")), *self.optimizers):
            if id(owner) not in self._stepped:
                self._stepped.add(id(owner))
                row, hooks = hooks_around_steps(owner, path)
                self._place(row.holder, row.key, row.path, row.value)
                for hook in hooks:
                    self.look(hook, row.path)

    def _items(self, value: Any, path: Path) -> None:
        if len(value) <= _MOST_ITEMS:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                self.look(item, path.item(key))

    def _slot(self, holder: Any, key: str | None, path: Path, value: Any, library: bool = False) -> None:
        """``library``: the place is an installed library's. There are hundreds of such; those are slots that may change."""
        if library and not isinstance(value, (torch.Tensor, Module)) and not is_simple(value):
            if not (is_foreign(type(value)) and is_of_library(value)):  # such as a logger
                self._theirs.add(id(value))
                self.look(value, path)
        elif (id(holder), key) not in self._slotted:
            self._slotted.add((id(holder), key))
            self._seen.setdefault(id(holder), holder)  # keeps it alive, and its id
            self.slots.append(Slot(holder, key, path, value))
            if (
                isinstance(value, torch.Tensor) and vars(value) and not is_traceable(value)
            ):  # a wrapper's are its context
                self.named.append((holder, key, path))
            self.look(value, path)
        elif self.late.is_place(holder, key):
            self.look(value, path)

    def _place(self, holder: Any, key: str | None, path: Path, value: Any) -> None:
        """A slot that leads nowhere."""
        if (id(holder), key) not in self._slotted:
            self._slotted.add((id(holder), key))
            self.slots.append(Slot(holder, key, path, value))

    def _late_place(self, holder: Any, key: str | None, path: Path, value: Any) -> None:
        """A slot that leads to code which runs in backwards."""
        if (id(holder), key) not in self._slotted:
            self.late.places.add((id(holder), key))
            self._seen.setdefault(id(holder), holder)
            self._place(holder, key, path, value)
        self.late.todo.append(lambda: self._slot(holder, key, path, value))

    def _view(self, value: Any) -> Slotted:
        """What an object answers, as a table: the same one each time."""
        return self._views.setdefault(id(value), Slotted(value))

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if not is_own(code):  # a decorator's, such as that of torch.no_grad()
            table = vars(function).get("registry")
            if isinstance(table, types.MappingProxyType):  # of functools.singledispatch
                self._place(self._view(function), "registry", Path(function.__name__).attr("registry"), table)
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):
                    self.look(cell.cell_contents, Path(function.__name__))
            return
        library = is_installed(code)
        late = mentions(code).late_cells
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # an empty cell
                if name not in late:
                    self._slot(cell, None, Path(name), cell.cell_contents, library)
                elif callable(cell.cell_contents):
                    self._late_place(cell, None, Path(name), cell.cell_contents)
                else:
                    self.late.todo.append(
                        functools.partial(self._slot, cell, None, Path(name), cell.cell_contents, library)
                    )
        self._defaults(function, library)
        self._code(code, function.__globals__)

    def _defaults(self, function: types.FunctionType, library: bool) -> None:
        """What stands in a function beside its code, and the code itself: all of them can be assigned."""
        path, view = Path(function.__name__), self._view(function)
        defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
        self._items(defaults, path)
        if library:
            self._items(keywords, path)
            return
        self._place(view, "__code__", path.attr("__code__"), function.__code__)
        if defaults:
            self._place(view, "__defaults__", path.attr("__defaults__"), defaults)
        if keywords:
            self._place(view, "__kwdefaults__", path.attr("__kwdefaults__"), keywords)
        for key, value in keywords.items():
            self._slot(keywords, key, path.attr("__kwdefaults__").item(key), value)
        self.held.append((function, path))
        if vars(function).keys() - {"__wrapped__"} or mentions(function.__code__).asked:
            self.objects.append((function, path))

    def _code(self, code: types.CodeType, table: Mapping[str, Any]) -> None:
        if (id(code), id(table)) in self._codes:  # equal code of another module names other globals
            return
        self._codes.add((id(code), id(table)))
        said = mentions(code)
        self.reads |= said.reads
        self.calls |= said.calls
        self.counted |= said.counted
        self.lessened |= said.lessened
        self.asked |= said.asked
        self.stored |= said.stores
        self.texts |= set() if is_installed(code) else said.texts
        self.everything |= said.everything
        for name in said.globals:
            if name in table:
                self._slot(table, name, Path(name), table[name], is_installed(code))
            else:
                self.unbound.append(Slot(table, name, Path(name), ABSENT))
                if name in said.reads and not hasattr(builtins, name):  # the code may ask whether it is there
                    self._place(table, name, Path(name), ABSENT)
        for name in sorted(said.texts & table.keys()) if "globals" in said.globals else ():
            self._slot(table, name, Path(name), table[name], is_installed(code))
        for name in () if is_installed(code) else imported_by(said.imports, table):
            module = sys.modules.get(name, ABSENT)
            if module is ABSENT or (isinstance(module, types.ModuleType) and is_users_module(module)):
                self._slot(sys.modules, name, Path("sys").attr("modules").item(name), module)
        for inner in said.inside:
            self._code(inner, table)
        self.late.add(said, lambda inner: self._code(inner, table), self.reads)
        for name in sorted(said.late & table.keys()):
            self._late_place(table, name, Path(name), table[name])

    def _module(self, root: Module, path: Path) -> None:
        """Its code, and what its attributes hold; its tensors, numbers and hooks have guards of their own."""
        self.modules.append((root, path))
        if len(self.modules) == 1:
            self._of_all_modules()
        for name, module in root.named_modules():
            where = path
            for part in filter(None, name.split(".")):
                where = where.item(int(part)) if part.isdigit() else where.attr(part)
            self._seen.setdefault(id(module), module)
            foreign = is_foreign(type(module))
            if not foreign:
                self.objects.append((module, where))
                self._methods(type(module), ["forward"])
            if _torch.is_scripted(module):
                self._script(module, where)
            elif is_library(type(module)):
                self._forward(type(module))
            for name, parameter in module._parameters.items():
                self.look(parameter, where.attr(name))
            for key, value in list(vars(module).items()):
                if key in HOOK_TABLES and "backward" in key:
                    self.late.todo.append(functools.partial(self._items, value, where.attr(key)))
                elif key in HOOK_TABLES:
                    self._items(value, where.attr(key))
                elif key not in OF_EVERY_MODULE and not (foreign and key.startswith("_")):
                    self.look(value, where.attr(key))

    def _of_all_modules(self) -> None:
        """The hooks that run around each module; which they are has a guard of its own."""
        before, after, *of_backwards = _torch.GLOBAL_MODULE_HOOKS
        for table in (before, after):
            self._items(table, Path("torch.nn.Module").attr("hooks"))
        for table in of_backwards:
            self.late.todo.append(functools.partial(self._items, table, Path("torch.nn.Module").attr("hooks")))

    def _script(self, module: Module, path: Path) -> None:
        """What TorchScript reads of a module beside tensors."""
        for names, name in _torch.script_attributes(module, written=False):
            held = functools.reduce(getattr, names, module)
            self._place(
                self._view(held), name, functools.reduce(Path.attr, names, path).attr(name), getattr(held, name)
            )

    def _forward(self, cls: type) -> None:
        """Of the classes of libraries only ``forward`` is compared: it is what people replace."""
        base = next(b for b in cls.__mro__ if "forward" in vars(b))  # that of all modules, if no other
        self._place(self._table(base), "forward", Path(base.__qualname__).attr("forward"), vars(base)["forward"])

    def _table(self, cls: type) -> Any:
        """What a class holds, in the same view each time."""
        return self._tables.setdefault(cls, vars(cls))

    def _attributes(self, value: Any, path: Path) -> None:
        if isinstance(value, type):
            self._of_class(value, path)
            return
        own, cls = attributes_of(value), type(value)
        own = self._view(value) if type(own) is Slotted else own
        self._methods(cls, self._called(cls))
        if own is None:
            return
        library = is_library(cls) and cls not in (*NAMESPACES, types.ModuleType, types.FunctionType)
        everything = self.everything and cls is not types.ModuleType
        if cls is types.ModuleType and "__getattr__" in own:
            self._slot(own, "__getattr__", path.attr("__getattr__"), own["__getattr__"])
        for key in () if isinstance(value, Module) else list(own):
            grows = key in self.counted and isinstance(own.get(key), TEXTS)  # a text that grows is another one
            grows = grows or (key in self.lessened and isinstance(own.get(key), (set, dict)))
            if everything or key in self.reads or grows or (key in self.calls and callable(own.get(key))):
                if id(value) in self._by_value:
                    self.look(own.get(key), path.attr(key))
                else:
                    self._slot(own, key, path.attr(key), own.get(key), library)
                    if library and is_short(own.get(key)):
                        self._place(own, key, path.attr(key), own.get(key))
            elif key in self.counted:
                self.look(own.get(key), path.attr(key))
        if everything and type(own) is dict and id(value) not in self._by_value and not isinstance(value, Module):
            count = self._tables.setdefault((id(value), "count"), Asked(lambda _: len(own)))
            self._slot(count, "count", path.attr("__dict__"), len(own))
        bases, mine = [base for base in cls.__mro__ if not is_foreign(base)], frozenset(own)
        for base in bases:
            if base not in self._classes:
                self._classes.add(base)
                self.held.append((base, Path(base.__qualname__)))
            for key in self._class(base, path, mine, library):
                if id(value) not in self._by_value:
                    self._may_hide(value, own, key, path)
        if not library:
            self._not_there(value, own, [b for b in bases if not is_library(b)], path)
        if hasattr(cls, "__get__") and isinstance(own, dict):  # of a descriptor these may be names of attributes
            self.reads |= {v for v in own.values() if type(v) is str and v.isidentifier()}

    def _answers(self, value: Any, path: Path) -> None:
        """What an object answers that has no attributes for it."""
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler) and "get_last_lr" in self.calls | self.reads:
            self._slot(vars(value), "_last_lr", path.attr("_last_lr"), vars(value).get("_last_lr", ABSENT))
        if id(value) not in self._by_value | self._theirs and not isinstance(value, (Module, type)):
            for table, name, now in answers_of(value, self.reads | self.texts):
                known = self._tables.setdefault((id(value), name == "len"), table)
                self._slot(known, name, path.item(name), now)

    def _set_on_tensor(self, holder: Any, key: str | None, path: Path) -> None:
        """What somebody has set on a tensor that the code names, as far as the code names that; whichever tensor it is then."""

        def current() -> dict[str, Any]:
            tensor: torch.Tensor = holder.cell_contents if key is None else holder[key]
            return vars(tensor)

        table = self._tables.setdefault((id(holder), key), Asked(lambda name: current()[name]))
        for name, value in list(current().items()):
            if name in self.reads and is_simple(value):
                self._place(table, name, path.attr(name), value)

    def _of_class(self, cls: type, path: Path) -> None:
        """A class that the code names: it may ask it, call its methods, and make objects of it."""
        self._methods(cls, self._called(cls))
        if not is_foreign(type(cls)):
            self._methods(type(cls), self._called(type(cls)))
            for base in type.mro(type(cls)):
                if not is_foreign(base):
                    for key in self._class(base, path, frozenset(vars(cls)), is_library(base)):
                        if member_of(cls, key) is ABSENT:
                            self._slot(self._table(cls), key, path.attr(key), ABSENT)
        for base in cls.__mro__:
            if not is_foreign(base):
                self._class(base, path, frozenset(), is_library(base))
                for name in () if is_library(base) else ("__init__", "__new__"):
                    if name in vars(base):
                        self._slot(self._table(base), name, path.attr(name), vars(base)[name])
                        self._functions(functions_in(vars(base)[name]))
        self._overrides([base for base in cls.__mro__ if not is_library(base)])

    def _called(self, cls: type) -> list[str]:
        """The names of methods and properties of a class that the code may run."""
        if cls not in self.methods:
            self.methods[cls] = methods_of(cls)
        more = self._overriding(cls)
        return [n for n in self.methods[cls] if n in self.reads or n in self.calls or n in more or n.startswith("__")]

    def _overriding(self, cls: type) -> frozenset[str]:
        if cls not in self._of_bases:
            self._of_bases[cls] = overrides_of(cls)
        return self._of_bases[cls]

    def _class(self, base: type, path: Path, own: frozenset[str], library: bool) -> list[str]:
        """What a class holds, but for what an instance hides. Returns the names of what is compared."""
        table = self._table(base)
        for key in sorted(self.counted & table.keys()):
            self.look(table[key], path.attr(key))
        names = {k for k in self.reads & table.keys() if isinstance(table[k], _VALUES)}
        if not library and not is_library(base):
            names = self._compared(base)
        names = {k for k in names if k not in own or is_data_descriptor(table[k])}
        for key in sorted(names):
            self._slot(table, key, path.attr(key), table[key], library)
        for key in () if library else sorted(self.late.hooks & table.keys() - names):
            self._late_place(table, key, path.attr(key), table[key])
        return [k for k in sorted(names) if not k.startswith("__")]

    def _may_hide(self, value: Any, own: Any, key: str, path: Path) -> None:
        """An attribute of a class that an instance could hide, or that lies in a slot of the instance."""
        found = member_of(type(value), key)
        if isinstance(own, dict) and isinstance(found, types.MemberDescriptorType):
            self._slot(self._view(value), key, path.attr(key), getattr(value, key, ABSENT))
        elif isinstance(own, dict) and not is_library(type(value)) and not isinstance(value, Module):
            if not is_data_descriptor(found):  # a module counts its attributes
                self._slot(own, key, path.attr(key), ABSENT)

    def _not_there(self, value: Any, own: Any, bases: Sequence[type], path: Path) -> None:
        """What could come to be: an override between a class and the base that it inherits from, an attribute that the
        code asks for."""
        is_module = isinstance(value, Module)
        texts = self.texts if type(value) in NAMESPACES else self.asked  # ``"name" in namespace`` asks too
        asked = [n for n in sorted(texts) if member_of(type(value), n) is ABSENT]
        if bases and type(value) not in self._checked:
            self._checked.add(type(value))
            self._overrides(bases, {"__call__", "forward"} if is_module else ())
            for name in asked:
                self._slot(self._table(bases[0]), name, Path(bases[0].__qualname__).attr(name), ABSENT)
        computes = "__getattr__" in own or member_of(type(value), "__getattr__") is not ABSENT
        for name in () if is_module else sorted(self.reads) if computes else asked:  # a module counts its attributes
            if name not in own and member_of(type(value), name) is ABSENT and id(value) not in self._by_value:
                self._slot(own, name, path.attr(name), ABSENT)

    def _overrides(self, bases: Sequence[type], more: Iterable[str] = ()) -> None:
        """What each of these classes could hide of those behind it."""
        for k, base in enumerate(bases):
            names = {*more, *(n for b in bases[k + 1 :] for n in self._compared(b))}
            for name in sorted(names - self._table(base).keys()):
                self._slot(self._table(base), name, Path(base.__qualname__).attr(name), ABSENT)

    def _compared(self, base: type) -> set[str]:
        """The names of a class of the user's that are compared: what the code may read or call."""
        table: Mapping[str, Any] = self._table(base)
        if base not in self._dunders:
            functions = {k for k in table if k.startswith("__") and isinstance(table[k], types.FunctionType)}
            self._dunders[base] = (functions | ({"forward"} | self._overriding(base)) & table.keys()) - SKIPPED
        return self._dunders[base] | (((self.reads | self.calls) & table.keys()) - SKIPPED)

    def _methods(self, cls: type, names: Iterable[str]) -> None:
        if cls not in self.methods:
            self.methods[cls] = methods_of(cls)
        for name in names:
            self._functions(self.methods[cls].get(name, ()))

    def _functions(self, functions: Iterable[types.FunctionType]) -> None:
        for function in functions:
            if id(function) not in self._seen:
                self._seen[id(function)] = function
                self._function(function)


#: what is compared of a class of an installed library
_VALUES = (bool, int, float, complex, str, torch.Tensor, *CONTAINERS)
