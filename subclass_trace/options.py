"""Options of a region: one frozen record, passed on whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import OptionError


@dataclass(frozen=True, eq=False)
class Options:
    """What `compile` takes beside the function.

    Attributes:
        backend: name, callable ``(graph module, example inputs) -> callable``, or a `Backend`.
        fw_compiler, bw_compiler: separate compilers for the two graphs; they override the back end's.
        dynamic: True makes every size of the arguments symbolic from the first call on.
        automatic_dynamic: a size that changed between calls becomes symbolic in the next specialization.
        partitioner: "min_cut", "torch_min_cut", "default", a `MinCut`, or a callable as in ``functorch.compile``.
        activation_memory_budget: a share, 0 (save the least possible) to 1 (what min_cut saves), or a number of bytes.
        decompositions: operation -> function, applied while capturing, before those of the back end.
        keep_inference_input_mutations: without a backward, in-place changes of inputs stay in the graph as ``copy_``.
        retain_trace: keep the fake autograd graph of each specialization, from which backwards for other tangents are
            traced. False drops it once the specialization is made; such a backward then runs the function again on
            fakes (Python side effects happen again). Under ``torch.compile`` the graph stays.
        max_specializations: more of them raise a GuardError that says which guard kept failing.
    """

    backend: Any = "eager"
    fw_compiler: Callable[..., Any] | None = None
    bw_compiler: Callable[..., Any] | None = None
    dynamic: bool = False
    automatic_dynamic: bool = True
    partitioner: str | Callable[..., Any] = "min_cut"
    activation_memory_budget: float | int | None = None
    decompositions: dict[Any, Callable[..., Any]] = field(default_factory=dict)
    keep_inference_input_mutations: bool = False
    retain_trace: bool = True
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
        for name in ("dynamic", "automatic_dynamic", "keep_inference_input_mutations", "retain_trace"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise OptionError(f"{name} is neither True nor False", expected="a bool", got=repr(value))
        table = self.decompositions
        if not (isinstance(table, dict) and all(map(callable, (*table, *table.values())))):
            got = repr(table)[:200]
            raise OptionError("decompositions is no dict from operations to functions", expected="a dict", got=got)
        if type(self.max_specializations) is not int or self.max_specializations < 1:
            got = repr(self.max_specializations)
            raise OptionError("max_specializations is out of range", expected="a whole number, 1 or more", got=got)
