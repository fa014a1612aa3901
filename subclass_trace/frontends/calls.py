"""One call of a region: its flat arguments with paths, and how to run the user function on traced ones."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import optree
import torch

from .. import _torch
from ..capture.aliasing import family
from ..capture.facts import holds_traced
from ..capture.inputs import Argument
from ..capture.lending import lendable
from ..capture.mutation import check_contexts, contexts_of
from ..capture.objects_made import is_makeable, looked_at, objects_made
from ..capture.region import RunFunction
from ..capture.run import Run
from ..capture.types_as_eager import types_as_eager
from ..errors import UnsupportedError
from ..plan import AppendPlan, AssignmentPlan, ContainerChange, OfResult
from ..runtime.codegen import Layout, StateSlot
from ..runtime.containers import change_containers, value_at_way
from ..runtime.guards import ModuleGuard, ModuleView, NameGuard
from ..runtime.held import ABSENT
from ..runtime.one_object import OneObject
from ..runtime.trees import twins_in
from ..subclass.arguments import AttributesOf, ObjectIdentity, ObjectState, argument_snapshot, has_own_equality
from ..subclass.flatten import flatten, leaves_of
from ..subclass.numbers import NumberPlace
from ..subclass.paths import Path
from ..subclass.protocol import is_plain, is_traceable, look_again
from ..subclass.spec import Spec
from .assignments import ModuleChange, replaced
from .class_code import class_guards
from .containers import (
    GivenContainers,
    HandedContainers,
    found_anew,
    path_of,
)
from .counting import left_out, read_late
from .exchanged import Pairs, exchanged, with_inner
from .identities import Asked, ids_as_eager
from .iterators import no_items_taken
from .managed_modules import check_flat_parameters, no_managed_modules
from .members import callable_code, is_plain_object
from .modules import Root, State, containers_of, named_tensors, names_of, original, roots_of, states_of, submodules
from .optimizers import Stored, stored_by
from .outcome import Outcome, with_kept
from .python_random import no_random_numbers
from .python_state import Change, effects_on
from .reach import Reached, Slot, reach
from .refused_results import check_error, no_other_attributes, no_written_arrays
from .stored_globals import no_traced_globals
from .torch_settings import SettingChange, settings_of_torch
from .weak_tables import no_weak_writes

Tensor = torch.Tensor
Optimizer = torch.optim.Optimizer


def flatten_tree(tree: Any) -> tuple[list[Any], Any]:
    """Flat leaves and structure of a user pytree: whatever is registered with optree or torch; None is structure."""
    return optree.tree_flatten(tree, namespace=_torch.pytree_namespace())


def argument_paths(tree: Any) -> list[Path]:
    """The path of each flat leaf of ``(args, kwargs)``."""
    out = []
    for accessor in tree.accessors():
        kind, *rest = accessor
        path = Path("args" if kind.entry == 0 else "kwargs")
        for entry in rest:
            text = entry.codify("")
            path = Path(path.root, (*path.steps, text))
        out.append(path)
    return out


class _Rebuilt(NamedTuple):
    """A view that is an argument, made anew of the traced base.

    ``layout`` is how it was before the function ran, ``attributes`` those it had, and ``known`` those that somebody had set.
    """

    real: Tensor
    view: Tensor
    layout: Any
    attributes: dict[str, Any]
    known: AttributesOf

    @staticmethod
    def of(real: Tensor, view: Tensor) -> _Rebuilt:
        known = AttributesOf(real, vars(view))
        for name, attribute in known.simple().items():
            setattr(view, name, attribute)
        return _Rebuilt(real, view, _layout(view), dict(vars(view)), known)

    def assigned(self) -> dict[str, Any]:
        """The attributes that the function has set."""
        new = vars(self.view).items()
        return {k: v for k, v in new if self.attributes.get(k, ABSENT) is not v and not _torch.is_memo(k)}


def _layout(view: Tensor) -> Any:
    leaves = leaves_of(view)
    rows = [(tuple(t.shape), tuple(t.stride())) for t in (view, *leaves) if t.layout is torch.strided]
    return rows, list(map(id, leaves)) if is_traceable(view) else []


@dataclass(frozen=True, eq=False)
class CallSite:
    """The flat view of one call.

    Attributes:
        flat: user leaves, then module states.
        tree: structure of ``(args, kwargs)``.
        paths: of the user leaves.
        states: the module slots behind the rest of ``flat``; ``names``: then the names of the function that hold tensors.
        roots: the module trees they belong to.
        given: ``args`` and ``kwargs``, whose containers the function may change; until the call is compiled.
        unfinished: what the function did to Python state before it raised an exception; ``unfinished_items``: to containers
            among the arguments.
        containers: the lists and dicts that are two arguments, or that the function reaches otherwise too.
        assigned_to: ids of what it assigned to.
        handed: the copies of containers that it was given.
        elsewhere: arguments that stand elsewhere too, or that the function has come upon in other ways.
        met: inputs of which the trace assumes which tensors they are; ``not_these``: ids that no other input has.
        rebuilt: the positions of views that are represented by their bases, and which attributes these have.
        views: the positions of all of them, and how they lie.
        function: what is called.
    """

    flat: list[Any]
    tree: Any
    user_count: int
    states: tuple[State, ...]
    roots: tuple[Root, ...]
    names: tuple[Slot, ...]
    reached: Reached
    given: list[Any] = field(default_factory=list)
    unfinished: list[Sequence[Change | SettingChange]] = field(default_factory=list)
    unfinished_items: list[tuple[ContainerChange, list[Any]]] = field(default_factory=list)
    containers: GivenContainers = field(default_factory=GivenContainers)
    assigned_to: set[int] = field(default_factory=set)
    handed: list[Any] = field(default_factory=list)
    elsewhere: list[Tensor] = field(default_factory=list)
    met: list[Tensor] = field(default_factory=list)
    not_these: set[int] = field(default_factory=set)
    rebuilt: dict[int, AttributesOf] = field(default_factory=dict)
    views: dict[int, Spec] = field(default_factory=dict)
    function: Callable[..., Any] | None = None

    @staticmethod
    def of_function(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallSite:
        """A call of ``function``, with all that it reaches by itself or through objects among the arguments."""
        leaves, tree = flatten_tree((args, kwargs))
        named = [callable_code(v) or isinstance(v, (type, types.ModuleType, torch.nn.Module)) for v in leaves]
        objects = [k for k, v in enumerate(leaves) if named[k] or is_plain_object(v) or isinstance(v, Optimizer)]
        objects += [k for k, v in enumerate(leaves) if isinstance(v, Tensor) and is_plain(type(v))]  # it has methods
        paths = argument_paths(tree) if objects else []
        by_value = {id(v) for k, v in enumerate(leaves) if not named[k] and not _is_one_object(v)}
        site = CallSite.of(args, kwargs, reach(function, [(leaves[k], paths[k]) for k in objects], by_value), function)
        site.given.extend((args, kwargs))
        return site

    @staticmethod
    def of(
        args: tuple[Any, ...], kwargs: dict[str, Any], reached: Reached, function: Callable[..., Any] | None = None
    ) -> CallSite:
        """Flatten a call; modules among the arguments are found here."""
        leaves, tree = flatten_tree((args, kwargs))
        found = roots_of(reached)
        parameters = (p for root in found for p in root.module.parameters())
        look_again({type(v) for v in (*leaves, *parameters, *[row.value for row in reached.slots])})
        names = named_tensors(reached)
        for leaf, path in _modules_among(leaves, tree):
            module = original(leaf)
            if not any(module is r.module for r in found):
                found.append(Root(module, path))
        check_flat_parameters(found)
        states = states_of(found) if found else []
        flat = [*leaves, *[s.read() for s in states], *[n.read() for n in names]]
        slots = tuple(states), tuple(found), tuple(names)
        given = GivenContainers.of(args, kwargs, reached)
        return CallSite(flat, tree, len(leaves), *slots, reached, containers=given, function=function)

    def layout(self) -> Layout:
        """How the generated entry finds the flat arguments."""
        children: list[tuple[Any, Any]] = []
        number: dict[int, int] = {}
        for root in self.roots:
            by_name: dict[str, torch.nn.Module] = {}
            for name, module in root.module.named_modules():
                by_name[name] = module
                if id(module) in number:
                    continue
                if module is root.module:
                    where = next((k for k, v in enumerate(self.flat[: self.user_count]) if v is module), None)
                    children.append(("root", None) if where is None else ("flat", where))
                else:
                    parent, _, own = name.rpartition(".")
                    children.append((number[id(by_name[parent])], own))
                number[id(module)] = len(children) - 1
        slots = tuple(StateSlot(number[id(s.owner)], s.table, s.name) for s in self.states)
        names = tuple((n.holder, n.key) for n in self.names)
        return Layout(self.tree, self.user_count, slots, tuple(children), _torch.pytree_namespace(), names)

    def module_view(self) -> ModuleView:
        """The modules of the call as guards see them."""
        modules: dict[int, ModuleGuard] = {}
        for root in self.roots:
            for module, _ in submodules(root):
                held = vars(module)
                added = frozenset(n for n in self.reached.counters if self.reached.only_adds(n, held.get(n)))
                unread = added | left_out(module, self.reached) | read_late(module, self.reached)
                modules.setdefault(id(module), ModuleGuard.of(module, unread))
        hooks = tuple(n for table in _torch.GLOBAL_MODULE_HOOKS for n in table) if modules else ()
        return ModuleView(tuple(modules.values()), self._slots(), hooks)

    def name_guards(self) -> list[NameGuard]:
        """What the names of the function hold, as guards see it."""
        return names_of(self.reached)

    @functools.cached_property
    def class_guards(self) -> Sequence[NameGuard]:
        """What the code of wrapper classes names, as it was before the call; see `class_code`."""
        return () if self.function is None else class_guards(self.function, self.flat, self.name_guards())

    def modules(self) -> list[tuple[torch.nn.Module, Path]]:
        """All modules of the call, with their paths."""
        return [row for root in self.roots for row in submodules(root)]

    def _slots(self) -> tuple[tuple[int, str, str], ...]:
        """What stands behind the user's leaves in ``flat``."""
        states = [(id(s.owner), s.table, s.name) for s in self.states]
        return (*states, *[(id(n.holder), "name", n.key or "") for n in self.names])

    @functools.cached_property
    def user_paths(self) -> list[Path]:
        """The paths of the user leaves."""
        return argument_paths(self.tree)

    def path(self, position: int) -> Path:
        """The path of a flat position."""
        if position >= self.user_count:
            k = position - self.user_count - len(self.states)
            return self.names[k].path if k >= 0 else self.states[k].path
        return self.user_paths[position]

    def arguments(self, bases: Sequence[Tensor] = ()) -> tuple[list[Argument], list[int | None]]:
        """The distinct tensors, and for each flat position its argument (None where it is no tensor).

        Views of a tensor in ``bases`` are represented by that base.
        """
        paths = [*self.user_paths, *[s.path for s in self.states], *[n.path for n in self.names]]
        named = self.user_count + len(self.states)
        arguments: list[Argument] = []
        positions: list[int | None] = []
        number: dict[int, int] = {}
        for position, value in enumerate(self.flat):
            if not isinstance(value, Tensor):
                positions.append(None)
                continue
            target = family(value) if any(family(value) is b for b in bases) else value
            if id(target) not in number:
                number[id(target)] = len(arguments)
                static = self.user_count <= position < named or isinstance(value, torch.nn.Parameter)
                arguments.append(Argument(target, paths[position], position, static, target is not value))
            positions.append(number[id(target)])
        return arguments, positions

    def constants(self) -> dict[int, Any]:
        """Flat arguments that are no tensors and no modules: guarded by value."""
        rows = enumerate(self.flat[: self.user_count])
        return {k: self._constant(v) for k, v in rows if not isinstance(v, Tensor)} | self.rebuilt

    def _constant(self, value: Any) -> Any:
        if _is_one_object(value):
            return ObjectIdentity(value)
        known = argument_snapshot(value)
        if isinstance(known, ObjectState):  # what the region assigns to it, it assigns to no other object
            known.pinned = not self.assigned_to.isdisjoint(known.owners())
        return known

    def deliver_unfinished(self) -> None:
        """The function raised an exception of its own: what it counted and assigned before that stands, as in eager."""
        for row in (row for rows in self.unfinished for row in rows):
            value = _torch.value_in_trace(row.value)
            if value is not None or row.value is None:
                plan = row.plan(0)
                if isinstance(plan, (AssignmentPlan, AppendPlan)):
                    plan = replace(plan, anew=False)  # no other call gets this one
                plan.deliver((), [value])
        if self.given:
            args, kwargs = self.given
            for change, new in self.unfinished_items:
                change_containers([change], args, kwargs, new)

    def _real(self, handed: Sequence[Any], value: Any) -> Any:
        """The caller's value for one of the trace; `ABSENT` for what the trace computes."""
        if isinstance(value, _torch.SYM_TYPES):
            known = _torch.value_in_trace(value)
            return ABSENT if known is None else known
        return next(
            (real for real, traced in zip(self.flat, handed, strict=True) if traced is value), _of_python(value)
        )

    def _readable(self) -> set[int]:
        """The ids of the containers that the function reaches, and reads as arguments."""
        leaves = [v for v in self.flat[: self.user_count] if isinstance(v, (list, dict, set, deque))]
        return {id(v) for v in (*self.containers.lent.values(), *leaves)}

    def one_object(self) -> OneObject:
        """Which of the containers of the call are one object."""
        args, kwargs = self.given or ((), {})
        return OneObject.of(args, kwargs, containers_of(self.reached, [m for m, _ in self.modules()]))

    def _check_containers(self, args: Any, kwargs: Any, before: Sequence[Any]) -> None:
        """The function got copies of the containers among its arguments: a change of them would be lost."""
        leaves, tree = flatten_tree((args, kwargs))
        if tree == self.tree and all(a is b for a, b in zip(leaves, before, strict=False)):
            return
        changed = [str(p) for p, a, b in zip(self.user_paths, leaves, before, strict=False) if a is not b]
        raise UnsupportedError(
            "the region changes a container among its arguments",
            path=changed[0] if changed and tree == self.tree else "args",
            expected="lists, dicts and other containers as they came in",
            got="an item that was added, removed or replaced",
            fix="return the new value instead",
        )

    def _check_apart(self, changes: Sequence[ContainerChange]) -> None:
        """A wrapper whose context holds one of the changed containers has a copy of the caller's."""
        held = {id(v) for value in self.flat for *_, v in lendable(value)} if changes else ()
        for change in changes:
            if id(container := value_at_way(self.given, change.keys)) in held:
                what, fix = _BY_ANOTHER_NAME
                raise UnsupportedError(what, path=path_of(change.keys), got=f"{container!r:.200}", fix=fix)

    def _check_rebuilt(self, made: Mapping[int, _Rebuilt]) -> None:
        """What changes a view other than its values, and its attributes, has no place in the plan: only its base is an input
        there."""
        for row in made.values():
            if not row.attributes.keys() <= vars(row.view).keys():
                raise UnsupportedError(
                    "the region deletes a Python attribute of an argument that is a view of another",
                    expected="attributes that are read and set",
                    got=", ".join(sorted(row.attributes.keys() - vars(row.view).keys())),
                    fix="delete it outside of the region",
                )
            if _layout(row.view) != row.layout:
                place = next(k for k, value in enumerate(self.flat) if value is row.real)
                raise UnsupportedError(
                    "the region changes the shape, or replaces an inner tensor, of an argument that is a view of another",
                    path=self.user_paths[place] if place < self.user_count else None,
                    expected="changes of the values of views whose base is an argument too and requires grad",
                    got=f"a view of shape {tuple(row.real.shape)} whose layout is another one after the call",
                    fix="change the shape out of place: y = x.t() instead of x.t_()",
                )

    def _handed(
        self,
        traced: Sequence[Tensor],
        arguments: Sequence[Argument],
        positions: Sequence[int | None],
        numbers: Mapping[NumberPlace, Any],
    ) -> tuple[list[Any], dict[int, _Rebuilt]]:
        """What the function is given for each flat argument, and the views that are made anew, by the ids of the real ones."""
        given = {place.position: n for place, n in numbers.items()}
        made: dict[int, _Rebuilt] = {}
        self.rebuilt.clear()
        self.views.clear()
        handed: list[Any] = []
        for k, (value, number) in enumerate(zip(self.flat, positions, strict=True)):
            if number is None:
                handed.append(given.get(k, value))
            elif arguments[number].value is value:
                handed.append(traced[number])
            else:  # a view of an argument that stands for its whole family
                if id(value) not in made:
                    made[id(value)] = _Rebuilt.of(value, _torch.view_function(value)(traced[number]))
                self.views[k] = flatten(made[id(value)].view)[1]
                if k < self.user_count:
                    self.rebuilt[k] = made[id(value)].known
                handed.append(made[id(value)].view)
        return handed, made

    def _tell(self) -> Callable[[Tensor], None]:
        """What is told of an input that the trace takes to be this very tensor."""
        rows = self.met, self.elsewhere  # the site itself would be in a cycle

        def tell(real: Tensor) -> None:
            for row in rows:
                row.append(real)

        return tell

    def _standing(self, handed: Sequence[Any]) -> tuple[Pairs, Pairs, Pairs]:
        """The inputs with what stands for them: arguments, what modules hold, and what names hold, where the real ones are;
        but a wrapper with a name stays there only if none of its inner tensors is another input."""
        first, last = self.user_count, self.user_count + len(self.states)
        rows = list(zip(self.flat, handed, strict=True))
        arguments, states = with_inner(rows[:first]), with_inner(rows[first:last])
        known = {id(real) for real, _ in (*arguments, *states)}
        shared = [row for row in rows[last:] if known.intersection(map(id, leaves_of(row[0])))]
        return arguments, [*states, *with_inner(shared)], with_inner((real, real) for real, _ in rows[last:])

    def _adopt(self, adopt: Callable[..., None], handed: Sequence[Any]) -> None:
        """Say which traced tensor each real one is, wherever the function comes upon it."""

        for real, value in zip(self.flat[: self.user_count], handed, strict=False):
            if isinstance(real, Tensor):
                adopt(real, value, self._tell())
        adopted = set()  # a tied parameter has several slots
        for real, value in zip(self.flat[self.user_count :], handed[self.user_count :], strict=True):
            if id(real) not in adopted:
                adopted.add(id(real))
                adopt(real, value)

    def runner(
        self, function: Callable[..., Any], arguments: Sequence[Argument], positions: Sequence[int | None]
    ) -> RunFunction:
        """Runs ``function`` once on traced tensors (one per argument); see `capture.region.capture`."""
        if self.given:
            self.containers.nodes.update(twins_in(tuple(self.given)))

        def run(
            traced: Sequence[Tensor],
            adopt: Callable[..., None],
            numbers: Mapping[NumberPlace, Any],
            lends: Callable[[Any], bool],
        ) -> Run:
            handed, made = self._handed(traced, arguments, positions, numbers)
            self._adopt(adopt, handed)
            args, kwargs = self.containers.placed(self.tree, handed[: self.user_count])
            states = handed[self.user_count : self.user_count + len(self.states)]
            self.unfinished.clear()
            self.unfinished_items.clear()
            self.not_these.clear()
            arrays = [(v, self.path(k)) for k, v in enumerate(self.flat[: self.user_count])]
            given, of_modules, named = self._standing(handed)
            objects = {id(v) for v in self.flat[: self.user_count] if is_makeable(v)}
            asked = Asked(self._tell(), self.met, self.not_these)
            with (
                no_traced_globals(function, self.reached),
                exchanged(self.reached, [function, *self.flat[: self.user_count]], given, of_modules) as elsewhere,
                no_weak_writes(self.reached),
                no_managed_modules(self.roots),
                no_random_numbers(self.reached),
                no_items_taken(self.reached),
                no_other_attributes(self.reached),
                no_written_arrays([*arrays, *self.reached.held]),
                settings_of_torch() as settings,
                effects_on(self.reached, self._readable(), lambda v: lends(v) or id(v) in objects) as effects,
                stored_by(self.reached, elsewhere.real) as stored,
                types_as_eager(_tables_without_type(self.reached)),
                replaced(self.roots, self.states, states) as assigned,
            ):
                self.elsewhere[:] = elsewhere.arguments
                containers = HandedContainers.of(args, kwargs)
                lent = {id(c) for c in self.containers.lent.values()}
                self.handed[:] = [c for _, c, _ in containers.rows if id(c) not in lent]
                before = flatten_tree((args, kwargs))[0]
                self.met[:] = elsewhere.items  # from here on the function adds those that it comes upon
                contexts = contexts_of((a.path, a.value) for a in arguments)
                there = looked_at((*args, *kwargs.values(), *handed))
                try:
                    with ids_as_eager(self.reached, (args, kwargs), given, [*of_modules, *named], asked):
                        results = [function(*args, **kwargs), *handed]
                    mine, others = objects_made(results)
                    result = results[0]
                    changes, new, places = containers.changes()
                    self._check_containers(args, kwargs, before)
                    check_contexts(contexts, *_BY_ANOTHER_NAME)
                    self._check_apart(changes)
                    del there
                except Exception as error:
                    check_error(error)
                    self.unfinished.extend(
                        (effects, settings)
                    )  # no state of optimizers: nothing has moved the parameters
                    self.unfinished_items[:] = containers.unfinished(functools.partial(self._real, handed))
                    raise
            self._check_rebuilt(made)
            rows: list[ModuleChange | Change | Stored | SettingChange] = [*assigned, *effects, *stored, *settings]
            mine, others = with_kept(results, rows, mine, others)
            outcome = Outcome(self.reached, self.flat[: self.user_count], containers, lends, mine, others, rows)
            results, tree, changed = outcome.results(result, changes, new, places)
            plans = outcome.plans(len(results))
            self.assigned_to.update(id(plan.owner) for plan in plans)
            plans = found_anew(plans, self.reached)
            flat = [*results, *[row.value for row in rows]]
            for rebuilt in made.values():
                plans += _attributes_plans(rebuilt, flat)
            return Run(flat, tree, handed, tuple(plans), changed, tuple(outcome.made), tuple(outcome.found))

        return run


