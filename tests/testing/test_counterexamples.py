"""A counterexample is a program: it runs with torch and the class alone, and shows the failure.

`test_rules.py` runs those of all broken subclasses.
"""

from __future__ import annotations

import subprocess
import sys

from subclass_trace.testing import check


def test_it_runs_in_a_fresh_interpreter_and_prints_both_sides() -> None:
    report = check("torch.testing._internal.custom_tensor:CustomTensorPlainOut", rules=["ST502"])
    failure = report.result("ST502").failure
    assert failure is not None
    done = subprocess.run([sys.executable, "-c", failure.script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "got:      <class 'torch.Tensor'>" in done.stdout
    assert "expected: <class 'torch.testing._internal.custom_tensor.CustomTensorPlainOut'>" in done.stdout
    assert "AssertionError: clone keeps the class" in done.stderr


def test_a_class_that_cannot_be_imported_is_named() -> None:
    import torch
    from sound import Sound

    class Local(Sound):
        def __tensor_flatten__(self):
            return ["data_", "extra"], {"tensor": torch.ones(1)}

        @classmethod
        def __tensor_unflatten__(cls, inner, context, size, stride):
            return cls(inner["data_"], inner["extra"], "tag", size, stride)

    failure = check(Local, factory="Local({0})", rules=["ST107"]).result("ST107").failure
    assert failure is not None
    assert "# Local cannot be imported: put its definition in front to run this" in failure.script
