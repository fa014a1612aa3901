"""A region: a function with its compiled instances, and the front end that serves each call.

A call goes through the generated entries first. A miss is traced under the lock; a refusal of the
trace, or a limit, hands the region over to Dynamo (`hand_over`), unless ``frontend="trace"``.
"""

from __future__ import annotations

import copy
import functools
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.compiler import is_dynamo_compiling

from .. import policy
from ..artifacts import saved
from ..artifacts.cache import Cache
from ..artifacts.graph_cache import graph_cache_of
from ..artifacts.readable import save_source
from ..artifacts.source import Source
from ..capture.user_code import is_interruption
from ..errors import GuardError, LimitError, Reason, SubclassTraceError, UnsupportedError
from ..options import Options
from ..report.events import compiled
from ..report.names import name_of
from ..runtime.backward import OnFirstUse
from ..runtime.entry_code import MISS
from ..runtime.frozen import refreeze
from ..runtime.guards import Ambient, eager_reason
from ..runtime.trace_lock import TRACE_LOCK
from ..stages import no_garbage_collection, working
from ..state.guards import changed_since
from ..state.place import Roots
from ..torch_api.assertions import OtherBranch
from ..torch_api.autograd import saved_tensor_hooks_active
from ..torch_api.dynamo import (
    check_stance,
    dynamo_lock,
    eager_by_stance,
    never_compiled,
    reset_with_dynamo,
)
from ..torch_api.lines import warn_user
from ..torch_api.structured import trace_is_written
from .compile_call import compile_call, from_description
from .dynamic import SizeHistory
from .eagerly import EagerCalls
from .equal_modules import remember
from .hand_over import HandOver
from .routes import Route, compiles_ahead, route_of
from .specialization import Specialization
from .stored import Unverified, without_a_trace
from .traced_call import Arguments

_OTHER_VALUE = Reason("a value in the state of the region, on which it branches, is another one")


