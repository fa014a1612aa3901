"""User code that runs in a backward: hooks of tensors and modules, unpack hooks, and the backward of custom functions.

A backward is traced once and runs often, so this code is looked at first, by a `Judge` of the front end:

- Code of libraries is traced.
- Code without effects on Python state is traced as well. The numbers and containers that it names are compared in each
  backward (`LateState.names`); where they differ the backward is traced again, and then the code is called as it runs.
- All other code is called in each backward, on real tensors: the graph has an operation that does it (`kept_calls`). That
  is code which changes something, reads a tensor that it was not given, or uses what cannot be compared.

Whether it changes something is tried: it runs once on the traced tensors, and what it reaches is put back afterwards. See
docs/notes/late_code.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from .. import _torch
from .._torch import late_hooks as _door
from .._torch.saved import Packed
from ..errors import UnsupportedError
from ..subclass.flatten import flatten, map_leaves
from .kept_calls import KeptCall, Role, SavedContext, Template, layout_of, number_of, operation

if TYPE_CHECKING:
    from .recorder import Recorder

Tensor = torch.Tensor


class Named(Protocol):
    """A place that code reads, and what it held."""

    def holds(self) -> bool:
        """Does it hold the same?"""


class Seen(Protocol):
    """What a trial has shown. ``inside``: something has changed that the region itself has made (see `Judge`), which
    ``put_back`` undoes."""

    changed: bool
    inside: bool

    def put_back(self) -> None:
        """Let what the region has made be as it was."""


class Judged(Protocol):
    """What is known of a piece of user code."""

    @property
    def names(self) -> Sequence[Named]:
        """What it reads, to be compared."""

    @property
    def foreign(self) -> bool:
        """What it does could not be put back, so it is not tried."""

    @property
    def uncompared(self) -> bool:
        """It may read more than ``names``, or there is much of that to compare."""

    def watch(self) -> AbstractContextManager[Seen]:
        """The code runs inside; afterwards what it reaches is as it was."""


#: looks at a function and at values that it is given beside tensors; None: it is a library's, and is traced. If the last
#: argument is true, what the region itself has made (its containers, objects and local variables) is not compared with what
#: it was: that is new in each call, so that changes of it are part of the trace.
Judge: TypeAlias = Callable[[Callable[..., Any], Sequence[Any], bool], "Judged | None"]


#: stands for what code gives that could not be run
_NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "nothing"})()


#: what may stand beside tensors in a value that leads to no more code than these do
_ALIKE = (Tensor, int, float, str, torch.dtype, torch.device, torch.SymInt, type(None))


#: what watches a piece of code, or a whole backward
Watch: TypeAlias = "Callable[[], AbstractContextManager[Seen]]"


class _WritesOutside(BaseException):
    """A trial is broken off: the code writes to a tensor that it was not given. Not for user code to catch."""


@dataclass(frozen=True, eq=False)
class Late:
    """What one backward has of user code: ``names`` that it hangs on, and the ``calls`` that its graph makes, which live as
    long as this does."""

    names: tuple[Named, ...] = ()
    calls: tuple[KeptCall, ...] = ()

    def holds(self) -> bool:
        """Do the names hold what they held when it was traced?"""
        return all(name.holds() for name in self.names)


NO_LATE_CODE = Late()


@dataclass(eq=False)
class LateState:
    """What a recorder knows of late code.

    Attributes:
        judge: without one all code is traced.
        copies: the back end may use the memory of tensors again while the code still holds them.
        net: watches whole backwards, where code may run in them that nobody else looks at.
        names, calls, looked: of the backward that is being traced; ``looked``: see `look`.
        known: what each piece of code read when it was traced before.
        registrations: hooks on tensors from outside, see `late_hooks`.
        constants: by id, what stands for a real tensor that code reads, and that tensor.
        numbers: inside, the numbers of the call stand in the places of the symbols that stand for them.
        tries: code is being tried.
    """

    judge: Judge | None = None
    copies: bool = True
    net: Watch | None = None
    names: list[Named] = field(default_factory=list)
    calls: list[KeptCall] = field(default_factory=list)
    looked: dict[int, Judged | None] = field(default_factory=dict)
    known: dict[Any, Sequence[Named]] = field(default_factory=dict)
    registrations: list[Any] = field(default_factory=list)
    constants: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    numbers: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    tries: bool = False
    _met: bool = False

    def met(self, writes: bool) -> None:
        """An operation has a real tensor among its arguments."""
        self._met = True
        if self.tries and writes:
            raise _WritesOutside

    def look(self, code: _Code) -> Judged | None:
        """What the judge says. An unpack hook serves many tensors: where it is given nothing else, it is looked at once."""
        assert self.judge is not None
        one, more = id(code.function), code.more
        if not code.inside or not all(isinstance(v, _ALIKE) for v in _torch.pytree.tree_leaves(more)):
            return self.judge(code.function, more, code.inside)
        if one not in self.looked:
            self.looked[one] = self.judge(code.function, more, code.inside)
        return self.looked[one]

    def anew(self) -> LateState:
        """For another run of the same function."""
        return LateState(self.judge, self.copies, self.net)

    def found(self) -> Late:
        """Of the backward that was traced last."""
        names = tuple({id(name): name for name in self.names}.values())
        return Late(names, tuple(self.calls)) if self.names or self.calls else NO_LATE_CODE

    @contextlib.contextmanager
    def trial(self) -> Iterator[Callable[[], bool]]:
        """Inside, code is tried. Yields what tells whether it met a real tensor."""
        before, self.tries, self._met = (self.tries, self._met), True, False
        try:
            yield lambda: self._met
        finally:
            self.tries, self._met = before


# ---------------------------------------------------------------------------------------------- trace or keep
@dataclass(eq=False)
class _Tried:
    """What came of running code on the traced tensors: must it be kept as a call; its result; what it raised."""

    keeps: bool = True
    result: Any = _NOTHING
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class _Code:
    """A piece of code that is about to run in a backward.

    Attributes:
        key: which one it is, each time that a backward is traced.
        kind_known: of which kind its result is, is known without running it.
        inside: see `Judge`.
        more: values that it is given beside tensors. ``given``: tensors that it could write to.
        trace: runs it on the traced tensors. ``keep``: records a call of it; takes what ``trace`` gave, or `_NOTHING`.
    """

    key: Any
    function: Callable[..., Any]
    more: Sequence[Any]
    given: Sequence[Tensor]
    trace: Callable[[], Any]
    keep: Callable[[Any], Any]
    kind_known: bool
    inside: bool = False

    def run(self, recorder: Recorder) -> Any:
        """What it returns, on traced tensors. It reads numbers as they are now: symbols stand for those of the forward."""
        late = recorder.late
        with late.numbers():
            judged = None if late.judge is None else late.look(self)
            if judged is not None:
                return self._judged(recorder, judged)
        return self.trace()

    def _judged(self, recorder: Recorder, judged: Judged) -> Any:
        late = recorder.late
        differentiated, known = torch.is_grad_enabled(), late.known.get(self.key, ())
        unguarded = judged.uncompared or not all(name.holds() for name in known)
        keeps = judged.foreign or (unguarded and not differentiated)
        tried = _Tried()
        if not judged.foreign and not (keeps and self.kind_known):
            tried = self._try(recorder, judged, keeps)
            if not tried.keeps:
                late.known[self.key] = judged.names
                late.names += judged.names
                return tried.result
        if differentiated:
            raise self._refused("a backward that is to be differentiated again (create_graph=True)")
        if tried.result is _NOTHING and recorder.classes and not self.kind_known:
            raise tried.error or self._of_unknown_kind(recorder.classes)
        return self.keep(tried.result)

    def _try(self, recorder: Recorder, judged: Judged, keeps: bool) -> _Tried:
        """Run it on the traced tensors. ``keeps``: it must be kept as a call, whatever it does."""
        late, differentiated, tried = recorder.late, torch.is_grad_enabled(), _Tried(keeps)
        last, writes = next(iter(reversed(recorder.graph.nodes)), None), len(recorder.writes)
        versions = [t._version for t in self.given]
        with judged.watch() as seen, late.trial() as met_real:
            try:
                tried.result = self.trace()
            except _WritesOutside:
                tried.keeps = True
            except Exception as error:  # the call will raise it, if it is the code's own
                if differentiated:
                    raise
                tried.keeps, tried.error = True, error
            tried.keeps |= met_real() and not differentiated
        tried.keeps |= seen.changed
        if tried.keeps:
            if [t._version for t in self.given] != versions:
                raise self._refused("code that writes to what it is given in place as well")
            if seen.inside:
                seen.put_back()
                raise self._refused("code that changes what the region itself has made as well")
            take_back(recorder, last, writes)
        return tried

    def _of_unknown_kind(self, classes: Collection[type]) -> UnsupportedError:
        return UnsupportedError(
            "what gradients user code in a backward gives is known only when it runs",
            path=place_of(self.function),
            expected="code that can be traced, where wrappers are differentiated",
            got=f"code that acts outside of Python, or writes to tensors, beside {[c.__qualname__ for c in classes]}",
            fix="move it out of the region",
        )

    def _refused(self, got: str) -> UnsupportedError:
        return UnsupportedError(
            "user code in a backward has effects on Python state, or reads state that may change",
            path=place_of(self.function),
            expected="such code in a backward that runs as it is",
            got=got,
            fix="hand over what it reads as arguments, and return what it computes; or move it out of the region",
        )


def take_back(recorder: Recorder, last: Any, writes: int) -> None:
    """Nothing that was recorded after the node ``last`` is called for its effect."""
    for node in reversed(recorder.graph.nodes):
        if node is last:
            break
        node.meta["taken_back"] = True
    del recorder.writes[writes:]


def place_of(function: Any) -> str | None:
    """``file:line`` of a function."""
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__func__", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else getattr(function, "__qualname__", None)


def _record(
    recorder: Recorder,
    function: Any,
    arguments: Sequence[Any],
    results: Sequence[Tensor | None],
    role: Role,
    gradients: int = 0,
) -> list[Tensor | None]:
    """A call of ``function`` as a node of the graph; what it gives is like ``results``. ``role``, ``gradients``: see
    `KeptCall`."""
    where = place_of(function) or repr(function)
    template = Template(where)
    call = template.maker(function)
    makers = [template.maker(a) for a in arguments]
    with _torch.without_tracing(), torch.no_grad():
        made = [None if r is None else map_leaves(_like, r) for r in results]
    for value in made:
        if value is not None and value.requires_grad:
            value.requires_grad_(False)
    rows = [None if m is None else flatten(m) for m in made]
    specs = [None if r is None else (r[1], template.sizes(r[1])) for r in rows]
    leaves = [leaf for r in rows if r is not None for leaf in r[0]]
    kept = KeptCall(call, makers, specs, role, gradients, recorder.late.copies, where)
    recorder.late.calls.append(kept)
    nodes = [[recorder.node_of(v) for v in values] for values in (template.leaves, template.numbers, layout_of(leaves))]
    node = recorder.graph.call_function(operation(), (number_of(kept), *nodes))
    recorder.annotate(node)
    recorder.track_result(node, leaves)
    for value in made:
        if value is not None:
            recorder.know_wrapper(value)
    return made


def _like(t: Tensor) -> Tensor:
    if _torch.is_dense(t):
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    return torch.empty(t.shape, dtype=t.dtype, device=t.device)


def _empty(size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(size, dtype=dtype, device=device)


# ---------------------------------------------------------------------------------------------- hooks
class LateHook:
    """A hook in the place of a user's: of a tensor (``hook(gradient)``) or a module (``hook(module, *gradients)``)."""

    def __init__(self, recorder: Recorder, hook: Callable[..., Any], module_first: bool = False) -> None:
        self.recorder, self.hook, self.first = recorder, hook, int(module_first)

    def __call__(self, *arguments: Any) -> Any:
        """In a backward of the region look at the hook first; elsewhere call it."""
        recorder = self.recorder
        if recorder.tag != "is_backward":
            return self.hook(*arguments)
        given = arguments[self.first]
        one = not isinstance(given, tuple)
        gradients = [given] if one else list(given)

        def keep(result: Any) -> Any:
            made = _record(recorder, self.hook, arguments, gradients, "hook", self.first)
            return made[0] if one else tuple(made)

        tensors = [t for a in arguments[self.first :] for t in (a if isinstance(a, tuple) else [a])]
        written = [t for t in tensors if isinstance(t, Tensor)]
        code = _Code(self, self.hook, arguments[: self.first], written, lambda: self.hook(*arguments), keep, True)
        return code.run(recorder)


