"""The functions, the report and the command line; strategies, counterexamples, and the rules as tests of pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import find, given, settings
from sound import Sound, subject

import subclass_trace
from subclass_trace import cli
from subclass_trace.errors import OptionError, ProtocolError
from subclass_trace.testing import (
    ConformanceError,
    assert_conforms,
    check,
    register_strategy,
    runner,
    wrappers,
)
from subclass_trace.testing.operands import LAYOUTS, gap
from subclass_trace.testing.resolve import resolve
from subclass_trace.testing.rules import load, select
from subclass_trace.testing.runner import Outcome
from subclass_trace.testing.subject import subject_of
from subclass_trace.zoo import TwoTensor

PLAIN_OUT = "torch.testing._internal.custom_tensor:CustomTensorPlainOut"


def test_rules_have_everything_that_their_pages_need() -> None:
    rules = load()
    assert len(rules) >= 40
    assert len({r.id for r in rules}) == len({r.slug for r in rules}) == len(rules)
    for r in rules:
        assert len(r.text) > 80, r.id
        assert r.text.count("Passes: ") == r.text.count("Fails: ") == 1, r.id


@pytest.mark.parametrize(
    ("rules", "skip", "expected"),
    [
        (["ST101"], (), {"ST101"}),
        (["ST10"], ["ST101"], {f"ST10{k}" for k in (2, 3, 6, 7, 9)}),
        (["st101"], (), {"ST101"}),
    ],
)
def test_rules_are_chosen_by_id_and_prefix(rules: list[str], skip: list[str], expected: set[str]) -> None:
    assert {r.id for r in select(rules, skip)} == expected


def test_check_reports_every_rule() -> None:
    report = check(TwoTensor, rules=["ST1"], max_examples=3)
    assert [r.rule for r in report.results] == list(load())
    assert {r.outcome for r in report.results if r.rule.id.startswith("ST1")} == {Outcome.PASS}
    assert {r.outcome for r in report.results if not r.rule.id.startswith("ST1")} == {Outcome.SKIPPED}
    assert report.ok


def test_a_rule_without_a_check_does_not_pass() -> None:
    result = check(TwoTensor, dtypes=[torch.int64], rules=["ST401"], max_examples=3).result("ST401")
    assert (result.outcome, result.checks) == (Outcome.NOT_APPLICABLE, 0)
    assert result.reason == "there is no call of this kind that it does"


@pytest.mark.long
def test_assert_conforms() -> None:
    assert assert_conforms(TwoTensor, rules=["ST101"], max_examples=3).ok
    with pytest.raises(ConformanceError, match=r"breaks 1 of \d+ rules\nST502 clone keeps type and value") as caught:
        assert_conforms(PLAIN_OUT, rules=["ST502"], max_examples=3)
    assert isinstance(caught.value, AssertionError)
    assert caught.value.report.failures[0].rule.id == "ST502"


# ------------------------------------------------------------------------------------ how to build an instance
def test_a_factory_function() -> None:
    found = resolve(make_two)
    assert (found.cls, found.arity) == (TwoTensor, 1)
    assert any(line.endswith("import make_two") for line in found.imports)


def make_two(x: torch.Tensor) -> TwoTensor:
    """A factory that can be imported."""
    return TwoTensor(x, x.clone())


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.2), (3, 0.5), (None, 1e-5)])
def test_a_class_that_rounds_gets_a_coarse_tolerance(bits: int | None, tolerance: float) -> None:
    class Rounds(Sound):
        @classmethod
        def quantize(cls, x):
            if bits is None:
                return cls(x * 10)  # another value by design
            scale = x.abs().amax() / (2 ** (bits - 1) - 1)
            return cls((x / scale).round() * scale)

        def dequantize(self):
            return self.data_.clone()

    found = resolve(Rounds)
    assert (found.make, found.tolerance[0]) == ("Rounds.quantize({0})", tolerance)
    assert any("Rounds rounds (by " in n for n in found.notes) == (bits is not None)
    assert resolve(Rounds, tolerance=(0.1, 0.2)).tolerance == (0.1, 0.2)


class Picky(Sound):
    """Takes what its limit allows only."""

    smallest = 2

    @classmethod
    def from_dense(cls, x):
        if x.dim() != 2 or x.shape[0] < cls.smallest:
            raise ValueError("other sizes")
        return cls(x)


@pytest.mark.long
def test_a_class_that_refuses_many_sizes_gets_others() -> None:
    found = check(Picky, rules=["ST701", "ST101"], max_examples=4)
    assert all(len(size) == 2 and size[0] >= 2 for size in found.subject.sizes)
    for id, examples in (("ST101", 4), ("ST701", 2)):
        result = found.result(id)
        assert (result.outcome, result.refused) == (Outcome.PASS, ())
        assert result.examples >= examples
    refused = check(subject_of(Picky, "Picky.from_dense({0})"), rules=["ST101"], max_examples=4).result("ST101")
    assert refused.refused[0][0] == "the class cannot be built like this (ValueError: other sizes)"
    assert (refused.outcome, refused.examples) == (Outcome.PASS, 4)


def test_no_rule_passes_without_an_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rule makes its checks on instances: without any, none of them passes."""
    monkeypatch.setattr(runner, "TRIES", 0)
    nothing = subject_of(Sound, "refuse({0})", setup="def refuse(x):\n    raise ValueError")
    report = check(nothing, max_examples=1)
    assert {r.outcome for r in report.results} == {Outcome.NOT_APPLICABLE}
    assert {r.checks for r in report.results} == {0}


