"""`trace`: look at the graphs and the plan of a region; nothing is compiled, and nothing runs on real data.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from ..backends import Backend
from ..partition.interface import resolve_partitioner
from ..plan import Plan, SavedValue, ValueOutput, ViewOutput
from ..report.code import graph_code
from ..report.names import input_names, output_names, result_paths, saved_name, value_names
from ..report.text import describe
from ..subclass.spec import Spec, leaf_paths
from .compile import make_options
from .region import Region
from .specialization import Specialization


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What a region would be compiled from. ``print`` it.

    Attributes:
        function: name of the traced function.
        joint, forward, backward: dense graphs; ``joint`` and ``backward`` are None when no result is differentiable.
        plan: what the run time would do around the graphs.
        spec: path -> spec, of every input, and of every result that is made or viewed.
        names: placeholder of any of the graphs -> what it is.
        results: what each output of the forward graph is.
        gradients: what each output of the backward graph is.
    """

    function: str
    joint: fx.GraphModule | None
    forward: fx.GraphModule
    backward: fx.GraphModule | None
    plan: Plan
    spec: Mapping[str, Spec]
    names: Mapping[str, str]
    results: tuple[str, ...]
    gradients: tuple[str, ...]

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """What would be saved for the backward."""
        return self.plan.gradients.saved

    @property
    def graphs(self) -> dict[str, fx.GraphModule]:
        """The graphs that there are: "joint", "forward", "backward"."""
        found = {"joint": self.joint, "forward": self.forward, "backward": self.backward}
        return {name: graph for name, graph in found.items() if graph is not None}

    def code(self, name: str) -> str:
        """The graph of this name as readable code.

        Raises:
            KeyError: there is no such graph.
        """
        outputs: Sequence[str] = self.gradients if name == "backward" else self.results
        if name == "joint":
            hidden = [""] * self.graphs[name].meta.get("draws", 0)  # drawn or done, and read by nobody
            outputs = (*self.results[: len(self.results) - len(self.saved)], *hidden, *self.gradients)
        return graph_code(self.graphs[name].graph, name, self.names, outputs)

    def __str__(self) -> str:
        codes = "\n\n".join(self.code(name) for name in self.graphs)
        return f"trace of {self.function}\n\n{describe(self.plan)}\n\n{codes}"

    def __repr__(self) -> str:
        return f"<Trace of {self.function}: {', '.join(self.graphs)}>"


class Tracer:
    """`trace` with options: ``Tracer(partitioner="default", dynamic=True)(fn, *args)``.

    The options are those of `compile`. Of a back end its decompositions are used, and what the partitioner does for it.

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
        entry = Region(function, self.options, keep_joint=True).specialize(*args, **kwargs)
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        return _trace_of(name, entry)


def trace(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Trace:
    """The graphs, specs and plan of ``function`` for a call with these arguments, with the default options.

    See `Tracer` for other options and what is raised.
    """
    return Tracer()(function, *args, **kwargs)


def _as_it_is(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    graph.recompile()  # ``graph.code`` shows the graph as it is now
    return graph.forward


def _trace_of(name: str, entry: Specialization) -> Trace:
    plan, graphs = entry.plan, entry.graphs
    saved = {row.name: saved_name(row) for row in plan.gradients.saved}
    names = {**saved, **input_names(plan)}  # a saved input is called what it is
    gradients: list[str] = []
    backwards = () if entry.program.backwards is None else entry.program.backwards.compiled
    if backwards:  # none where it is refused, when a call asks for it
        first = backwards[0]
        values = value_names(plan)
        live = zip(plan.gradients.differentiable, first.tangents, strict=True)
        tangents = [p for k, s in live if s is not None for p in leaf_paths(s, f"tangent of {values[k]}")]
        names.update(zip(first.tangent_names, tangents, strict=True))
        for number, grad in zip(plan.gradients.differentiated, first.grads, strict=True):
            if grad is not None:
                gradients += leaf_paths(grad, f"gradient of {plan.inputs.rows[number].path}")
    spec: dict[str, Spec] = {str(row.path): row.spec for row in plan.inputs.rows}
    for path, output in zip(result_paths(plan), plan.results.outputs, strict=True):
        if isinstance(output, (ValueOutput, ViewOutput)):
            spec[path] = output.spec
    results = tuple(output_names(plan))
    return Trace(name, graphs.joint, graphs.forward, graphs.backward, plan, spec, names, results, tuple(gradients))
