"""Is a tensor subclass sound? ``check(cls)`` runs the rules on generated examples; see
docs/conformance.md.

>>> from subclass_trace.testing import check
>>> from subclass_trace.zoo import TwoTensor
>>> check(TwoTensor, rules=["ST101"], max_examples=5).ok
True

Which file decides what:

- subject, building, resolve: how instances are made; operands: of which sizes, dtypes, layouts and
  contexts; calls: what is done with them.
- evidence, render: how a call, and what was found, is written down as a program; script: lines that
  run as they are written down.
- judging (values, modes, masks), memory, gradients: is what a call gives right? sweep: all calls;
  refusals: is a refusal a fault? checks: the rules that need lines of their own.
- runner, isolation: running rules, in a forked process; causes, report, kit, pytest_plugin: what is
  told of it; strategies, equivalence: for tests of one's own.
"""

from typing import Any

from .emulated import EmulatedRecorder
from .equivalence import EquivalenceError, assert_equivalent, round_trips
from .evidence import Failure
from .kit import ConformanceError, assert_conforms, check
from .report import Report
from .rules import PROFILES, Profile, Rule, Severity
from .runner import Outcome, Result
from .script import NotApplicable, Script
from .subject import Subject, subject_of

#: what needs hypothesis, which `check` does not
_STRATEGIES = frozenset({"programs", "register_strategy", "wrappers"})


def __getattr__(name: str) -> Any:
    if name not in _STRATEGIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import strategies

    return getattr(strategies, name)


__all__ = [
    "PROFILES",
    "ConformanceError",
    "EmulatedRecorder",
    "EquivalenceError",
    "Failure",
    "NotApplicable",
    "Outcome",
    "Profile",
    "Report",
    "Result",
    "Rule",
    "Script",
    "Severity",
    "Subject",
    "assert_conforms",
    "assert_equivalent",
    "check",
    "programs",
    "register_strategy",
    "round_trips",
    "subject_of",
    "wrappers",
]