@pytest.mark.long
def test_a_missing_projection_is_pointed_out() -> None:
    report = check(Sound, factory="Sound({0})", rules=["ST310", "ST402", "ST101"], max_examples=2)
    assert report.hints[0].startswith("numbers were not compared; give to_dense=")
    assert report.hints[0] in str(report).replace("\n", " ")
    assert check(subject(), rules=["ST310"], max_examples=2).hints == ()


class Hard(Sound):
    """Cannot be built from dense tensors."""

    @staticmethod
    def __new__(cls, data, *, secret):
        return Sound.__new__(cls, data)


def test_a_class_that_cannot_be_built() -> None:
    with pytest.raises(OptionError, match="cannot see how to build a Hard") as caught:
        check(Hard)
    assert "give factory=" in str(caught.value)


def test_what_is_no_class() -> None:
    with pytest.raises(OptionError, match="nothing to check"):
        check(3)  # type: ignore[arg-type]


def test_a_registered_class() -> None:
    register_strategy(Hard, "Hard({0}, secret=1)", to_dense="{0}.data_")
    found = resolve(Hard)
    assert (found.make, found.dense) == ("Hard({0}, secret=1)", "{0}.data_")


def test_a_class_without_the_protocol() -> None:
    class Bare(torch.Tensor):
        pass

    with pytest.raises(ProtocolError, match="Bare is no traceable wrapper subclass"):
        check(Bare)


# ------------------------------------------------------------------------------------ the report
def test_json_has_the_documented_keys() -> None:
    data = json.loads(json.dumps(check(PLAIN_OUT, rules=["ST101", "ST502"], max_examples=3).as_json()))
    assert set(data) == {
        "schema", "class", "versions", "profile", "seconds", "made_by", "tolerance", "ok", "counts", "coverage", "causes", "rules",
    }  # fmt: skip
    assert (data["schema"], data["ok"]) == (3, False)
    row = next(r for r in data["rules"] if r["id"] == "ST502")
    assert set(row) == {
        "id", "title", "family", "severity", "outcome", "checks", "examples", "seconds", "reason", "calls", "failure",
    }  # fmt: skip
    assert set(row["failure"]) == {"what", "got", "expected", "script", "standalone"}
    assert data["counts"] == {"pass": 1, "fail": 1, "not applicable": 0, "skipped": len(load()) - 2, "error": 0}


