"""One run of a function with the Python state around it: reads in while it runs, side effects out.

`StateRun` is the recorder of the run of a region's function, `BackwardState` that of a backward,
whose code (hooks, custom functions, wrapper classes) is the user's, too. What the code wrote is put
back afterwards, whatever happens.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import SideEffectError, SubclassTraceError, UnsupportedError
from ..plan import SideEffect
from ..stages import no_garbage_collection
from ..subclass.attributes import namespace_of
from ..subclass.values import ATOMS, is_a, is_atom
from ..torch_api.kinds import placement_types
from . import branches as branches
from . import c_callables as c_callables
from . import c_functions as c_functions
from . import c_names as c_names
from . import kinds
from . import operations as operations
from . import torch_flags as torch_flags
from . import torch_functions as torch_functions
from . import warned as warned
from .caller import Caller
from .current import set_current
from .guards import StateGuards
from .kinds import CONTAINERS, set_by_class
from .place import GONE, Place, Roots
from .rows import Row
from .side_effects import Recipes, printed, side_effects
from .unread import unread_arguments
from .values import MISSING
from .writes import Table, Written

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Run(Caller):
    """What a run of a region and one of a backward share.

    Attributes:
        warns: what only writes (logging) happens while tracing, with a warning; else it is refused.
        printed: what each call prints, or warns of: how, options, values.
        variables: context variables that were set, what they held, and what takes that back.
    """

    def __init__(self, make: Any, *, warns: bool) -> None:
        super().__init__(make)
        kinds.learn_numpy()
        ATOMS.update(placement_types())
        self.warns, self.stdout = warns, sys.stdout
        self.printed: list[tuple[Table, dict[str, Any], tuple[Any, ...]]] = []
        self.variables: dict[int, tuple[Any, Any, Any]] = {}
        self._live = False
        self.flags = torch_flags.FlagsOfRun()

    @property
    def is_live(self) -> bool:
        """Is code of the user's running, above the recorder of operations?"""
        return self._live

    def on(self) -> None:
        """Code of the user's runs from here."""
        self._live = True
        set_current(self)

    def off(self) -> None:
        """Code of torch's and of this package runs from here."""
        self._live = False
        set_current(None)

    def prepare(self, traced: torch.Tensor, real: torch.Tensor) -> None:
        """A stand-in has the plain attributes of the real tensor: torch's code looks at it, too."""
        own = self.own[id(traced)] = set_by_class(traced)
        space = vars(traced)
        for name, value in (namespace_of(real) or {}).items():
            if name not in own and name not in space:
                space[name] = value

    def changed(self) -> list[Written]:
        """What the run has written that is not as it was, or would not be in each call."""
        return [row for row in self.written.values() if self.differs(row, self.keeps)]

    def restore(self) -> None:
        """All that was written is as it was."""
        self.undo()
        for variable, before, token in self.variables.values():
            if variable.get(MISSING) is not before:
                variable.reset(token)
        self.variables.clear()

    def written_is_plain(self) -> bool:
        """Are there atoms alone in what was written?"""
        values = (v for written in self.written.values() for v in written.now.values())
        return all(map(is_atom, values)) and not self.variables

    def check_variables(self) -> None:
        """Context variables hold what they held.

        Raises:
            SideEffectError: one does not.
        """
        for variable, before, _ in self.variables.values():
            place = self.place_of(variable)
            read = None if place is None else self.child(place, "inner", "get")
            is_known = read is None or self.child(read, "call", ()) in self.noted
            if variable.get(MISSING) is not before or not is_known:  # it may hold another one then
                raise SideEffectError(
                    "the region sets a ContextVar",
                    code="context-variable-set",
                    path=variable.name,
                    fix="set it outside of the region",
                )

    def check_generator(self, generator: torch.Generator) -> None:
        """The region draws from this explicit generator.

        Raises:
            SideEffectError: it was not there before.
        """
        met = [
            g for g, _ in (*self.known.values(), *self.roots.values()) if type(g) is torch.Generator
        ]
        known: Any = (torch.default_generator, *met)
        # A call may wrap it in another object.
        cdata = generator._cdata  # type: ignore[attr-defined]
        if cdata not in {g._cdata for g in known}:
            raise SideEffectError(
                "the region draws from a random generator that it makes, and would go on with it",
                code="generator-made-inside",
                fix="make it outside of the region and pass it",
            )


