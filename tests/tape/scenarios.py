"""Backwards of every kind: eager mode runs them for the expected gradients and hook logs."""

from __future__ import annotations

import call_scenarios  # noqa: F401
import plain_scenarios  # noqa: F401
import saving_scenarios  # noqa: F401
from scenario import SCENARIOS, Log, close

__all__ = ["NOT_CAPTURED", "NOT_TRACED", "SCENARIOS", "Log", "close"]

#: torch runs these on the plain engine: there is a transform around the backward
NOT_CAPTURED = {"functional_transforms"}
#: segments that run as they are: a region cannot trace these
NOT_TRACED = {"sparse_gradients"}
