"""`compile`: a function or module becomes a region that is traced through its wrapper tensors and compiled.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> @st.compile
... def f(x, y):
...     return (x * y).sin()
>>> x = TwoTensor(torch.zeros(2), torch.ones(2))
>>> type(f(x, x)).__name__, len(f.specializations)
('TwoTensor', 1)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

import torch
from torch.compiler import is_dynamo_compiling

from .. import verify
from .._torch.dynamo import never_compiled
from ..backends import resolve_backend
from ..backends.eager import compile_eager
from ..capture.mutation import NeedsAutogradBase
from ..capture.region import Captured, capture
from ..errors import ArgumentsError, GuardError, NeedsEager, OptionError, SubclassTraceError, UnsupportedError
from ..options import Options
from ..partition.interface import resolve_partitioner
from ..plan import Plan, SavedValue
from ..runtime.backward import TRACE_LOCK
from ..runtime.codegen import MISS, Entry, generate
from ..runtime.containers import delivered, taken
from ..runtime.guards import Ambient, Guards, caches_parametrizations, eager_reason, failed_guard
from ..runtime.one_object import KnownTensors
from ..runtime.reference import Program
from ..runtime.sizes import hint_of
from ..runtime.specialize import Graphs, alias_guard, build_program
from ..runtime.trees import unflatten_tree
from ..subclass.template import Examples
from .calls import CallSite
from .class_code import lasting
from .dynamic import SIZES, SizeHistory, choose, sizes_of
from .eagerly import EagerCalls
from .late_code import late_state
from .members import is_plain_object
from .modules import generators_of
from .numbers import NONE, Numbers, choices, constants_without, modules_without, names_without, numbers_of
from .python_state import left_alone

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Specialization:
    """One compiled instance of a region with the guards under which it is right. Immutable.

    Attributes:
        reason: why it was made: which guard of each earlier specialization failed.
        plan, guards: what the run time does, and when it may.
        graphs: the joint (if kept), forward and backward graph modules.
        made_numbers: sizes that could be symbols, and the code that takes them for numbers.
    """

    reason: str
    plan: Plan
    guards: Guards
    program: Program
    graphs: Graphs
    entry: Entry | None
    made_numbers: tuple[str, ...] = ()

    @property
    def source(self) -> str | None:
        """The generated entry; None where the reference interpreter serves the calls."""
        return None if self.entry is None else self.entry.source

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """What is saved for the backward."""
        return self.plan.saved

    def report(self) -> str:
        """A readable table: inputs and their leaves, outputs and how they are rewrapped, saved activations."""
        from ..report.text import describe

        return describe(self.plan)


#: so many specializations call for a warning
_MANY = 16
#: so many specializations are asked in the order in which they were made
_FEW = 4


class Region:
    """A compiled function. Call it like the function; it keeps one `Specialization` per kind of call.

    What it keeps for itself has names of the class alone (two underscores): all others are the function's own.
    """

    def __init__(self, function: Callable[..., Any], options: Options, *, keep_joint: bool = False) -> None:
        self.__function, self.__options, self.__keep_joint = function, options, keep_joint
        self.__entries: tuple[Specialization, ...] = ()
        self.__fast: tuple[Callable[..., Any], ...] = ()  # their generated entries
        self.__eagerly = EagerCalls()
        self.__history = SizeHistory()
        functools.update_wrapper(self, function, updated=())

    @property
    def function(self) -> Callable[..., Any]:
        """The function that it compiles."""
        return self.__function

    @property
    def options(self) -> Options:
        """How it compiles."""
        return self.__options

    @never_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the region, compiling it first if no specialization serves this call.

        Inside ``torch.compile`` it is a part of that graph, as a ``torch.compile`` inside another one is.
        """
        if is_dynamo_compiling():
            return self.__function(*args, **kwargs)
        fast = self.__fast
        for serve in fast:
            result = serve(args, kwargs)
            if result is not MISS:
                if len(fast) > _FEW and serve not in fast[:_FEW]:
                    self.__move_to_front(serve)
                return result
        return self.__slow_call(args, kwargs)

    def __move_to_front(self, serve: Callable[..., Any]) -> None:
        """Ask the one that served this call first next time: any that serves a call is right, and most calls repeat."""
        if TRACE_LOCK.acquire(blocking=False):  # while another thread compiles, the order can wait
            try:
                others = tuple(other for other in self.__fast if other is not serve)
                if len(others) < len(self.__fast):  # no reset() came between
                    self.__fast = (serve, *others)
            finally:
                TRACE_LOCK.release()

    def __slow_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason = eager_reason() or self.__eagerly.reason(args, kwargs)
        if reason is not None:
            return self.__eagerly.run(reason, self.__function, args, kwargs)
        site = CallSite.of_function(self.__function, args, kwargs)
        if caches_parametrizations(module for module, _ in site.modules()):
            reason = "torch.nn.utils.parametrize.cached() is active around the call"
            return self.__eagerly.run(reason, self.__function, args, kwargs)
        ambient = Ambient.now()
        entry = self.__find(site, ambient)
        if entry is not None:
            return self.__interpret(entry, site, args, kwargs)
        try:
            entry, site = self.__specialize(args, kwargs)
        except NeedsEager as refused:
            return self.__eagerly.run(self.__eagerly.refused(refused, args, kwargs), self.__function, args, kwargs)
        # As later calls: the engine shall meet one kind of backward from the first step on.
        result = MISS if entry.entry is None else entry.entry.call(args, kwargs)
        result = self.__interpret(entry, site, args, kwargs) if result is MISS else result
        if verify.ENABLED:
            verify.verify_state(root.module for root in site.roots)
        return result

    def __interpret(self, entry: Specialization, site: CallSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changes = entry.plan.containers
        held = taken(changes, args, kwargs)
        results = unflatten_tree(entry.plan.out_tree, entry.program(site.flat, (args, kwargs)))
        return delivered(changes, args, kwargs, results, held) if changes else results

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: bound to the instance."""
        return self if instance is None else functools.partial(self, instance)

    def __find(self, site: CallSite, ambient: Ambient) -> Specialization | None:
        modules = site.module_view()
        for entry in self.__entries:
            if failed_guard(entry.plan, entry.guards, site.tree, site.flat, ambient, modules, site.given) is None:
                return entry
        return None

    # ---------------------------------------------------------------- compiling
    def specialize(self, *args: Any, **kwargs: Any) -> Specialization:
        """The specialization for such a call, compiled now if there is none; nothing runs on the arguments' data.

        Raises:
            UnsupportedError: the call would run eagerly, because of what is active around it.
        """
        reason = eager_reason()
        if reason is not None:
            raise UnsupportedError("this call would run eagerly", got=reason, fix="leave that mode or transform first")
        return self.__specialize(args, kwargs)[0]

    def __specialize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Specialization, CallSite]:
        with TRACE_LOCK, _no_garbage_collection():
            # Another thread may have compiled it meanwhile; and while it did, module slots held its traced tensors.
            site = CallSite.of_function(self.__function, args, kwargs)
            ambient = Ambient.now()
            entry = self.__find(site, ambient)
            if entry is None:
                self.__check_arguments(args, kwargs)
                self.__check_count(site, ambient)
                entry = self.__compile(site, ambient)
                site.given.clear()  # the site lives on
                self.__entries = (*self.__entries, entry)
                if len(self.__entries) == _MANY:
                    self.__warn(entry.reason)
                if entry.entry is not None:
                    self.__fast = (*self.__fast, entry.entry.call)
            return entry, site

    def __warn(self, reason: str) -> None:
        name = getattr(self.__function, "__qualname__", None) or type(self.__function).__qualname__
        newest = reason.split("; ")[-1]
        warnings.warn(
            f"the region {name} has {_MANY} specializations; each costs a compilation, and "
            f"{self.__options.max_specializations} are the limit. The last one was made because of {newest}. "
            "See region.explain()",
            stacklevel=2,
        )

    def __compile(self, site: CallSite, ambient: Ambient) -> Specialization:
        """With symbols for the numbers and sizes that differ between calls; with what they are, where such a trace fails."""
        numbers = self.__history.of_call(numbers_of(site), self.__options)
        entry: Specialization | None = None
        why = ""
        for chosen, sizes in [*((n, True) for n in choices(numbers)), (NONE, False)]:
            try:
                entry = self.__compile_with(site, ambient, chosen, sizes)
            except Exception as error:  # one of the function itself comes again
                if not (sizes and self.__history.has_symbols):
                    if not isinstance(error, SubclassTraceError):
                        site.deliver_unfinished()  # what the function did before; the tries before have taken theirs back
                    raise
                why = _told(error)
                continue
            backwards = entry.program.backwards
            if backwards is None or backwards.compiled or backwards.is_freed or not self.__history.has_symbols:
                break
            why = "torch may know no derivative for a symbol"  # ``x ** n``
        assert entry is not None
        if why:
            fixed = [str(place.path) for place in numbers if place not in chosen] + [SIZES] * (not sizes)
            self.__history.fix_all(fixed, f"what only numbers serve ({why})")
        return entry

    def __compile_with(self, site: CallSite, ambient: Ambient, numbers: Numbers, sizes: bool) -> Specialization:
        options = self.__options
        backend = resolve_backend(options.backend, fw_compiler=options.fw_compiler, bw_compiler=options.bw_compiler)
        partitioner = resolve_partitioner(options.partitioner, options.activation_memory_budget)
        table = options.table(backend)
        of_classes = site.class_guards
        captured, arguments, positions = self.__capture(
            site, table, numbers, backend.backward is not compile_eager, sizes
        )
        program, graphs = build_program(
            captured,
            arguments,
            positions,
            dict(site.views),
            backend,
            partitioner,
            keep_joint=self.__keep_joint,
            keep_input_mutations=options.keep_inference_input_mutations,
        )
        captured.session.no_branch_on_floats()
        places = [row.place for row in program.plan.symbols if row.place is not None]
        inputs = [a.value for a in arguments] + [c.value for c in captured.closed_over]
        view, one_object, names = site.module_view(), site.one_object(), site.name_guards()
        names += left_alone(site.reached, program.plan.assignments)
        names += lasting(of_classes, [entry.guards.names for entry in self.__entries])
        guards = Guards(
            replace(
                ambient,
                dtensor=captured.session.dtensor_modes(),
                attention=ambient.attention if captured.session.meets_attention() else None,
            ),
            site.tree,
            constants_without(site.constants(), places),
            alias_guard(captured, inputs),
            modules_without(view.modules, places),
            view.states,
            names_without(names, places),
            view.hooks,
            one_object,
            KnownTensors.of(program.plan, site.flat, [*one_object.tensors, *site.met], site.not_these),
        )
        if program.backwards is not None:
            program.backwards.narrow = functools.partial(self.__narrow, program)
        examples = Examples(captured.session.mode, hint_of)
        with torch.no_grad():
            entry = generate(program, guards, site.layout(), site.flat, examples)
        made_numbers = captured.session.made_numbers.reasons((i.traced, i.path) for i in captured.inputs)
        reason = self.__reason(site, ambient)
        return Specialization(reason, program.plan, guards, program, graphs, entry, made_numbers)

    def __narrow(self, program: Program, conditions: tuple[Any, ...]) -> None:
        """A backward of this specialization, made to be differentiated, fixes sizes: it serves no others from now on."""
        with TRACE_LOCK:
            calls = {id(e.entry.call) for e in self.__entries if e.program is program and e.entry is not None}
            self.__fast = tuple(serve for serve in self.__fast if id(serve) not in calls)
            self.__entries = tuple(
                replace(e, entry=None, plan=replace(e.plan, conditions=(*e.plan.conditions, *conditions)))
                if e.program is program
                else e
                for e in self.__entries
            )

    def __capture(
        self,
        site: CallSite,
        table: dict[Any, Any],
        numbers: Numbers = NONE,
        copies: bool = True,
        sizes: bool = True,
    ) -> tuple[Captured, list[Any], list[int | None]]:
        bases: list[torch.Tensor] = []
        while True:
            arguments, positions = site.arguments(bases)
            if self.__options.automatic_dynamic:
                self.__history.add(sizes_of(arguments))
            dynamic, any_dynamic = choose(arguments, self.__history, self.__options.dynamic, numbers, sizes)
            self.__history.has_symbols = any_dynamic
            run = site.runner(self.__function, arguments, positions)
            try:
                found = capture(
                    run,
                    arguments,
                    dynamic=dynamic,
                    any_dynamic=any_dynamic,
                    decompositions=table,
                    generators=generators_of(site.reached, site.flat),
                    late=late_state(site.reached, site.handed, copies),
                )
                return found, arguments, positions
            except NeedsAutogradBase as again:
                bases.append(again.base)
            except TypeError:  # a symbolic stride has no hash, and operators say that they do not support the class
                if not getattr(dynamic, "frees_sizes", False) or self.__history.fixed_strides:
                    raise
                self.__history.fixed_strides = True

    def __check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function = self.__function.forward if isinstance(self.__function, torch.nn.Module) else self.__function
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsError(
                f"the arguments do not fit {getattr(function, '__qualname__', function)}: {error}",
                expected=str(signature),
                got=f"{len(args)} positional and the keywords {sorted(kwargs)}",
                fix="call the compiled function with the arguments of the original",
            ) from None

    def __check_count(self, site: CallSite, ambient: Ambient) -> None:
        if len(self.__entries) >= self.__options.max_specializations:
            from ..report.text import advice

            objects = [v for v in site.flat[: site.user_count] if is_plain_object(v)]
            raise GuardError(
                f"the region has {len(self.__entries)} specializations already; each call seems to need another",
                expected=f"at most max_specializations={self.__options.max_specializations}",
                got=self.__last_reasons(site, ambient),
                fix=advice(self.__entries, self.__history.fixed, objects),
            )

    def __reason(self, site: CallSite, ambient: Ambient) -> str:
        if not self.__entries:
            return "first call"
        modules = site.module_view()
        rows = [
            failed_guard(e.plan, e.guards, site.tree, site.flat, ambient, modules, site.given) for e in self.__entries
        ]
        return "; ".join(f"[{k}] {row}" for k, row in enumerate(rows))

    def __last_reasons(self, site: CallSite, ambient: Ambient) -> str:
        """Of the newest three: with a low limit as with a high one, that tells what keeps changing."""
        modules = site.module_view()
        first = max(len(self.__entries) - 3, 0)
        rows = [
            f"[{k}] {failed_guard(e.plan, e.guards, site.tree, site.flat, ambient, modules, site.given)}"
            for k, e in enumerate(self.__entries[first:], first)
        ]
        return "; ".join(rows) + (f"; and {first} more before these" if first else "")

    # ---------------------------------------------------------------- looking at it
    @property
    def specializations(self) -> list[Specialization]:
        """The specializations made so far, oldest first."""
        return list(self.__entries)

    def explain(self) -> str:
        """Why each specialization exists, what it guards, and which calls ran eagerly and why."""
        from ..report.text import explain

        return explain(self.__entries, self.__eagerly.counts, self.__history.fixed)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the function's own: ``parameters()``, ``train()``, ``state_dict()`` of a module."""
        if name.startswith("_Region__") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.__function, name)

    def __repr__(self) -> str:
        """The function and how many specializations there are."""
        name = getattr(self.__function, "__qualname__", None) or type(self.__function).__qualname__
        return f"<region {name}, {len(self.__entries)} specializations>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the function and the options; specializations are made anew."""
        return type(self), (self.__function, self.__options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        """A region for a copy of the function, without specializations."""
        return type(self)(copy.deepcopy(self.__function, memo), self.__options)

    def reset(self) -> None:
        """Forget all specializations."""
        with TRACE_LOCK:  # else a thread that puts the entries in another order would bring them back
            self.__entries, self.__fast = (), ()
            self.__history = SizeHistory()
            self.__eagerly = EagerCalls()


def _told(error: Exception) -> str:
    """What an error says, in a line, and where."""
    text = " ".join(str(error).partition("\n")[0].split())[:200] or type(error).__name__
    path = getattr(error, "path", None)
    return text if path is None else f"{text}, at {path}"


def captured_for(
    region: Region, site: CallSite, decompositions: dict[Any, Any]
) -> tuple[Captured, list[Any], list[int | None]]:
    """What a region captures for a call, without numbers as symbols; with the arguments and their places."""
    capture: Callable[..., Any] = region._Region__capture
    return capture(site, decompositions)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Capture and partition make many live objects; collecting among them costs a third of the time and frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:  # else the caller froze objects, which unfreeze would release
                gc.freeze()  # there and back: what was made here is old at once, so that enabling does not
                gc.unfreeze()  # set off a full collection over all of it
            gc.enable()


#: no function is given: ``None`` would be one that somebody forgot to return
_DECORATOR: Any = object()


@overload
def compile(function: F, **options: Any) -> Region: ...


@overload
def compile(**options: Any) -> Callable[[Callable[..., Any]], Region]: ...


def compile(function: Any = _DECORATOR, **options: Any) -> Any:
    """Compile a function or module, tracing through the wrapper tensors that it works on.

    The function runs once per specialization on traced values (as with ``jax.jit`` or ``aot_function``): Python side
    effects happen then, except for what it counts, appends and assigns, and control flow on values is refused with the line.

    Args:
        function: a function, a method or an ``nn.Module``, whose region is a module as well (`ModuleRegion`); without it,
            a decorator is returned.
        **options: see `Options`: ``backend``, ``dynamic``, ``partitioner``, ``activation_memory_budget``,
            ``decompositions``, ``keep_inference_input_mutations``, ...

    Raises:
        OptionError: an unknown option or value.
    """
    if function is _DECORATOR:
        return lambda f: compile(f, **options)
    if not callable(function):
        raise OptionError(
            "there is nothing to compile",
            expected="a function, a method or an nn.Module",
            got=repr(function),
            fix="write st.compile(function, backend=...) or @st.compile(backend=...)",
        )
    return region_of(function, make_options(options))


def region_of(function: Callable[..., Any], options: Options, *, keep_joint: bool = False) -> Region:
    """The region of a function; of a module one that is a module (`ModuleRegion`)."""
    if not isinstance(function, torch.nn.Module):
        return Region(function, options, keep_joint=keep_joint)
    from .module_region import class_of_region

    return class_of_region(function)(function, options, keep_joint=keep_joint)


_ELSEWHERE = {
    "fullgraph": "a region always is one graph: leave the option out",
    "mode": "choose a backend, a partitioner and an activation_memory_budget instead",
    "options": "pass a compiler of your own: backend=lambda gm, example_inputs: ...",
}


def make_options(options: dict[str, Any]) -> Options:
    """`Options` from keywords.

    Raises:
        OptionError: an unknown name, with the nearest known one.
    """
    import difflib
    from dataclasses import fields

    known = [f.name for f in fields(Options)]
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            fix = f"did you mean {close[0]!r}?" if close else _ELSEWHERE.get(name)
            raise OptionError(f"unknown option {name!r}", expected=f"one of {known}", got=name, fix=fix)
    return Options(**options)
