"""Passes: functions that change the dense graph of a region before it is partitioned.

>>> import torch, subclass_trace as st
>>> def sum_in_double(graph):
...     for node in list(graph.find(operation="aten.sum.default")):
...         to, x = torch.ops.aten._to_copy.default, node.args[0]
...         wide = graph.insert(x, to, x, dtype=torch.float64)
...         total = graph.insert(wide, torch.ops.aten.sum.default, wide)
...         graph.replace(node, graph.insert(total, to, total, dtype=torch.float32))
...         graph.graph.erase_node(node)
>>> total = st.compile(torch.sum, passes=[sum_in_double])
>>> total(torch.tensor([1e8, 1.0, -1e8])).item()
1.0

A pass is called once for each graph of a region: the joint graph of forward and backward, those of
backwards that are traced later, and a forward alone; it has to do the same to the forward in each.
It runs before the partitioner, so what it tags (``node.meta["recompute"]``) is honoured; after it
the graph is checked (`checks`), and what it changed is in ``explain()`` and on the page of the
region. The contract is that of torchtitan's graph trainer, in spirit: one pass, one function of the
graph.
"""

from __future__ import annotations

import collections
import difflib
import functools
import importlib
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.fx as fx

from ..errors import OptionError, PassError
from ..torch_api.lines import warn_user
from ..torch_api.modes import no_modes
from ..torch_api.texts import text_of
from .checks import Before, check
from .graph import JointGraph, Pass

__all__ = [
    "JointGraph",
    "Pass",
    "PassRecord",
    "bucket_collectives",
    "memory_policy",
    "register",
    "registered",
]


_GROUP = "subclass_trace.passes"
_own: dict[str, Pass] = {}
_LAZY = {"bucket_collectives": ".collectives", "memory_policy": ".memory"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name], __name__), name)


def register(name: str, run: Pass, *, replace: bool = False) -> None:
    """Give a pass a name, by which ``passes=["name"]`` finds it. (A package may name some as entry
    points of the group ``subclass_trace.passes``.)

    Raises:
        OptionError: the name is taken, or it is no callable.
    """
    if not callable(run):
        raise OptionError(
            "a pass is a function of a JointGraph",
            path=name,
            expected="a callable",
            got=text_of(run),
        )
    if name in registered() and not replace:
        raise OptionError(
            f"there is a pass {name!r} already",
            path="name",
            fix="choose another name, or say replace=True",
        )
    _own[name] = run


def registered() -> dict[str, str]:
    """The names that there are, and where each pass is defined."""
    found = {point.name: point.value for point in importlib.metadata.entry_points(group=_GROUP)}
    return {**found, **{name: name_of(run) for name, run in {**_built_in(), **_own}.items()}}


@functools.cache
def _built_in() -> dict[str, Pass]:
    from .cleanup import cleanup
    from .collectives import bucket_collectives, overlap_collectives

    return {
        "cleanup": cleanup,
        "bucket_collectives": bucket_collectives(),
        "overlap_collectives": overlap_collectives,
    }


def resolve(choice: Any) -> Pass:
    """The pass that a user means.

    Raises:
        OptionError: there is none of that name, or it is no callable.
    """
    if callable(choice):
        return choice  # type: ignore[no-any-return]
    known = {**_built_in(), **_own}
    if choice in known:
        return known[choice]
    for point in importlib.metadata.entry_points(group=_GROUP):
        if point.name == choice:
            loaded: Pass = point.load()
            return loaded
    close = difflib.get_close_matches(str(choice), registered(), 1)
    raise OptionError(
        f"there is no pass {text_of(choice)}",
        path="passes",
        expected=f"a function of a JointGraph, or one of {sorted(registered())}",
        got=text_of(choice),
        fix=f"did you mean {close[0]!r}?" if close else None,
    )


def passes_of(choices: Sequence[Any], on_error: str) -> Passes | None:
    """The passes that options name; None: there are none."""
    return Passes([*map(resolve, choices)], on_error == "skip") if choices else None


def name_of(run: Pass) -> str:
    """What people call a pass."""
    return str(getattr(run, "__qualname__", None) or repr(run))


@dataclass(frozen=True)
class PassRecord:
    """What a pass did to a graph.

    Attributes:
        name: of the pass.
        seconds: how long it took, its check included.
        operations: operation -> how many more of it there are (fewer: below zero).
        diff: lines of the graph, those taken out with "-", those put in with "+".
    """

    name: str
    seconds: float
    operations: dict[str, int]
    diff: tuple[str, ...]

    def __str__(self) -> str:
        rows = [f"{count:+d} {name}" for name, count in self.operations.items()]
        unseen = "arguments or tags changed" if self.diff else "nothing changed"
        return f"{self.name}: {', '.join(rows) or unseen}"


@dataclass(eq=False)
class Passes:
    """The passes of one trace.

    Attributes:
        runs: in order; ``skips``: a pass that fails is no error: the graph stays as it was.
        records: what they did to the first graph.
    """

    runs: Sequence[Pass]
    skips: bool = False
    records: list[PassRecord] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __call__(self, module: fx.GraphModule) -> None:
        """Run them on a graph.

        Raises:
            PassError: one of them raises, or leaves a graph that does something else.
        """
        kept = fx.Graph()
        kept.output(kept.graph_copy(module.graph, {}))
        records = []
        try:
            records = [_run(run, module) for run in self.runs]
        except PassError as error:
            if not self.skips:
                raise
            module.graph = kept
            warn_user(f"a region is compiled without its passes: {error}")
        self.records = self.records or records


def _run(run: Pass, module: fx.GraphModule) -> PassRecord:
    start, name = time.perf_counter(), name_of(run)
    before, lines, counts = Before.of(module.graph), _lines(module.graph), _counts(module.graph)
    try:
        with no_modes():  # what it computes with fake tensors is no part of the trace
            given = run(JointGraph(module))
    except PassError:
        raise
    except Exception as error:
        raise PassError(
            "a pass raises an error", path=name, got=f"{type(error).__name__}: {error}"
        ) from error
    if given is not None:
        fix = "change graph.graph, and return nothing"
        raise PassError(
            "a pass gives something back, which nobody takes",
            path=name,
            got=type(given).__name__,
            fix=fix,
        )
    check(module.graph, before, name, reorders=getattr(run, "reorders_collectives", False))
    changes = _counts(module.graph)
    changes.subtract(counts)
    diff = difflib.unified_diff(lines, _lines(module.graph), lineterm="", n=1)
    rest = {target: count for target, count in changes.items() if count}
    return PassRecord(name, time.perf_counter() - start, rest, tuple(diff)[2:])


def _counts(graph: fx.Graph) -> collections.Counter[str]:
    return collections.Counter(str(n.target) for n in graph.nodes if n.op == "call_function")


def _lines(graph: fx.Graph) -> list[str]:
    return [f"{n.format_node()}{_tag(n)}" for n in graph.nodes if n.op != "placeholder"]


def _tag(node: fx.Node) -> str:
    tag: Any = node.meta.get("recompute")
    return "" if tag is None else f"  # {getattr(tag, 'name', tag)}"
