"""Short named programs, one fact each: what a region supports, refuses, or does differently from eager.

`test_cases.py` runs every case, and `tools/limits_table.py` prints the same list as docs/limits.md, so the table
cannot say anything that a test did not see. The column about torch.compile is from a survey of torch 2.13 (aot_eager).
"""

from __future__ import annotations

import importlib

from case_kit import CASES, Case

for part in (
    "cases_of_values",
    "cases_of_outputs",
    "cases_of_gradients",
    "cases_of_hooks",
    "cases_of_modes",
    "cases_of_training",
    "cases_of_sizes",
    "cases_of_contexts",
    "cases_of_surroundings",
    "cases_of_python_state",
):  # in the order of the table
    importlib.import_module(part)

__all__ = ["CASES", "Case"]
