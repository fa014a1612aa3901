"""``if bad: raise ...`` and ``assert good, text``, of a truth that only the call knows: which
branch ends in an error, and the operator that looks.

A region is traced as if the other branch were taken. Where a call would take the one that raises,
the operator stops its program before anything is written, random numbers are what they were, and
the function runs eagerly: that raises what the user wrote, after all that comes before it, and code
of the region's may catch it.
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Callable
from typing import Any

import torch

_new_library: Any = torch.library.Library
_library = _new_library("subclass_trace", "DEF")
_library.define("check(Tensor truth, bool expected, bool drawn=False, bool another=False) -> ()")
_library.define("note_random() -> ()")


class OtherBranch(Exception):
    """A call takes the branch that its program does not have; ``drawn``: the program has drawn
    random numbers; ``another``: a specialization for it has one that has."""

    def __init__(self, drawn: bool, another: bool) -> None:
        super().__init__("a branch that raises was taken")
        self.drawn, self.another = drawn, another

    def put_back(self) -> None:
        """Random numbers are what they were when the program began."""
        if self.drawn:
            cpu, *others = _here.random
            torch.set_rng_state(cpu)
            for device, state in enumerate(others):
                torch.cuda.set_rng_state(state, device)


_here = threading.local()


def _check(truth: torch.Tensor, expected: bool, drawn: bool = False, another: bool = False) -> None:
    if bool(truth) != expected:
        raise OtherBranch(drawn, another)


def _random_states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    there: Callable[[], bool] = torch.cuda.is_initialized
    return states + (torch.cuda.get_rng_state_all() if there() else [])


def _note_random() -> None:
    _here.random = _random_states()


_library.impl("check", _check, "CompositeExplicitAutograd")
_library.impl("note_random", _note_random, "CompositeExplicitAutograd")
torch.library.register_fake(
    "subclass_trace::check", lambda truth, expected, drawn=False, another=False: None, lib=_library
)
torch.library.register_fake("subclass_trace::note_random", lambda: None, lib=_library)
check: Callable[..., None] = torch.ops.subclass_trace.check.default
#: it remembers the random numbers' state for `OtherBranch.put_back`
note_random: Callable[[], None] = torch.ops.subclass_trace.note_random.default

_NOTHING = ("CACHE", "PRECALL", "NOT_TAKEN", "EXTENDED_ARG", "TO_BOOL", "NOP", "RESUME")
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_LONGEST = 200
#: how a clone asks; Python 3.10 has no SWAP
_READS = tuple(
    ("LOAD_CONST", swap, subscript)
    for swap in ("SWAP", "ROT_TWO")
    for subscript in ("BINARY_SUBSCR", "BINARY_OP")
)


def _without_reads(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    """Without what a clone puts in between: a constant, which it asks about what is on the
    stack."""
    kept: list[dis.Instruction] = []
    k = 0
    while k < len(steps):
        names = tuple(step.opname for step in steps[k : k + 3])
        if names in _READS:
            k += 3
        else:
            kept.append(steps[k])
            k += 1
    return kept


def _raises(steps: list[dis.Instruction]) -> bool:
    """Does this end in an error, whatever happens on the way?"""
    for step in steps[:_LONGEST]:
        if step.opname == "RAISE_VARARGS":
            return True
        if step.opcode in _JUMPS or step.opname.startswith(
            ("RETURN", "YIELD", "RERAISE", "SETUP_", "SEND")
        ):
            return False
    return False


def branch_without_error(frame: Any) -> bool | None:
    """A value is asked for its truth in this frame, of a branch that ends in an error: the truth
    that does not lead there.

    None where something else asks, or where both ways go on.
    """
    steps = [step for step in dis.get_instructions(frame.f_code) if step.opname not in _NOTHING]
    at = next((k for k, step in enumerate(steps) if step.offset >= frame.f_lasti), len(steps))
    if steps[at : at + 1] and steps[at].opcode not in _JUMPS:
        steps, at = _without_reads(steps[at + 1 :]), 0
    if not steps[at:] or not steps[at].opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jump = steps[at]
    there = next((k for k, step in enumerate(steps) if step.offset >= jump.argval), len(steps))
    goes_on, jumps = (
        not _raises(steps[at + 1 :]),
        not _raises(steps[there:]) or jump.argval < jump.offset,
    )
    if goes_on == jumps:
        return None
    return jumps is jump.opname.endswith("IF_TRUE")