_BY_ANOTHER_NAME = (
    "the region changes the flatten context of an input in place, or an object that it holds by another name",
    "give the wrapper an object of its own, or make the change before or after the call",
)


def _attributes_plans(row: _Rebuilt, results: list[Any]) -> list[AssignmentPlan]:
    """The attributes that were set on a view that its base stands for; it is a result for that alone, as are they."""
    assigned, owner = row.assigned(), len(results)
    if assigned:
        results += [row.view, *assigned.values()]
    return [AssignmentPlan(OfResult(owner), "__dict__", name, owner + 1 + k) for k, name in enumerate(assigned)]


def _tables_without_type(reached: Reached) -> list[dict[str, Any]]:
    """The globals of code that names ``type``, which it finds among the builtins; torch's own, which chooses kernels by it."""
    named = [row.holder for row in reached.unbound if row.key == "type" and type(row.holder) is dict]
    return [*named, _torch.foreach_globals()]


def _of_python(value: Any) -> Any:
    """A value without tensors is itself."""
    return ABSENT if holds_traced(value) else value


def _is_one_object(value: Any) -> bool:
    """Is it an object that is equal to itself alone? What the function reads of it is among what it reaches."""
    return is_plain_object(value) and not has_own_equality(type(value))


def _modules_among(leaves: Sequence[Any], tree: Any) -> list[tuple[torch.nn.Module, Path]]:
    if not any(isinstance(v, torch.nn.Module) for v in leaves):
        return []
    return [(v, p) for v, p in zip(leaves, argument_paths(tree), strict=True) if isinstance(v, torch.nn.Module)]
