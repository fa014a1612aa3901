"""The verifier: checks between the stages that tests switch on. It finds our own faults.

Each stage has one function: `verify_joint` after the trace, `verify_partition` after the partition, `verify_plan` on the
plan, `verify_backward` for a backward that is traced later. A rule is a function with a sentence of
documentation; each raises `VerificationError` with what is wrong, where, what was expected and what is there. The functions
check whenever they are called; callers in the package ask ``verify.ENABLED`` first::

    with verify.enabled():
        compiled(x).sum().backward()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .graphs import verify_backward as verify_backward
from .graphs import verify_forward as verify_forward
from .graphs import verify_joint as verify_joint
from .graphs import verify_partition as verify_partition
from .plans import verify_plan as verify_plan

#: do the stages of the package call the verifier? Tests set it (`enabled`); the functions here check regardless.
ENABLED = False


@contextlib.contextmanager
def enabled(on: bool = True) -> Iterator[None]:
    """While inside, every stage verifies what it made."""
    global ENABLED
    before, ENABLED = ENABLED, on
    try:
        yield
    finally:
        ENABLED = before
