"""The rules as tests of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import subclass_trace

ROOT = Path(subclass_trace.__file__).parent.parent


def _pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    # where CI is set, pytest prints whole values instead of their beginnings
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_rules_are_tests_of_a_class_that_print_the_counterexample(tmp_path: Path) -> None:
    """Logs are not flooded: pytest prints what was logged, and a compilation logs thousands of lines of its own."""
    (tmp_path / "test_doubles.py").write_text(FAILS_COMPILED)
    done = _pytest("-k", "ST101 or ST701", cwd=tmp_path)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "ST701-forward" in done.stdout and "the result of eager mode" in done.stdout
    assert "torch.__trace" not in done.stdout and len(done.stdout.splitlines()) < 150


FAILS_COMPILED = """
import torch
from subclass_trace import WrapperTensor
from subclass_trace.testing.pytest_plugin import ConformanceTests
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

aten = torch.ops.aten


class Doubles(WrapperTensor, default="per_inner"):
    data_: torch.Tensor


@Doubles.implements(aten.sin.default)
def _sin(func, x):
    traced = isinstance(x.data_, (FakeTensor, FunctionalTensor))
    return Doubles(func(x.data_) * (2 if traced else 1))


class TestDoubles(ConformanceTests):
    target = Doubles
"""