@contextlib.contextmanager
def late_module_hooks(recorder: Recorder) -> Iterator[None]:
    """While inside, on this thread, modules that are called register `LateHook` in the place of their backward hooks."""
    with _door.module_hooks_replaced(lambda hook: LateHook(recorder, hook, True)):
        yield


def unpacked(recorder: Recorder, unpack: Callable[[Any], Any], packed: Packed) -> Any:
    """What an unpack hook makes of what was packed, in a backward of the region."""

    def keep(result: Any) -> Any:
        made = packed.tensor if result is _NOTHING else result
        return _record(recorder, unpack, (packed.value,), [made], "unpack")[0] if isinstance(made, Tensor) else made

    def trace() -> Any:
        return unpack(packed.value)

    given = [t for t in _torch.pytree.tree_leaves(packed.value) if isinstance(t, Tensor)]
    return _Code(packed, unpack, [packed.value], given, trace, keep, True, inside=True).run(recorder)


# ---------------------------------------------------------------------------------------------- custom functions
@contextlib.contextmanager
def late_functions(recorder: Recorder, nodes: Sequence[Any]) -> Iterator[None]:
    """While inside, the backwards of custom functions are looked at first. ``nodes``: of the autograd graph."""
    changed = []
    late = recorder.late
    late.names, late.calls, late.looked = [], [], {}
    try:
        for node in nodes if late.judge is not None else ():
            function = _door.custom_backward(node)
            if function is not None:
                node.apply = _LateFunction(recorder, node, function)
                changed.append(node)
        if late.net is None:
            yield
            return
        with late.net() as seen:
            yield
        if seen.changed:
            raise _unseen()
    finally:
        for node in changed:
            del node.apply