class StateRun(_Run):
    """See the module's docstring.

    Args:
        function: what runs, with the positional and keyword arguments of ``call``.
        make: makes stand-ins (`frontends.traced_call`), once for each tensor.
    """

    def __init__(
        self, function: Callable[..., Any], call: tuple[Any, ...], make: Any, *, warns: bool
    ) -> None:
        super().__init__(make, warns=warns)
        self.function, self.roots_of_call = function, Roots(call[0], call[1], function)
        self.late: dict[int, tuple[Callable[[], Any] | None, Place]] = {}
        #: some functions of this package read no Python state, and none is looked for
        self.follows = not getattr(function, "has_no_state", False)

    def start(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The function itself and its arguments are roots; the arguments as they stand in the
        trace."""
        call = self.roots_of_call
        if self.follows:
            owner = getattr(self.function, "__self__", None)
            name = "self" if is_a(self.function, torch.nn.Module) else "f"
            root = Place(None, "self", None, name)
            self.at(root, self.function)
            if owner is not None and (at := self.place_of(owner)) is not None:
                at.name = "self"
        unread = (
            unread_arguments(self.function, len(call.args), call.kwargs) if self.follows else ()
        )

        def given(key: Any, value: Any) -> Any:
            free = key in unread and is_atom(value)
            return value if free else self.at(Place(None, "arg", key), value)

        args = tuple(given(k, v) for k, v in enumerate(call.args))
        return args, {k: given(k, v) for k, v in call.kwargs.items()}

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipes:
        """Run the function, and read off what it gave.

        Raises:
            SubclassTraceError: the first refusal, whatever code of the user's made of it.
            Exception: the function's own.
        """
        with no_garbage_collection():
            return self._run(args, kwargs)

    def _refuse_suspended(self) -> None:
        """Raise for a function of which a call runs nothing yet."""
        code = getattr(getattr(self.function, "__func__", self.function), "__code__", None)
        if getattr(code, "co_flags", 0) & _SUSPENDED:
            raise SideEffectError(
                "the function is a coroutine or a generator, of which a call runs nothing yet",
                code="iterator-handed-out",
                fix="compile a function that it calls",
            )

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipes:
        self.flags.start()
        flags: list[SideEffect] = []
        try:
            if self.follows:
                self._refuse_suspended()
                self.on()
                result = self.call(self.function, *args, **kwargs)
            else:
                self._live = True
                result = self.function(*args, **kwargs)
            flags = self.flags.effects(self)
        finally:
            self.off()
            self.flags.leave()
            if self.refusal is not None:
                raise self.refusal
        self.check_variables()
        self.check_copies()
        recipes = Recipes(self)
        recipes.result = recipes(result, "result")
        written = side_effects(self.written.values(), recipes)
        others = (*printed(self.printed, recipes), *flags)
        recipes.effects = (*written, *others)
        rows = self.written.values()
        changed = {row.place for row in rows if self.differs(row, self.is_as_before)}
        recipes.seen = (*(e for e in written if e.place in changed), *others)
        self._check_contexts(recipes)
        return recipes

    def _check_contexts(self, recipes: Recipes) -> None:
        """What the region changes is in no context of an input, of which the trace has a copy.

        Raises:
            UnsupportedError: it is.
        """
        if not recipes.effects:
            return
        changed = {id(self.owners.get(id(row.thing), row.thing)) for row in self.written.values()}
        for place, real in self.reals.values():
            own = self.own.get(id(self.stand_ins.get(id(real))), frozenset())
            held = (namespace_of(real) or {}).items()
            if any(id(value) in changed for name, value in held if name in own):
                raise UnsupportedError(
                    "the region changes an object in the context of an input, of which the "
                    "trace has a copy",
                    code="context-changed",
                    path=str(place),
                    fix="let the wrapper have a copy of its own",
                )

    def forget(self) -> None:
        """What only the trace needed: nothing leads to the tensors of the call, or to the traced
        ones."""
        for number, (thing, place) in list(self.known.items()):
            if place.moves or place.late or is_a(thing, torch.Tensor):
                del self.known[number]
                if not is_a(thing, torch.Tensor):
                    self._keep(number, thing, place)
        self.roots_of_call = Roots((), {}, self.function)
        self.stand_ins, self.reals, self.symbols, self.make, self.own = {}, {}, {}, None, {}
        self.written, self.walked, self.copies, self.arrays = {}, set(), [], {}

    def _keep(self, number: int, thing: Any, place: Place) -> None:
        """A backward that is traced later may come upon an object of the call, which nothing of
        ours shall keep alive."""
        try:
            self.late[number] = weakref.ref(thing), place
        except TypeError:  # a container
            parts = (
                thing.values() if is_a(thing, dict) else thing if is_a(thing, CONTAINERS) else ()
            )
            holds = any(not is_atom(part) for part in parts)
            self.late[number] = (None if holds else lambda: thing), place

    def objects_of_call(self) -> Iterator[tuple[int, Any, Place | None]]:
        """(id, object, place) of what the call held; no place: it can be told no more, but by its
        id."""
        for number, (find, place) in self.late.items():
            if find is None:
                yield number, None, None
            elif (thing := find()) is not None:
                yield number, thing, place


class BackwardState(_Run):
    """The Python state around the trace of a backward, whose code (hooks, custom functions,
    classes) runs again.

    What it reads is guarded by each use of the backward; what it changes is refused. It knows the
    places of the forward's objects; tensors that it comes upon are those of the trace, which it
    knows by identity.

    Attributes:
        guards: None where no code of the user's ran.
    """

    def __init__(self, forward: StateRun | None) -> None:
        super().__init__(None, warns=False)
        self.follows = True
        self.forward = forward
        self.guards: StateGuards | None = None
        self.gone: set[int] = set()
        self._call = Roots((), {}, None if forward is None else forward.function)
        if forward is not None:
            self.known, self.roots = dict(forward.known), dict(forward.roots)
            self.places = dict(forward.places)  # one object each, as those in `known` are
            for number, thing, place in forward.objects_of_call():
                if place is None:
                    self.gone.add(number)
                else:
                    self.known[number] = thing, place
            self.stand_ins, self.reals, self.own = forward.stand_ins, forward.reals, forward.own

    def place_of(self, thing: Any) -> Place | None:
        """Where an object was met first.

        Raises:
            UnsupportedError: it may be one of the call that was traced, which is not known any
                more.
        """
        if id(thing) in self.gone and id(thing) not in self.known:
            self.refuse(
                UnsupportedError(
                    "a backward reads a container among the arguments of its region",
                    code="backward-reads-arguments",
                    fix="pass its items",
                )
            )
        return super().place_of(thing)

    def _met_at(self, place: Place, value: Any) -> Place | None:
        """Where the forward has met it is compared, too: something else may stand there since."""
        first = super()._met_at(place, value)
        if first is None or not (first.moves or self._stands_at(first, value)):
            return None
        self.at(first, value)
        return first

    def _stands_at(self, place: Place, value: Any) -> bool:
        with contextlib.suppress(*GONE):
            return place.read(self._call) is value
        return False

    def _note_tensor(self, place: Place, value: torch.Tensor) -> None:
        """A tensor that was there before: what stands there when a backward runs is this very
        one."""
        if id(value) in self.reals:
            return
        if not place.moves:
            self.rows.append(Row("is", place, value))
        self.known.setdefault(id(value), (value, place))

    def finish(self) -> None:
        """Read off what the code did.

        Raises:
            SideEffectError: it changed Python state: each backward would have to, and the graph
                does not.
        """
        changed = self.changed()
        self.restore()
        self.check_copies()
        if self.printed:
            raise _changed_in_backward("what is printed, or warned of")
        for row in changed:
            raise _changed_in_backward(str(row.place))
        if self.rows:
            self.guards = StateGuards(self, self._call)
        if self.forward is not None:  # a backward of this one may come upon what it has met
            for number, (thing, place) in self.known.items():
                if not is_a(thing, torch.Tensor) and not place.moves:
                    self.forward.known.setdefault(number, (thing, place))
        self.known, self.forward, self.make = {}, None, None
        self.stand_ins, self.reals, self.own = {}, {}, {}


@contextlib.contextmanager
def backward_state(recorder: Any) -> Iterator[BackwardState]:
    """Inside, a backward is traced by ``recorder``.

    Raises:
        SubclassTraceError: a refusal, or a change of Python state.
    """
    with no_garbage_collection(), _backward_state(recorder) as state:
        yield state


@contextlib.contextmanager
def _backward_state(recorder: Any) -> Iterator[BackwardState]:
    forward = recorder.forward_state
    state = BackwardState(forward)
    if forward is not None and not forward.follows:
        yield state
        return
    try:
        state.flags.start()
        state.on()
        with recorder.during(state=state):
            yield state
    except BaseException as error:
        state.off()
        own = state.refusal is None and not isinstance(error, SubclassTraceError)
        if not (own and state.written_is_plain()):  # else it has done what it does in eager mode
            state.restore()
        raise (error if state.refusal is None else state.refusal) from None
    finally:
        state.off()
        state.flags.leave()
    if state.refusal is not None:
        state.restore()
        raise state.refusal
    state.finish()


def _changed_in_backward(path: str) -> UnsupportedError:
    """Dynamo traces what a hook does into its graph, once."""
    return UnsupportedError(
        "a hook or a custom backward changes Python state, as each backward would have to",
        code="backward-changes-state",
        path=path,
        expected="backwards that compute gradients",
        fix="do it outside of the backward",
    )
