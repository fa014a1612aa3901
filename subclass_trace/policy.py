"""The thresholds that decide who serves a call, in one record. ``explain()`` prints it.

>>> POLICY.misses, str(POLICY).splitlines()[0]
(8, 'misses: 8')
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Policy:
    """See `POLICY`. None of these decides what is right, but what is worth its cost.

    Attributes:
        misses: so many in a row at which no earlier value returns hand a region over, and twice as
            many of any kind; after four times as many no specialization is asked any more.
        waits: so many calls of a region may run eagerly because a later one has the better trace.
        idle: so many calls in which no graph of Dynamo's was worth its guards: there is none, as of
            ``nn.LSTM``, or code that Dynamo breaks into pieces.
        again: after so many more it is asked again, since other calls may have larger ones.
        sure: so many calls in a row with such a graph: Dynamo's limit of recompilations is not what
            decides.
        worth: for so many calls of torch's functions, on average, graphs of the eager back end cost
            less than they spare.
        in_vain: so many calls in a row in which Dynamo tried frames in vain: it keeps nothing of
            that, and will try in each call.
        warm, timed: after so many calls with a graph, so many run eagerly, so that both times are
            known.
        equal_modules: so many programs of other modules of a class are tried, the latest first.
        few: of more operations, our backward is quicker than autograd's.
        small: so many bytes are sooner kept than computed again by a back end that calls one
            operation after the other.
        of_state: so many backwards may differ by Python state alone.
        paths: for so many kinds of tangents there is generated code.
        places: so many places of Python state may a region read; a LLaMA of 32 layers reads some
            30,000.
    """

    misses: int = 8
    waits: int = 8
    idle: int = 3
    again: int = 64
    sure: int = 16
    worth: int = 16
    in_vain: int = 5
    warm: int = 4
    timed: int = 2
    equal_modules: int = 8
    few: int = 24
    small: int = 1 << 16
    of_state: int = 8
    paths: int = 4
    places: int = 400_000

    def __str__(self) -> str:
        return "\n".join(f"{f.name}: {getattr(self, f.name):,}" for f in fields(self))


POLICY = Policy()
