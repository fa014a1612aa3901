"""Generated programs, eager against compiled. Seeds of found faults stay below as plain programs.

``pytest -m fuzz tests/differential`` searches longer (``HYPOTHESIS_PROFILE=thorough``).
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from oracle import Difference, backward_of, check
from strategies import Program, programs


def _compare(program: Program) -> None:
    fn, make = program.functions()
    backward = None if program.backward is None else backward_of(program.backward, program.how)
    try:
        check(fn, make, backward=backward, specializations=1)
    except Difference as found:
        raise Difference(f"{found}\n{program!r}") from found.__cause__


@settings(max_examples=100)
@given(programs())
def test_generated_programs(program: Program) -> None:
    _compare(program)


@pytest.mark.fuzz
@settings(settings.get_profile("thorough"))
@given(programs(max_lines=12))
def test_generated_programs_thoroughly(program: Program) -> None:
    _compare(program)
