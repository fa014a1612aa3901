"""Options of a region: one frozen record, passed on whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from . import torch_api
from .errors import OptionError

if TYPE_CHECKING:
    from .backends import Backend


#: what Dynamo is told in its own words, or decides itself
_OF_FRONT_ENDS = ("frontend", "fullgraph", "mode", "dynamic", "automatic_dynamic", "max_specializations")


@dataclass(frozen=True, eq=False)
class Options:
    """What `compile` takes besides the function.

    Attributes:
        backend: name, callable ``(graph module, example inputs) -> callable``, or a `Backend`.
        fw_compiler, bw_compiler: separate compilers for the two graphs; they override the back end's.
        frontend: "auto": our trace, and ``torch.compile(backend="subclass_trace")`` where it refuses a region, or where calls
            differ without end; "trace": the refusal is raised; "dynamo": ``torch.compile`` from the start. The environment
            variable ``SUBCLASS_TRACE_FRONTEND`` is the default, so that a test run may ask for refusals everywhere.
        fullgraph: where a region is handed over, a break of the graph is an error. (Our trace always is one graph.)
        mode: "default", or None.
        dynamic: True makes every size of the arguments symbolic from the first call on.
        automatic_dynamic: a size or number that changed between calls becomes symbolic in the next specialization.
        partitioner: "min_cut", "torch_min_cut", "default", a `MinCut`, or a callable as in ``functorch.compile``.
        activation_memory_budget: a share, 0 (save the least possible) to 1 (what min_cut saves), or a number of bytes.
        decompositions: operation -> function, applied while capturing, before those of the back end. An operation is
            an overload (``torch.ops.aten.gelu.default``), or a packet (``torch.ops.aten.gelu``) for all its overloads.
        max_specializations: more of them raise a GuardError that says which guard kept failing.
    """

    backend: Any = "eager"
    fw_compiler: Callable[..., Any] | None = None
    bw_compiler: Callable[..., Any] | None = None
    frontend: str = field(default_factory=lambda: os.environ.get("SUBCLASS_TRACE_FRONTEND", "auto"))
    fullgraph: bool = False
    mode: str | None = None
    dynamic: bool | None = None
    automatic_dynamic: bool = True
    partitioner: str | Callable[..., Any] = "min_cut"
    activation_memory_budget: float | int | None = None
    decompositions: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    max_specializations: int = 64

    def __post_init__(self) -> None:
        """Check what can be checked without a call.

        Raises:
            OptionError: unknown back end or partitioner, or a value out of range.
        """
        from .backends import resolve_backend
        from .partition.interface import resolve_partitioner

        resolve_backend(self.backend, fw_compiler=self.fw_compiler, bw_compiler=self.bw_compiler)
        resolve_partitioner(self.partitioner, self.activation_memory_budget)
        choices = {
            "fullgraph": (True, False),
            "mode": (None, "default"),
            "dynamic": (None, True, False),
            "automatic_dynamic": (True, False),
            "frontend": ("auto", "trace", "dynamo"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            if not any(value is k or (type(value) is str and value == k) for k in known):
                expected = f"one of {', '.join(map(repr, known))}"
                raise OptionError(f"{name} has no such value", expected=expected, got=repr(value))
        object.__setattr__(self, "decompositions", by_overload(self.decompositions, "decompositions"))
        if type(self.max_specializations) is not int or self.max_specializations < 1:
            got = repr(self.max_specializations)
            raise OptionError("max_specializations is out of range", expected="a whole number, 1 or more", got=got)

    @property
    def dynamic_of_dynamo(self) -> bool | None:
        """The same as ``torch.compile`` says it: in one option."""
        return True if self.dynamic else None if self.automatic_dynamic else False

    def changed(self) -> dict[str, Any]:
        """The options that are no defaults, as ``torch.compile`` hands them to our back end."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _OF_FRONT_ENDS}
        defaults = Options()
        return {name: value for name, value in own.items() if value != getattr(defaults, name)}

    def table(self, backend: Backend) -> dict[Any, Callable[..., Any]]:
        """What capture decomposes: the back end's table, and what this record has besides or instead.

        Raises:
            OptionError: a key of the back end's is no operation.
        """
        make = backend.decompositions
        own = (
            {} if make is None else by_overload(make(), f"the table of decompositions of the back end {backend.name!r}")
        )
        return {**own, **self.decompositions}


def by_overload(table: Any, name: str) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions with an overload as each key; one that is given itself counts more than its packet.

    Raises:
        OptionError: it is no dict, or has a key that is no operation, or a value that is no function.
    """
    if not isinstance(table, dict):
        raise OptionError(f"{name} is no dict", expected="a dict from operations to functions", got=repr(table)[:200])
    packets: dict[Any, Callable[..., Any]] = {}
    overloads: dict[Any, Callable[..., Any]] = {}
    for key, function in table.items():
        operations = torch_api.overloads_of(key)
        if operations is None or not callable(function):
            raise OptionError(
                f"{name} has a key that is no operation, or a value that is no function",
                path=f"decompositions[{key!r:.80}]",
                expected="an overload such as torch.ops.aten.gelu.default, or a packet such as torch.ops.aten.gelu; and a "
                "function with its arguments",
                got=f"{type(key).__qualname__} {key!r:.80}: {function!r:.80}",
            )
        (overloads if operations == [key] else packets).update(dict.fromkeys(operations, function))
    return {**packets, **overloads}
