"""Some 2,000 generated programs that read Python's state, with fixed seeds; eager is the oracle.

`generate.py` makes them, and is a command line; `judging.py` judges them. New seeds: `make fuzz`.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from subclass_trace.frontends import region

from . import judging
from .generate import Program, program

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from through import Through

NUMBER = 2000  # of seeds; some 6 % of them are no programs
CHUNK = 50
STARTS = range(0, NUMBER, CHUNK)
#: share of programs that our own trace may refuse
REFUSED = 0.08


@dataclass(frozen=True)
class Judged:
    """A program with the verdict on it."""

    program: Program
    verdict: judging.Verdict

    def __str__(self) -> str:
        seed, verdict = self.program.seed, self.verdict
        return f"seed {seed}: {verdict.word}: {self.program}\n    {verdict.detail}"


@pytest.fixture(autouse=True, scope="module")
def _threads() -> Iterator[None]:
    number = torch.get_num_threads()
    yield
    torch.set_num_threads(number)


@functools.cache
def _judged(start: int) -> list[Judged]:
    programs = [program(seed) for seed in range(start, start + CHUNK)]
    found = [Judged(p, judging.judge(p)) for p in programs]
    return [judged for judged in found if judged.verdict.word != "invalid"]


def _all(starts: range = STARTS) -> list[Judged]:
    return [judged for start in starts for judged in _judged(start)]


def _faults(judged: list[Judged]) -> str:
    return "\n".join(str(j) for j in judged if j.verdict.word in judging.FAULTS)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.sweep(every=8)
def test_programs(start: int) -> None:
    """By our own trace: as eager, or refused with the state as before."""
    assert not (faults := _faults(_judged(start))), faults


@pytest.mark.long
def test_few_are_refused() -> None:
    """And few seeds are no programs."""
    words = [judged.verdict.word for judged in _all()]
    assert len(words) > 0.9 * NUMBER
    assert words.count("refused") <= REFUSED * len(words)


@pytest.mark.long
def test_what_is_not_read_is_not_compared() -> None:
    """A change of something that a region does not read is no new specialization. (Branches of `cond` are read as a whole.)"""
    unread = [j for j in _all() if j.program.is_unread and j.verdict.word == "right"]
    unread = [j for j in unread if j.program.names["place"] != "a branch of cond"]
    assert len(unread) > 50
    again = [str(j.program) for j in unread if j.verdict.specializations > 1]
    assert not again, "\n".join(again)


SOME = pytest.mark.parametrize("starts", [STARTS[:1], pytest.param(STARTS, marks=pytest.mark.long)], ids=len)


def _by_default(judged: list[Judged]) -> None:
    """What goes to Dynamo is at least as good as `torch.compile` alone."""
    found = [Judged(j.program, judging.judge(j.program, "auto")) for j in judged]
    bad = [j for j in found if j.verdict.word in judging.FAULTS]
    ours = [j for j in bad if not j.verdict.handed_over]
    ours += [j for j in bad if j not in ours and judging.judge(j.program, "stack").word == "right"]
    assert not ours, _faults(ours)


@SOME
def test_refused_ones_by_default(starts: range) -> None:
    """Each fourth; the others are slow."""
    _by_default([j for j in _all(starts) if j.verdict.word == "refused"][::4])


@pytest.mark.slow
def test_all_refused_ones_by_default() -> None:
    _by_default([j for j in _all() if j.verdict.word == "refused"])


@SOME
def test_others_by_default(starts: range) -> None:
    """What our own trace takes is the same by default: each twentieth."""
    _by_default([j for j in _all(starts) if j.verdict.word == "right"][::20])


@pytest.mark.fuzz
def test_new_programs() -> None:
    """Other seeds each time; ``python -m tests.state.generate --seed N --show`` shows one again."""
    start = random.SystemRandom().randrange(10**5, 10**9)
    programs = [program(seed) for seed in range(start, start + 3000)]
    found = [Judged(p, judging.judge(p)) for p in programs]
    assert not (faults := _faults(found)), faults


# ---------------------------------------------------------------------------------------------- as data
@pytest.mark.parametrize("start", range(100_000, 100_000 + 6 * CHUNK, CHUNK))
@pytest.mark.sweep(every=6)
def test_programs_through_json(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each specialization is described, and bound from that in place of itself."""
    through = Through()
    monkeypatch.setattr(region, "compile_call", through)
    assert not (faults := _faults(_judged(start))), faults
    assert through.portable > 5 * len(through.gaps)
