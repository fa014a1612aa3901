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


def _pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # without installation, the entry point is named on the command line
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "_subclass_trace_plugins",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    # where CI is set, pytest prints whole values instead of their beginnings
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_the_option_runs_rules_as_tests(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other():\n    raise SystemError\n")
    target = "torch.testing._internal.custom_tensor:CustomTensorPlainOut"
    done = _pytest("--subclass-check", target, "-k", "ST101 or ST502", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "ST502-clones" in done.stdout and "y = x.clone()" in done.stdout


def test_classes_of_the_current_directory_are_found(tmp_path: Path) -> None:
    (tmp_path / "fails_compiled.py").write_text(FAILS_COMPILED)
    program = (
        "import sys, pytest; sys.path.remove(''); sys.exit(pytest.main(sys.argv[1:]))"  # like the command `pytest`
    )
    command = [sys.executable, "-c", program, "-q", "-p", "_subclass_trace_plugins", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command += ["--subclass-check", "fails_compiled:Doubles", "-k", "ST101"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_bad_target_is_a_usage_error(tmp_path: Path) -> None:
    done = _pytest("--subclass-check", "no.such:Thing", cwd=tmp_path)
    assert done.returncode == 4
    assert "cannot find 'no.such:Thing'" in done.stdout + done.stderr


def test_logs_are_not_flooded(tmp_path: Path) -> None:
    """A failing test prints what was logged; a compilation logs thousands of lines of structured trace."""
    (tmp_path / "fails_compiled.py").write_text(FAILS_COMPILED)
    done = _pytest("--subclass-check", "fails_compiled:Doubles", "-k", "ST701", cwd=tmp_path)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert "the result of eager mode" in done.stdout
    assert "torch.__trace" not in done.stdout and len(done.stdout.splitlines()) < 150


FAILS_COMPILED = """
import torch
from subclass_trace import WrapperTensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

aten = torch.ops.aten


class Doubles(WrapperTensor, default="per_inner"):
    data_: torch.Tensor


@Doubles.implements(aten.sin.default)
def _sin(func, x):
    traced = isinstance(x.data_, (FakeTensor, FunctionalTensor))
    return Doubles(func(x.data_) * (2 if traced else 1))
"""


def test_loading_the_plugin_does_not_import_torch() -> None:
    code = "import _subclass_trace_plugins as p, sys; p.register_strategies(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)


def test_the_kit_may_be_what_imports_hypothesis() -> None:
    """Then hypothesis calls the entry point in the middle of that import, and it must not import more of the kit."""
    code = """
import sys, types
import torch, subclass_trace, _subclass_trace_plugins
sys.modules["subclass_trace.testing"] = types.ModuleType("subclass_trace.testing")
_subclass_trace_plugins.register_strategies()
assert "subclass_trace.testing.kit" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)


@settings(max_examples=10, deadline=None)
@given(s.from_type(TwoTensor), s.from_type(torch.Tensor))
def test_types_have_strategies(x: torch.Tensor, y: torch.Tensor) -> None:
    assert type(x) is TwoTensor
    assert type(y) is torch.Tensor


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