def _unseen() -> UnsupportedError:
    return UnsupportedError(
        "a hook on an autograd node changes Python state that the region reaches",
        expected="hooks on tensors (x.register_hook) or modules; hooks on nodes (x.grad_fn.register_hook) without effects",
        got="something else there after the backward was traced",
        fix="register the hook on the tensor",
    )


class _LateFunction:
    """What the engine calls in the place of a custom function's backward."""

    def __init__(self, recorder: Recorder, node: Any, function: Callable[..., Any]) -> None:
        self.recorder, self.node, self.function = recorder, node, function

    def __call__(self, *gradients: Any) -> Any:
        """The gradients of the inputs."""
        node, function = self.node, self.function
        state = {k: v for k, v in vars(node).items() if k != "apply"}
        more = [v for v in state.values() if not isinstance(v, Tensor)]
        written = [t for t in gradients if isinstance(t, Tensor)]
        moved: list[str] = []

        def trace() -> Any:
            try:
                result = function(node, *gradients)
                moved.extend(self._moved(state))
                return result
            finally:
                if vars(node).keys() - {"apply"} != state.keys() or any(
                    vars(node)[k] is not v for k, v in state.items()
                ):
                    vars(node).clear()
                    vars(node).update(state, apply=self)

        def keep(result: Any) -> Any:
            context = SavedContext(tuple(node.saved_tensors), tuple(node.needs_input_grad), state)
            return tuple(_record(self.recorder, function, (context, *gradients), self._results(result), "function"))

        result = _Code(node, function, more, written, trace, keep, False).run(self.recorder)
        if moved:  # a second backward would see it; but each runs on what the forward has left
            raise UnsupportedError(
                "the backward of a custom autograd.Function changes a number or a string that its ctx holds",
                path=place_of(function),
                expected="attributes of ctx that are set in the forward, and read in the backward",
                got=moved[0],
                fix="keep it in a list or an object that the forward puts there, or do without it",
            )
        return result

    def _moved(self, before: Mapping[str, Any]) -> Iterator[str]:
        """The numbers and strings in ``ctx`` that are others now."""
        for name, was in before.items():
            value = vars(self.node).get(name)
            if value is not was and isinstance(value, (int, float, str)) and value != was:
                yield f"ctx.{name} = {value!r}, which was {was!r}"

    def _results(self, traced: Any) -> list[Tensor | None]:
        """Tensors like those that it gives; where the trace could not tell, as autograd wants them."""
        if traced is not _NOTHING:
            found = list(traced) if isinstance(traced, (tuple, list)) else [traced]
            return [g if isinstance(g, Tensor) else None for g in found]
        rows = iter(_door.gradients_of(self.node))
        with _torch.without_tracing(), torch.no_grad():
            return [_empty(*next(rows)) if needs else None for needs in self.node.needs_input_grad]
