"""pytest and hypothesis find the kit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as s

import subclass_trace
from subclass_trace import WrapperTensor
from subclass_trace.testing import register_strategy
from subclass_trace.testing.pytest_plugin import ConformanceTests
from subclass_trace.zoo import TwoTensor

ROOT = Path(subclass_trace.__file__).parent.parent


class TestInherited(ConformanceTests):
    """The rules appear as tests of this class."""

    target = TwoTensor
    options = {"to_dense": "{0}.a"}
    skip = {r.id: "only some here" for r in __import__("subclass_trace.testing.rules", fromlist=["load"]).load()[5:]}


def test_rules_are_tests_that_print_the_counterexample(tmp_path: Path) -> None:
    """Logs are not flooded: pytest prints what was logged, and a compilation logs thousands of lines of its own."""
    (tmp_path / "test_doubles.py").write_text(FAILS_COMPILED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "ST101 or ST701"]
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}  # there pytest prints all
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
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


class Pruned(WrapperTensor, default="refuse"):
    """Its inner tensors must fit together."""

    values_: torch.Tensor
    mask: torch.Tensor

    def __post_init__(self) -> None:
        if self.mask.shape != self.values_.shape or self.mask.dtype is not torch.bool:
            raise ValueError("the mask does not fit")


def test_a_registered_class_has_a_strategy_for_its_type() -> None:
    register_strategy(Pruned, "Pruned({0}, {0} > 1)", dtypes=[torch.float32])

    @settings(max_examples=20, deadline=None)
    @given(s.from_type(Pruned))
    def fits(x: Pruned) -> None:
        assert type(x) is Pruned and x.mask.equal(x.values_ > 1)

    fits()