class Region:
    """A compiled function. Call it like the function; it keeps one `Specialization` per kind of
    call.

    What it keeps for itself has names of the class alone (two underscores): all others are the
    function's own.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        *,
        keep_joint: bool = False,
        history: SizeHistory | None = None,
        source: Source | None = None,
        lenient: bool = False,
    ) -> None:
        """``history``: what is known of sizes; ``source``: of descriptions, which spare a trace;
        ``lenient``: what is refused runs eagerly, as nobody else is there to serve it."""
        self.__function, self.__options, self.__keep_joint = function, options, keep_joint
        self.__given, self.__lenient = source, lenient
        self.__forget()
        self.__history = history or SizeHistory()
        functools.update_wrapper(self, function, updated=())

    def __forget(self) -> None:
        function, options = self.__function, self.__options
        self.__sources = (
            *([self.__given] if self.__given else []),
            *([Cache(function, options)] if options.cache is True else []),
            *([graph_cache_of(options)] if options.cache == "graph" else []),
        )
        self.__entries: tuple[Specialization, ...] = ()
        self.__fast: tuple[Callable[..., Any], ...] = ()  # their generated entries
        self.__eagerly = EagerCalls()
        self.__history = SizeHistory()
        self.__dynamo: HandOver | None = None
        # functions of ``torch.compile`` in it -> their back ends, which do not run
        self.__inlined: dict[str, str] = {}
        self.__row: list[Reason] = []  # why the last calls missed, since one was served

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

        Inside ``torch.compile`` it is a part of that graph, as another ``torch.compile`` is.
        """
        if is_dynamo_compiling():
            return self.__function(*args, **kwargs)
        fast = self.__fast
        left: tuple[Any, ...] = ()
        for serve in fast:
            try:
                result = serve(args, kwargs)
            except OtherBranch as taken:
                if not taken.another:
                    return self.__other_branch(taken, args, kwargs)
                left = (*left, serve)
                continue
            if result is not MISS:
                # It will serve the next call, too. (But a checkpoint that runs its calls again
                # shall meet the same ones.)
                if serve is not fast[0] and not saved_tensor_hooks_active():
                    self.__fast = (serve, *[other for other in fast if other is not serve])
                if self.__row:
                    self.__row = []
                return result
        return self.__slow_call(args, kwargs, left)

    def __slow_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], left: Any, *, again: bool = False
    ) -> Any:
        """A call that none of these serves; ``left``: entries whose programs it has left, because
        values in the state are other ones; ``again``: what was made for it by now does not."""
        if self.__options.device:
            raise compiles_ahead(self.__options.device)
        if self.__dynamo is None and self.__options.frontend == "dynamo":
            self.__hand_over(None)
        if self.__dynamo is not None:
            self.__row += self.__row[-1:] or [Reason("", "")]
            if len(self.__row) > 4 * policy.POLICY.misses:  # no specialization is asked any more
                self.__fast = ()
            return self.__dynamo.call(*args, **kwargs)
        reason = self.__eagerly.reason(args, kwargs) or eager_reason()
        reason = reason or eager_by_stance(first=not (self.__entries or self.__eagerly.counts))
        reason = reason or (
            None if self.__entries else self.__eagerly.first_reason(self.__function)
        )
        if reason is not None:
            return self.__eagerly.run(reason, self.__function, args, kwargs)
        failed = list[Any]()  # what the function raises has no context of ours
        try:
            entry = self.__specialize(args, kwargs, left, waits=self.__eagerly.waited_for)
        except BaseException as error:
            failed.append(error)
        if failed:
            return self.__serve_without(failed.pop(), args, kwargs)
        # As later calls: the engine shall meet one kind of backward from the first step on.
        try:
            result = entry.run(args, kwargs)
        except OtherBranch as taken:
            if taken.another:
                return self.__slow_call(args, kwargs, (*left, entry.run))
            return self.__other_branch(taken, args, kwargs)
        if result is MISS:
            why = entry.failed(args, kwargs)
            if again:  # else another thread may have written meanwhile what was read
                raise GuardError(
                    "a specialization does not serve the call that it was made for", got=why
                )
            return self.__slow_call(args, kwargs, left, again=True)
        return result

    def __serve_without(
        self, error: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call whose trace was refused, or in which the function has raised, which stands."""
        if isinstance(error, SubclassTraceError):
            return self.__serve_refused(error, args, kwargs)
        if is_interruption(error):
            raise error
        row, self.__row = self.__row, self.__row[:-1]  # no miss, where that raises as well
        result = self.__function(*args, **kwargs)
        self.__row = row
        got, what = f"{type(error).__name__}: {error}", "the trace fails where eager does not"
        failed = UnsupportedError(what, code="fails-in-trace", got=got)
        if self.__lenient:
            self.__eagerly.refused(failed, args, kwargs, once=False)
        elif self.__options.frontend != "auto":
            raise failed from error
        else:
            self.__hand_over(failed)
        return result

    def __serve_refused(
        self, error: SubclassTraceError, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that our trace refuses, by whom the table of routes says."""
        route = route_of(error)
        if route in (Route.EAGER, Route.ONCE) or (self.__lenient and route is Route.DYNAMO):
            reason = self.__eagerly.refused(error, args, kwargs, once=route is Route.ONCE)
            return self.__eagerly.run(reason, self.__function, args, kwargs)
        if route is Route.AS_EAGER:
            return self.__function(*args, **kwargs)
        if route is Route.RAISE or self.__options.frontend != "auto":
            raise error
        return self.__hand_over(error).call(*args, **kwargs)

    def __other_branch(
        self, taken: OtherBranch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call takes a branch that raises: nothing was written, and eager mode does what the user
        wrote."""
        taken.put_back()
        return self.__eagerly.run(str(taken), self.__function, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: bound to the instance."""
        return self if instance is None else functools.partial(self, instance)

    # ---- compiling
    def specialize(self, *args: Any, **kwargs: Any) -> Specialization:
        """The specialization for such a call, compiled now if there is none; nothing runs on the
        arguments' data.

        Raises:
            UnsupportedError: the call would run eagerly, because of what is active around it; or
                the region is refused.
        """
        reason = eager_reason()
        if reason is not None:
            raise UnsupportedError(
                "this call would run eagerly",
                code="runs-eagerly",
                got=reason,
                fix="leave that mode or transform first",
            )
        return self.__specialize(args, kwargs)

    def bind(self, data: Any, *args: Any, **kwargs: Any) -> Specialization:
        """Let a description serve calls like this one, instead of a trace:
        `Specialization.describe` gives it, here or in another process with this function.

        Args:
            data: `Description.data`, as it is or as JSON has given it back.

        Raises:
            DescriptionError: it is broken, of other versions, or names something that is not
                loaded; the path says which.
            Unlike: it does not serve this call, or something that it depends on is another one
                here; ``reason`` says what.
        """
        with dynamo_lock(), TRACE_LOCK:
            return self.__add(
                from_description(
                    data, self.__function, (args, kwargs), self.__options, self.__history
                )
            )

    def warm_up(self, *args: Any, **kwargs: Any) -> Specialization:
        """As `specialize`, and the backward is compiled now, too: the first call of this kind, and
        its backward, only run."""
        made = self.specialize(*args, **kwargs)
        for backward in () if made.program.backwards is None else made.program.backwards.compiled:
            if isinstance(backward.call, OnFirstUse):
                backward.call.program()
        return made

    def save(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> tuple[str, ...]:
        """Write all portable specializations to a file, for `load`; why others are not in it.

        Save after a step: the backward that was made for its tangents is in the file then.

        Args:
            args, kwargs: of a call that one of them serves: what is written is bound to it before
                the file is there; and things that are found among them by identity can be written.

        Raises:
            ArtifactError: there is nothing to write, or nothing of it serves this call.
        """
        with dynamo_lock(), TRACE_LOCK:
            described = [entry.describe(*args, **kwargs) for entry in self.__entries]
            function, options = self.__function, self.__options
            of_call: Any = {"function": function, "call": (args, kwargs), "options": options}
            is_here = bool(args or kwargs) and not options.device
            bind = functools.partial(from_description, **of_call) if is_here else None
            return saved.save(path, function, options, described, bind)

    def save_source(self, path: str | os.PathLike[str]) -> None:
        """Write all specializations as one Python file that needs torch alone: its
        ``bind(function_or_module)`` is what to call. The file is code (docs/deploying.md).

        Raises:
            ExportError: something cannot be written so; the path says what.
        """
        with TRACE_LOCK:
            save_source(path, name_of(self.__function), self.__entries)

    def __add(self, entry: Specialization) -> Specialization:
        self.__keep((*self.__entries, entry))
        if entry.program.backwards is not None:
            entry.program.backwards.narrow.append(weakref.WeakMethod(self.__narrow))
        return entry

    def __without_a_trace(
        self, call: Arguments, *, shares: bool
    ) -> Specialization | Unverified | None:
        """See `without_a_trace`."""
        if not self.__sources or self.__keep_joint or self.__options.device:
            return None
        rest = self.__function, call, self.__options, self.__history
        return without_a_trace(self.__sources, *rest, shares=shares)

    def __hand_over(self, refused: SubclassTraceError | None) -> HandOver:
        self.__dynamo = HandOver(self.__function, self.__options, refused)
        return self.__dynamo

    def __specialize(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        left: tuple[Any, ...] = (),
        *,
        waits: frozenset[str] | None = None,
    ) -> Specialization:
        """The specialization for a call that no generated entry has served; ``left``: see
        `__slow_call`; ``waits``: see `SizeHistory`."""
        with dynamo_lock(), TRACE_LOCK, no_garbage_collection():
            misses = list[Reason]()
            for entry in self.__entries:
                why = _OTHER_VALUE if entry.run in left else entry.failed(args, kwargs)
                if why is None:  # another thread has made it meanwhile
                    self.__keep(self.__entries)
                    return entry
                misses.append(why)
            found = self.__without_a_trace((args, kwargs), shares=not left)
            if isinstance(found, Specialization):
                self.__row = []
                return self.__made(replace(found, misses=tuple(misses)))
            told = (source.explain() for source in self.__sources)
            check_stance(lambda: "; ".join([*misses, *told]) or "first call")
            self.__check_count(misses)
            for entry in self.__entries:
                self.__history.varying_numbers |= changed_since(
                    entry.state, Roots(args, kwargs, self.__function)
                )
            self.__history.waits = waits
            with working(f"capture of {name_of(self.__function)}") as seconds:
                entry = compile_call(
                    self.__function,
                    (args, kwargs),
                    Ambient.now(),
                    self.__options,
                    self.__history,
                    tuple(misses),
                    keep_joint=self.__keep_joint or trace_is_written(),
                    traces=bool(left) or found is not None,
                )
            is_known = found is not None and found.is_said_by(entry, (args, kwargs))
            for source in () if self.__keep_joint or is_known else self.__sources:
                source.made(functools.partial(entry.describe, *args, **kwargs))
            return self.__made(replace(entry, seconds=seconds))

    def __made(self, entry: Specialization) -> Specialization:
        """There is another one."""
        if not (self.__keep_joint or self.__options.device):
            remember(self.__function, entry)
        self.__add(entry)
        reset_with_dynamo(self)
        compiled(self, len(entry.misses), entry)
        self.__tell_inlined(entry)
        return entry

    def __tell_inlined(self, entry: Specialization) -> None:
        """Once for each function: it was compiled for its kernels, and they do not run."""
        for name, backend in entry.inlined.items():
            if name not in self.__inlined:
                self.__inlined[name] = backend
                warn_user(
                    f"{name_of(self.__function)} calls {name}, a function of "
                    f"torch.compile(backend={backend!r}): it is a part "
                    "of the region, and its own compiled code does not run. Give the region the "
                    "same back end, or call it "
                    "outside of it"
                )

    def __keep(self, entries: tuple[Specialization, ...]) -> None:
        self.__entries = entries
        self.__fast = () if self.__options.device else tuple(e.run for e in entries)

    def __narrow(self, origin: object, reason: str | None) -> None:
        """A backward of these holds for its sizes alone: later calls have numbers; or for a reason
        all calls run eagerly from now on."""
        with TRACE_LOCK:
            if reason is not None:
                self.__eagerly.refuse_all(reason)
                self.__keep(())
                return
            self.__history.fix_all()
            programs = [(e, e.program.backwards) for e in self.__entries]
            self.__keep(tuple(e for e, b in programs if b is None or b.origin is not origin))

    def __check_count(self, misses: list[Reason]) -> None:
        limit = self.__options.max_specializations
        row = self.__row = [*self.__row, *misses[-1:]] if misses else []
        over = len(self.__entries) >= limit
        new = len(row) >= (
            policy.POLICY.misses if len(set(row)) == len(row) else 2 * policy.POLICY.misses
        )
        if over or (self.__options.frontend == "auto" and new):
            raise LimitError(
                f"the region has {len(self.__entries)} specializations already; each call seems "
                "to need another",
                expected=f"at most max_specializations={limit}"
                if over
                else f"fewer than {len(row)} misses in a row",
                got="; ".join(f"[{k}] {why}" for k, why in [*enumerate(misses)][-3:]),
                fix="make what changes a tensor instead of a Python value, pad tensors to a few "
                "sizes, or raise the limit",
            )

    # ---- looking at it
    @property
    def specializations(self) -> list[Specialization]:
        """The specializations made so far, oldest first."""
        return list(self.__entries)

    def explain(self, *, thresholds: bool = False) -> str:
        """Which front end serves, why each specialization exists, seconds per stage, and which
        calls ran eagerly and why.

        Args:
            thresholds: the numbers that decide who serves a call, too (`policy.Policy` says what
                each means).
        """
        from ..report.text import explain, remarks

        text = explain(self.__entries, self.__eagerly.counts) + f"\n\n{policy.POLICY}" * thresholds
        text += remarks(self.__entries, self.__inlined)
        every = dict.fromkeys([self.__options, *(e.options for e in self.__entries)])
        told = [tell() for o in every if (tell := o.resolve_backend().explain) is not None]
        text = "\n\n".join((text, *told, *(source.explain() for source in self.__sources)))
        if self.__dynamo is not None:
            return f"{self.__dynamo.explain()}\n\n{text}"
        traced = self.__entries or not self.__eagerly.counts
        return f"{text}\n\n{'served by our trace' if traced else 'its calls run eagerly'}"

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """`explain` and all specializations as a page that needs nothing else; ``path``: it is
        written there, too."""
        from ..report.page import page

        return page(name_of(self.__function), self.__entries, path, self.explain())

    def __getattr__(self, name: str) -> Any:
        """Everything else is the function's own."""
        if name.startswith("_Region__") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.__function, name)

    def __repr__(self) -> str:
        """The function and how many specializations there are."""
        return f"<region {name_of(self.__function)}, {len(self.__entries)} specializations>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the function and the options; specializations are not pickled."""
        return type(self), (self.__function, self.__options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        """A region for a copy of the function, without specializations."""
        return type(self)(copy.deepcopy(self.__function, memo), self.__options)

    def refreeze(self) -> None:
        """Of a frozen region: fold again, with the weights of the next call; nothing is traced.

        Raises:
            OptionError: it is not frozen.
            FrozenError: the weights were discarded, and are not there.
        """
        refreeze(self.__options, name_of(self.__function))

    def reset(self) -> None:
        """Forget all specializations, and that Dynamo serves; ``torch.compiler.reset`` does so."""
        with TRACE_LOCK:
            self.__options = replace(self.__options)  # and a new pool of memory
            self.__forget()
            if self.__given is not None:
                self.__given.reset()
