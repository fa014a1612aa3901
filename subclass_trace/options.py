"""Options of a region: one frozen record, passed on whole."""

from __future__ import annotations

import difflib
import functools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from .errors import OptionError
from .torch_api.inductor import inductor_options, known_inductor_options, mode_options
from .torch_api.operators import overloads_of
from .torch_api.texts import text_of

if TYPE_CHECKING:
    from .backends import Backend


#: what Dynamo is told in its own words, or decides itself
OF_FRONT_ENDS = ("frontend", "fullgraph", "dynamic", "disable", "cache", "verify", "device")
#: as ``torch.compile`` means them, and who honours them
MODES: dict[str | None, tuple[str, ...]] = {
    None: (),
    "default": (),
    "reduce-overhead": ("inductor", "cudagraphs"),
    "max-autotune": ("inductor",),
    "max-autotune-no-cudagraphs": ("inductor",),
}


@dataclass(frozen=True, eq=False)
class Options:
    """What `compile` takes besides the function.

    Attributes:
        backend: name, callable ``(graph module, example inputs) -> callable``, or a `Backend`.
        fw_compiler, bw_compiler: separate compilers for the two graphs; they override the back
            end's.
        frontend: "auto": our trace, and ``torch.compile(backend="subclass_trace")`` where it
            refuses a region, or where calls differ without end; "trace": the refusal is raised;
            "dynamo": ``torch.compile`` from the start. The environment variable
            ``SUBCLASS_TRACE_FRONTEND`` is the default, so that a test run may ask for refusals
            everywhere.
        fullgraph: where a region is handed over, a break of the graph is an error. (Our trace
            always is one graph.)
        mode: as ``torch.compile`` means it: "default"; "reduce-overhead", in CUDA graphs (also
            ``backend="cudagraphs"``, with eager kernels); for inductor "max-autotune", which is in
            CUDA graphs too, and "max-autotune-no-cudagraphs".
        dynamic: None: a size or number that changed between calls becomes symbolic in the next
            specialization; True: every size of the arguments is symbolic from the first call on;
            False: none but those that are marked.
        options: for the back end: inductor's settings, those of CUDA graphs
            (docs/cuda_graphs.md), or ``options=`` of a callable.
        disable: `compile` gives the function back as it is.
        partitioner: "min_cut", "torch_min_cut", "default", a `MinCut`, or a callable as in
            ``functorch.compile``. None: "min_cut"; but the eager back end leaves a region of a few
                small operations to autograd itself.
        activation_memory_budget: a share, 0 (save the least possible) to 1 (what min_cut saves), or
            a number of bytes.
        decompositions: operation -> function, applied while capturing, before those of the back
            end. An operation is an overload (``torch.ops.aten.gelu.default``), or a packet
            (``torch.ops.aten.gelu``) for all its overloads.
        passes: what the dense graph goes through before it is partitioned: functions of a
            `passes.JointGraph`, or names of registered ones, in order.
        on_error: "raise": a pass that fails is a `PassError`; "skip": the region is compiled
            without its passes, with a warning.
        cache: True: what is traced is kept in a directory of this user's, and another process binds
            it instead of a trace (docs/deploying.md). "graph": all is traced, and a partition is
            found by the traced graph.
        verify: True: what the cache has is compared with a new trace before it first serves in a
            process; what is stale is dropped, with a warning. A number from 0 to 1: so often.
        device: tensors on ``meta``, weights and arguments, stand for such on this device: the
            region compiles ahead (`warm_up`, `save`), without memory for them, and is not called.
        max_specializations: more of them raise a GuardError that says which guard kept failing.
    """

    backend: Any = "eager"
    fw_compiler: Callable[..., Any] | None = None
    bw_compiler: Callable[..., Any] | None = None
    frontend: str = field(default_factory=lambda: os.environ.get("SUBCLASS_TRACE_FRONTEND", "auto"))
    fullgraph: bool = False
    mode: str | None = None
    dynamic: bool | None = None
    options: Mapping[str, Any] | None = None
    disable: bool = False
    partitioner: str | Callable[..., Any] | None = None
    activation_memory_budget: float | int | None = None
    decompositions: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    passes: Sequence[Any] = ()
    on_error: str = "raise"
    cache: bool | str = False
    verify: float = False
    device: str | torch.device | None = None
    max_specializations: int = 64

    def __post_init__(self) -> None:
        """Check what can be checked without a call.

        Raises:
            OptionError: unknown back end or partitioner, or a value out of range.
        """
        from .partition.interface import resolve_partitioner
        from .passes import resolve

        choices = {
            "fullgraph": (True, False),
            "mode": tuple(MODES),
            "dynamic": (None, True, False),
            "disable": (True, False),
            "cache": (True, False, "graph"),
            "frontend": ("auto", "trace", "dynamo"),
            "on_error": ("raise", "skip"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            if not any(value is k or (type(value) is str and value == k) for k in known):
                expected = f"one of {', '.join(map(repr, known))}"
                raise OptionError(
                    f"{name} has no such value",
                    path=name,
                    expected=expected,
                    got=repr(value),
                )
        if not isinstance(self.options, (Mapping, type(None))):
            raise OptionError(
                "options has no such value",
                path="options",
                expected="a dict of options of the back end",
                got=repr(self.options),
            )
        is_share = isinstance(self.verify, (bool, int, float)) and 0 <= self.verify <= 1
        if not is_share or (self.verify and self.cache is not True):
            raise OptionError(
                "verify has no such value",
                path="verify",
                expected="True, False or a share from 0 to 1; and cache=True, of which it speaks",
                got=repr(self.verify),
            )
        try:
            _ = self.stands_for
        except (AssertionError, RuntimeError, TypeError) as error:
            raise OptionError(
                "no such device is here", path="device", got=text_of(self.device)
            ) from error
        self.resolve_backend()
        resolve_partitioner(self.partitioner, self.activation_memory_budget)
        if isinstance(self.passes, str) or not isinstance(self.passes, Sequence):
            raise OptionError(
                "passes is no list",
                path="passes",
                expected="a list of passes",
                got=text_of(self.passes),
            )
        for choice in self.passes:
            resolve(choice)
        object.__setattr__(
            self, "decompositions", by_overload(self.decompositions, "decompositions")
        )
        if type(self.max_specializations) is not int or self.max_specializations < 1:
            got = repr(self.max_specializations)
            raise OptionError(
                "max_specializations is out of range", expected="a whole number, 1 or more", got=got
            )

    @property
    def stands_for(self) -> torch.device | None:
        """The device that a tensor says it is on, of which ``device`` speaks."""
        if self.device is None:
            return None
        return torch.empty(0, device=self.device).device  # kernels for it are asked in a trace

    def resolve_backend(self) -> Backend:
        """The back end that these options mean.

        Raises:
            OptionError: an unknown one, or one that has no such options.
        """
        from .backends import resolve_backend

        if (made := _MADE.get(self)) is None:
            fw, bw = self.fw_compiler, self.bw_compiler
            own = fw is not None or bw is not None
            honoured = MODES.get(self.mode, ())
            if honoured and (own or self.backend not in honoured):
                raise OptionError(
                    f"this back end has no mode {self.mode!r}",
                    path="mode",
                    expected=f"backend={' or '.join(map(repr, honoured))}, without other compilers",
                    got=text_of(self.backend),
                    fix=f"pass backend={honoured[0]!r}, or leave the mode out",
                )
            how = None if own or callable(self.backend) else self._set_up
            made = resolve_backend(self.backend, fw_compiler=fw, bw_compiler=bw, how=how)
            if self.options and how is None:
                made = _wrapped(made, functools.partial, {"options": dict(self.options)})
            _MADE[self] = made
        return made

    def _set_up(self, base: Backend) -> Backend:
        """A back end as the mode and the options ask; all programs of a region have one pool of
        memory for CUDA graphs."""
        from .backends import Settings, with_cudagraphs

        given, inductor = dict(self.options or {}), self.backend == "inductor"
        of_mode = mode_options(self.mode or "default") if inductor else {}
        asked = of_mode.pop("triton.cudagraphs", given.get("triton.cudagraphs"))
        in_graphs = self.backend == "cudagraphs" or (inductor and asked is True)
        names = [f.name for f in fields(Settings)] if in_graphs else []
        settings = {name: given.pop(name) for name in names if name in given}
        if inductor:
            _check_inductor_options(given)
        if given and (of_mode or not inductor):
            fix = "leave them out; what st.compile takes itself is a keyword of its own"
            raise OptionError(
                f"the mode {self.mode!r} takes no options of inductor"
                if inductor
                else f"the back end {base.name!r} takes no {'such ' if names else ''}options",
                path="options",
                expected=f"some of {', '.join(names)}" if names else "none",
                got=", ".join(map(repr, given)),
                fix=fix,
            )
        if inductor and (given or of_mode):
            base = _wrapped(base, _with_inductor_options, {"options": {**of_mode, **given}})
        return with_cudagraphs(base, Settings(**settings)) if in_graphs else base

    def changed(self) -> dict[str, Any]:
        """The options that are no defaults, as ``torch.compile`` hands them to our back end."""
        own = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in (*OF_FRONT_ENDS, "max_specializations")
        }
        defaults = Options()
        return {name: value for name, value in own.items() if value != getattr(defaults, name)}

    def of_a_trace(self) -> list[str]:
        """What decides a trace and its graphs, as text: two regions with the same may share a
        description.

        What has no name of its own is told by its module and name.
        """
        table = {
            str(op): f"{f.__module__}.{f.__qualname__}" for op, f in self.decompositions.items()
        }
        split = self.partitioner if isinstance(self.partitioner, str) else repr(self.partitioner)
        passes = [
            p if isinstance(p, str) else f"{p.__module__}.{p.__qualname__}" for p in self.passes
        ]
        rows = (
            self.resolve_backend().name,
            split,
            self.activation_memory_budget,
            self.dynamic,
            self.options,
            table,
            passes,
        )
        return [str(row) for row in rows]

    def table(self, backend: Backend) -> dict[Any, Callable[..., Any]]:
        """What capture decomposes: the back end's table, and what this record has besides or
        instead.

        Raises:
            OptionError: a key of the back end's is no operation.
        """
        make = backend.decompositions
        own = (
            {}
            if make is None
            else by_overload(
                make(), f"the table of decompositions of the back end {backend.name!r}"
            )
        )
        return {**own, **self.decompositions}


#: what options mean, as long as they live: a region has one pool of memory
_MADE: weakref.WeakKeyDictionary[Options, Backend] = weakref.WeakKeyDictionary()


def _wrapped(base: Backend, wrap: Any, given: dict[str, Any]) -> Backend:
    """A back end whose compilers are called with something besides."""
    roles = ("forward", "backward", "inference")
    return replace(base, **{role: wrap(getattr(base, role), **given) for role in roles})


def _with_inductor_options(
    compiler: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    def compile_with_options(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        with inductor_options(options):
            compiled: Callable[..., Any] = compiler(gm, example_inputs)
        return compiled

    return compile_with_options


def _check_inductor_options(options: Mapping[str, Any]) -> None:
    known = known_inductor_options()
    for name, value in options.items():
        path = f"options[{name!r}]"
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            expected = "a name of torch._inductor.list_options()"
            fix = f"did you mean {close[0]!r}?" if close else None
            raise OptionError(
                f"inductor has no option {name!r}", path=path, expected=expected, got=name, fix=fix
            )
        kind = type(known[name])
        if known[name] is not None and type(value) is not kind:
            got = f"{value!r} of type {type(value).__name__}"
            raise OptionError(
                f"{name!r} has no such value", path=path, expected=f"a {kind.__name__}", got=got
            )


def by_overload(table: Any, name: str) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions with an overload as each key; one that is given itself counts more
    than its packet.

    Raises:
        OptionError: it is no dict, or has a key that is no operation, or a value that is no
            function.
    """
    if not isinstance(table, dict):
        raise OptionError(
            f"{name} is no dict",
            expected="a dict from operations to functions",
            got=repr(table)[:200],
        )
    packets: dict[Any, Callable[..., Any]] = {}
    overloads: dict[Any, Callable[..., Any]] = {}
    for key, function in table.items():
        operations = overloads_of(key)
        if operations is None or not callable(function):
            raise OptionError(
                f"{name} has a key that is no operation, or a value that is no function",
                path=f"decompositions[{key!r:.80}]",
                expected="an overload such as torch.ops.aten.gelu.default, or a packet such as "
                "torch.ops.aten.gelu; and a "
                "function with its arguments",
                got=f"{type(key).__qualname__} {key!r:.80}: {function!r:.80}",
            )
        (overloads if operations == [key] else packets).update(dict.fromkeys(operations, function))
    return {**packets, **overloads}
