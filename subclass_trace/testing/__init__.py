"""Is a tensor subclass sound? ``check(cls)`` runs the rules on generated examples; see
docs/conformance.md.

>>> from subclass_trace.testing import check
>>> from subclass_trace.zoo import TwoTensor
>>> check(TwoTensor, rules=["ST101"], max_examples=5).ok
True
"""

from .emulated import EmulatedRecorder
from .equivalence import EquivalenceError, assert_equivalent, round_trips
from .evidence import Failure
from .kit import ConformanceError, assert_conforms, check
from .report import Report
from .rules import PROFILES, Profile, Rule, Severity
from .runner import Outcome, Result
from .script import NotApplicable, Script
from .strategies import programs, register_strategy, wrappers
from .subject import Subject, subject_of

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
