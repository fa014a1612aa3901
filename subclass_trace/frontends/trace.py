"""`trace`: look at the graphs and the plan of a region; nothing is compiled, and nothing runs on
real data.

>>> import torch, subclass_trace as st
>>> from subclass_trace.zoo import TwoTensor
>>> x = TwoTensor(torch.ones(2), torch.zeros(2)).requires_grad_()
>>> found = st.trace(lambda x: x * x, x)
>>> found.names["primals_1"], found.results
('args[0].a', ('result.a', 'result.b', 'saved: args[0].a', 'saved: args[0].b'))
>>> print(found.code("backward"))
def backward(
    primals_1,  # float32[2]  args[0].a
    primals_2,  # float32[2]  args[0].b
    tangents_1,  # float32[2]  tangent of result.a
    tangents_2,  # float32[2]  tangent of result.b
):
    ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx as fx

from ..backends import Backend
from ..partition.interface import resolve_partitioner
from ..report.names import name_of
from ..report.trace import Trace, trace_of
from .compile import check_callable, make_options
from .region import Region


class Tracer:
    """`trace` with options: ``Tracer(partitioner="default", dynamic=True)(fn, *args)``.

    The options are those of `compile`. Of a back end its decompositions are used, and what the
    partitioner does for it.

    Raises:
        OptionError: an unknown option or value.
    """

    def __init__(self, **options: Any) -> None:
        chosen = make_options(options)
        backend = chosen.resolve_backend()
        graphs_only = Backend("trace", _as_it_is, _as_it_is, _as_it_is, backend.decompositions)
        partitioner = resolve_partitioner(chosen.partitioner, chosen.activation_memory_budget)
        self.options = dataclasses.replace(
            chosen,
            backend=graphs_only,
            fw_compiler=None,
            bw_compiler=None,
            options=None,
            partitioner=partitioner,
            activation_memory_budget=None,
        )

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Trace:
        """Trace ``function`` for a call with these arguments, which stay as they are.

        Raises:
            SubclassTraceError: a refusal, as of a compiled region.
        """
        check_callable(function, "write st.trace(function, *args)")
        entry = Region(function, self.options, keep_joint=True).specialize(*args, **kwargs)
        return trace_of(name_of(function), entry)


def trace(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Trace:
    """The graphs, specs and plan of ``function`` for a call with these arguments, with the default
    options.

    See `Tracer` for other options and what is raised.
    """
    return Tracer()(function, *args, **kwargs)


def _as_it_is(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    graph.recompile()  # ``graph.code`` shows the graph as it is now
    return graph.forward
