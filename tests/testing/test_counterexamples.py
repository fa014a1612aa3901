"""A counterexample is a program: it runs with torch and the class alone, and shows the failure."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import broken
import pytest

from subclass_trace.testing import check
from subclass_trace.testing.profiles import Profile
from subclass_trace.testing.rules import load
from subclass_trace.testing.runner import run_rule

BROKEN = broken.load()
FEW = Profile("few", 40, 3, 0.2)


@pytest.mark.parametrize("subject", BROKEN, ids=lambda b: f"{b.rule}-{b.subject.cls.__name__}")
def test_the_program_fails_as_it_says(subject: broken.Broken) -> None:
    rule = next(r for r in load() if r.id == subject.rule)
    failure = run_rule(subject.subject, rule, FEW).failure
    assert failure is not None
    text = failure.script
    import torch

    if "compile" not in text:
        assert "subclass_trace" not in text
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as caught:
            exec(compile(text, "<counterexample>", "exec"), {"__name__": "__counterexample__"})
    assert not isinstance(caught.value, (NameError, SyntaxError, ImportError)), f"{caught.value}\n{text}"


def test_it_runs_in_a_fresh_interpreter_and_prints_both_sides() -> None:
    report = check("torch.testing._internal.custom_tensor:CustomTensorPlainOut", rules=["ST502"])
    failure = report.result("ST502").failure
    assert failure is not None
    done = subprocess.run([sys.executable, "-c", failure.script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "got:      <class 'torch.Tensor'>" in done.stdout
    assert "expected: <class 'torch.testing._internal.custom_tensor.CustomTensorPlainOut'>" in done.stdout
    assert "AssertionError: clone keeps the class" in done.stderr


def test_counterexamples_are_small() -> None:
    report = check("torch.testing._internal.custom_tensor:CustomTensorPlainOut", rules=["ST502"])
    failure = report.result("ST502").failure
    assert failure is not None
    assert "x = CustomTensorPlainOut(torch.arange(1, 2, dtype=torch.float32).reshape(())" in failure.script


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
    assert Path(__file__).exists()
