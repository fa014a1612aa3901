"""Options of a region: one frozen record, passed on whole."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from .errors import OptionError
from .torch_api.inductor import inductor_options, known_inductor_options
from .torch_api.operators import overloads_of
from .torch_api.texts import text_of

if TYPE_CHECKING:
    from .backends import Backend


#: what Dynamo is told in its own words, or decides itself
OF_FRONT_ENDS = ("frontend", "fullgraph", "mode", "dynamic", "disable", "cache")


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
        mode: "default", or None.
        dynamic: None: a size or number that changed between calls becomes symbolic in the next
            specialization; True: every size of the arguments is symbolic from the first call on;
            False: none but those that are marked.
        options: for the back end: inductor's settings, or ``options=`` of a callable.
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
            it instead of a trace (docs/deploying.md).
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
    cache: bool = False
    max_specializations: int = 64

    def __post_init__(self) -> None:
        """Check what can be checked without a call.

        Raises:
            OptionError: unknown back end or partitioner, or a value out of range.
        """
        from .partition.interface import resolve_partitioner
        from .passes import resolve

        self.resolve_backend()
        resolve_partitioner(self.partitioner, self.activation_memory_budget)
        choices = {
            "fullgraph": (True, False),
            "mode": (None, "default"),
            "dynamic": (None, True, False),
            "disable": (True, False),
            "cache": (True, False),
            "frontend": ("auto", "trace", "dynamo"),
            "on_error": ("raise", "skip"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            if not any(value is k or (type(value) is str and value == k) for k in known):
                expected = f"one of {', '.join(map(repr, known))}"
                fix = (
                    "choose by partitioner=, activation_memory_budget= and options="
                    if name == "mode"
                    else None
                )
                raise OptionError(
                    f"{name} has no such value",
                    path=name,
                    expected=expected,
                    got=repr(value),
                    fix=fix,
                )
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

    def resolve_backend(self) -> Backend:
        """The back end that these options mean.

        Raises:
            OptionError: an unknown one, or one that has no such options.
        """
        from .backends import resolve_backend

        base = resolve_backend(
            self.backend, fw_compiler=self.fw_compiler, bw_compiler=self.bw_compiler
        )
        if not self.options:
            return base
        own = any(compiler is not None for compiler in (self.fw_compiler, self.bw_compiler))
        settings = dict(self.options)
        with_options: Any
        if self.backend == "inductor" and not own:
            _check_inductor_options(settings)
            with_options = functools.partial(_with_inductor_options, options=settings)
        elif callable(self.backend) or own:
            with_options = functools.partial(functools.partial, options=settings)
        else:
            fix = "leave them out; what st.compile takes itself is a keyword of its own"
            got = ", ".join(map(repr, settings))
            raise OptionError(
                f"the back end {base.name!r} takes no options",
                path="options",
                expected="none",
                got=got,
                fix=fix,
            )
        forward, backward, inference = map(
            with_options, (base.forward, base.backward, base.inference)
        )
        return replace(base, forward=forward, backward=backward, inference=inference)

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
