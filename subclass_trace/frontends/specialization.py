"""One compiled instance of a region: its guards, its program, and the entry that serves calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..data.describe import Description, describe
from ..errors import (
    Reason,
)
from ..options import Options
from ..passes import PassRecord
from ..plan import Plan, SavedValue
from ..runtime.guards import Ambient
from ..runtime.program import Program
from ..runtime.source import Code
from ..runtime.specialize import Graphs
from ..state.guards import StateGuards
from ..state.place import Roots
from ..verify.proof import Proof


@dataclass(frozen=True, eq=False, repr=False)
class Specialization:
    """One compiled instance of a region with the guards under which it is right. Immutable.

    Attributes:
        misses: why each earlier specialization did not serve the call.
        ambient, state: the state of the thread, and of Python, in which it may.
        graphs: the joint (if kept), forward and backward graph modules.
        run: the generated entry: (args, kwargs) -> the result of a call, or `MISS`; ``written``:
            its source.
        failed: why it does not serve a call; None if it does.
        seconds: stage -> how long it took; ``passes``: what each pass did to the first graph.
        inlined: functions of ``torch.compile`` that are part of it -> their back ends, which do not
            run.
        rank_reads: what the trace has read of the rank of this process, and where.
        proof: what z3 says of its guards on sizes, where it was asked (`verify.debug`).
    """

    misses: tuple[Reason, ...]
    options: Options
    ambient: Ambient
    state: StateGuards
    program: Program
    graphs: Graphs
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    written: Code
    failed: Callable[[tuple[Any, ...], dict[str, Any]], Reason | None]
    seconds: Mapping[str, float]
    passes: tuple[PassRecord, ...] = ()
    inlined: Mapping[str, str] = field(default_factory=dict)
    proof: Proof | None = None
    rank_reads: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<Specialization: {len(self.guards)} guards, {len(self.saved)} saved values; "
            f"{self.reason}>"
        )

    @property
    def reason(self) -> str:
        """Why it was made: which guard of each earlier specialization failed."""
        return "; ".join(f"[{k}] {why}" for k, why in enumerate(self.misses)) or "first call"

    @property
    def plan(self) -> Plan:
        """What the run time does."""
        return self.program.plan

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """What is saved for the backward."""
        return self.plan.gradients.saved

    @property
    def source(self) -> str:
        """The source of the entry."""
        return self.written.text()

    @property
    def guards(self) -> tuple[str, ...]:
        """What it asks of a call, as code."""
        return self.written.guards

    def report(self) -> str:
        """A readable table: inputs and their leaves, outputs and how they are rewrapped, saved
        activations."""
        from ..report.text import describe

        return describe(self.plan)

    def describe(self, *args: Any, **kwargs: Any) -> Description:
        """What it is as data, but for its compiled graphs; `from_description` binds that in this
        process or another.

        Args:
            args, kwargs: of a call that it serves, where the region finds things among them by
                identity.
        """
        roots = Roots(args, kwargs, self.state.function)
        options = self.options.of_a_trace()
        of = (self.ambient, self.state, self.program, self.graphs, self.all_rank_reads)
        return describe(*of, options, roots)

    @property
    def all_rank_reads(self) -> tuple[str, ...]:
        """`rank_reads`, and those of backwards that were traced since."""
        backwards = self.program.backwards
        later = () if backwards is None else backwards.rank_reads
        return tuple(dict.fromkeys((*self.rank_reads, *later)))

    @property
    def not_portable(self) -> tuple[str, ...]:
        """What of it can be neither written as data nor reached by a place, with its path; none: it
        is portable."""
        try:
            return tuple(map(str, self.describe().gaps))
        except Exception as error:  # reading a place runs code of C on whatever stands there by now
            return (f"it cannot be described: {type(error).__name__}: {error}",)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page that needs nothing else: graphs, wrappers, what is saved, guards, seconds.
        ``path``: written there, too."""
        from ..report.page import page

        return page("specialization", [self], path)