# ------------------------------------------------------------------------------------ the command
@pytest.mark.long
def test_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = "subclass_trace.zoo:TwoTensor"
    assert cli.main(["check", two, "--rules", "ST101", "--max-examples", "3"]) == 0
    assert cli.main(["check", PLAIN_OUT, "--rules", "ST502", "--max-examples", "3"]) == 1
    assert cli.main(["check", "no.such.module:Thing"]) == 2
    assert cli.main(["check", two, "--rules", "ST999"]) == 2
    assert cli.main(["check"]) == 2
    assert cli.main(["check", "torch:Tensor"]) == 2
    assert cli.main(["check", two, "--max-examples", "0"]) == 2
    (tmp_path / "file").touch()
    html = ["--html", str(tmp_path / "file" / "page.html")]
    assert cli.main(["check", two, "--rules", "ST101", "--max-examples", "1", *html]) == 2
    (tmp_path / "does_not_import.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["check", "does_not_import:Thing"]) == 2
    errors = capsys.readouterr().err
    assert "cannot find 'no.such.module:Thing'" in errors and "ZeroDivisionError: division by zero" in errors
    assert "is no traceable wrapper subclass" in errors and "max_examples must be at least 1" in errors


def test_html_on_the_command_line(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    cli.main(["check", PLAIN_OUT, "--rules", "ST502", "--html", str(target), "--max-examples", "3"])
    assert "<!doctype html>" in target.read_text(encoding="utf-8")


@pytest.mark.long
def test_a_factory_on_the_command_line() -> None:
    how = ["--factory", "TwoTensor({0}, {0} * 2)", "--to-dense", "{0}.a", "--rules", "ST513", "--max-examples", "3"]
    assert cli.main(["check", "subclass_trace.zoo:TwoTensor", *how]) == 0


def test_the_page_of_the_rules_is_current() -> None:
    from tools import rule_pages

    assert rule_pages.PAGE.read_text(encoding="utf-8") == rule_pages.page(), "run python -m tools.rule_pages"


# ------------------------------------------------------------ strategies give what they say, and shrink to the smallest
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("positive", [False, True])
def test_the_source_of_a_dense_tensor_makes_it(layout: str, dtype: torch.dtype, positive: bool) -> None:
    x = eval(gap((2, 3), dtype, 1, positive, layout), {"torch": torch})
    assert (x.shape, x.dtype) == ((2, 3), dtype)
    assert x.is_contiguous() == (layout != "transposed")
    assert (x.storage_offset() != 0) == (layout == "sliced")
    assert not positive or dtype is torch.bool or bool((x > 0).all())


def test_wrappers_shrink_to_the_smallest() -> None:
    quick = settings(max_examples=200, deadline=None, database=None)
    smallest = find(wrappers(TwoTensor), lambda t: t.dim() == 1, settings=quick)
    assert (smallest.shape, smallest.dtype, smallest.a.storage_offset()) == ((2,), torch.float32, 0)


FAST = settings(max_examples=30, deadline=None)


@FAST
@given(wrappers(TwoTensor))
def test_wrappers(x: torch.Tensor) -> None:
    assert type(x) is TwoTensor


# ------------------------- a counterexample is a program: it runs with torch and the class alone, and shows the failure
@pytest.mark.long
def test_it_runs_in_a_fresh_interpreter_and_prints_both_sides() -> None:
    report = check("torch.testing._internal.custom_tensor:CustomTensorPlainOut", rules=["ST502"])
    failure = report.result("ST502").failure
    assert failure is not None
    done = subprocess.run([sys.executable, "-c", failure.script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "got:      <class 'torch.Tensor'>" in done.stdout
    assert "expected: <class 'torch.testing._internal.custom_tensor.CustomTensorPlainOut'>" in done.stdout
    assert "AssertionError: it keeps the class" in done.stderr


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


# ----------------------------------------------------------------------------------------- the rules as tests of pytest
ROOT = Path(subclass_trace.__file__).parent.parent


def _pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    # where CI is set, pytest prints whole values instead of their beginnings
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_rules_are_tests_of_a_class_that_print_the_counterexample(tmp_path: Path) -> None:
    """Logs are not flooded: pytest prints what was logged, and a compilation logs thousands of lines of its own."""
    (tmp_path / "test_doubles.py").write_text(FAILS_COMPILED)
    done = _pytest("-k", "ST101 or ST701", cwd=tmp_path)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "ST701-forward" in done.stdout and "the result of eager mode" in done.stdout
    assert "torch.__trace" not in done.stdout and len(done.stdout.splitlines()) < 150


@pytest.mark.long
def test_programs_are_handed_in_by_a_marker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["subclass_trace.testing.pytest_plugin"]')
    (tmp_path / "test_marked.py").write_text(MARKED)
    done = _pytest("--strict-markers", "-k", "ST320", cwd=tmp_path)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "TestBad" in done.stdout


MARKED = """
import pytest
import torch
from subclass_trace.testing.pytest_plugin import ConformanceTests
from subclass_trace.zoo import TwoTensor

HOW = {"to_dense": "{0}.a", "dtypes": [torch.float32]}


@pytest.mark.subclass_programs("x @ x.t()", lambda x, y: (x * y).sum())
class TestGood(ConformanceTests):
    target, options = TwoTensor, HOW


@pytest.mark.subclass_programs("x.a if hasattr(x, 'b') else x * 2")
class TestBad(ConformanceTests):
    target, options = TwoTensor, HOW
"""

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
