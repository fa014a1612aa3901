"""What a new user gets wrong is said at once, and what he is given works as it is: factories, options, programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sound import Sound

import subclass_trace
from subclass_trace import WrapperTensor, cli
from subclass_trace.errors import OptionError
from subclass_trace.testing import check, wrappers
from subclass_trace.testing.pytest_plugin import ConformanceTests
from subclass_trace.testing.resolve import resolve
from subclass_trace.testing.rules import load
from subclass_trace.testing.runner import Outcome
from subclass_trace.testing.subject import subject_of

aten = torch.ops.aten
ONE = {"rules": ["ST101"], "max_examples": 1}


class Scaled(WrapperTensor, default="dequantize"):
    """Numbers of its own and a scale in the context."""

    data_: torch.Tensor
    scale: float = 2.0

    def dequantize(self) -> torch.Tensor:
        return self.data_ * self.scale


# ------------------------------------------------------------------------------------ how instances are made
@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("Foo({0})", "NameError: name 'Foo' is not defined"),
        ("Scaled(", "is no Python expression"),
        ("Scaled(3)", "Scaled.data_ must be a tensor"),
        ("lambda x: Scaled(x)", "a function"),
        ("[{0}][0]", "got:      a Tensor"),
        ("torch.zeros(3)", "there is no way to build an instance: torch.zeros\\(3\\) gives no Scaled"),
        ("Scaled({0}, {2})", "is no Python expression with gaps"),
        ("Scaled({x})", "is no Python expression with gaps"),
    ],
)
def test_a_factory_that_gives_nothing_is_refused(factory: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check(Scaled, factory=factory, **ONE)


@pytest.mark.parametrize("factory", ["Scaled({0}[..., :2].clone(), 3.0)", "Scaled({0} + 1)", "Scaled({0}.abs())"])
def test_what_stands_behind_a_gap_means_the_tensor(factory: str, recwarn: pytest.WarningsRecorder) -> None:
    assert resolve(Scaled, factory=factory).dense == "{0}.dequantize()"
    assert not [w for w in recwarn if w.category is SyntaxWarning]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to_dense": "{0}.nope()"}, "has no attribute 'nope'"),
        ({"to_dense": "{0}"}, "gives no dense tensor"),
        ({"to_dense": "dense"}, "to_dense must have one gap"),
        ({"tolerance": (-1.0, 0.0)}, "tolerance cannot be used"),
        ({"sise": [(2,)]}, "did you mean sizes="),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check(Scaled, **ONE, **options)
    with pytest.raises(OptionError, match=message):
        wrappers(Scaled, **options)


def test_a_function_needs_no_factory() -> None:
    with pytest.raises(OptionError, match="is a function, which makes the instances already"):
        check(make_scaled, factory="make_scaled({0})", **ONE)


def make_scaled(x: torch.Tensor) -> Scaled:
    """A factory that can be imported."""
    return Scaled(x)


def test_no_rule_left() -> None:
    with pytest.raises(OptionError, match="no rule is left"):
        check(Scaled, rules=["ST1"], skip=["ST1"])


def test_the_report_says_how_instances_were_made() -> None:
    report = check(Scaled, **ONE)
    assert report.made_by.startswith("made by Scaled({0}) (found by trying constructors; ")
    assert report.made_by in str(report) and report.as_json()["made_by"] == report.made_by
    assert check(Scaled, factory="Scaled({0})", **ONE).made_by.startswith("made by Scaled({0}) from dense tensors, ")


class DropsScale(torch.Tensor):
    """Flatten leaves it out, and the constructor has a default for it."""

    @staticmethod
    def __new__(cls, data, scale=2.0):
        return torch.Tensor._make_wrapper_subclass(cls, data.size(), data.stride(), dtype=data.dtype)

    def __init__(self, data, scale=2.0):
        self.data_, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data_"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["data_"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.data_ * a.scale if isinstance(a, DropsScale) else a for a in args]
        return func(*plain, **(kwargs or {}))


class KeepsScale(DropsScale):
    def __tensor_flatten__(self):
        return ["data_"], self.scale

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        return cls(inner["data_"], context)


@pytest.mark.long
def test_numbers_that_flatten_leaves_out() -> None:
    result = check(DropsScale, factory="DropsScale({0}, scale=5.0)", rules=["ST101"]).result("ST101")
    assert result.outcome is Outcome.FAIL and "a rebuilt one has the numbers" in str(result)
    assert check(KeepsScale, factory="KeepsScale({0}, scale=5.0)", rules=["ST101"]).ok


# ------------------------------------------------------------------------------------ numbers
@pytest.mark.long
def test_roundings_of_short_floats_are_no_faults() -> None:
    class Reordered(Sound):
        @classmethod
        def compute(cls, func, args, kwargs):
            if func is torch.ops.aten.mul.Tensor and isinstance(args[1], (int, float)):
                data = args[0].data_
                return cls((data * 3 * args[1] / 3).to(data.dtype), args[0].extra, args[0].tag)
            return super().compute(func, args, kwargs)

    how = {"factory": "Reordered({0})", "to_dense": "{0}.data_", "rules": ["ST310", "ST402"]}
    report = check(Reordered, dtypes=[torch.bfloat16, torch.float16], max_examples=8, **how)
    assert [r.reason for r in report.failures] == []


# ------------------------------------------------------------------------------------ faults that users had


# ------------------------------------------------------------------------------------ what is printed
class ClonesShare(Scaled):
    """One fault."""


@ClonesShare.implements(torch.ops.aten.clone.default)
def _clone(func, x, **kwargs):
    return x.replace(data_=x.data_)


def test_the_text_holds_the_program_and_the_way_to_its_page() -> None:
    report = check(ClonesShare, rules=["ST502"], dtypes=[torch.float32], max_examples=4)
    text, failure = str(report), report.result("ST502").failure
    assert failure is not None and failure.script in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "subclass-trace check --explain ST502" in text
    assert "Why: `clone` is how one gets a value that nobody else writes to" in text


# ------------------------------------------------------------------------------------ the command


def test_expressions_use_the_names_of_the_module_of_the_class(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scaled_by_two.py").write_text(
        "import torch\nfrom subclass_trace import WrapperTensor\n\nFACTOR = 2.0\n\n\n"
        "def dense_of(x):\n    return x.data_ * FACTOR\n\n\n"
        'class Times(WrapperTensor, default="refuse"):\n    data_: torch.Tensor\n    factor: float\n\n\n'
        "def make(x):\n    return Times(x, FACTOR)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    how = ["scaled_by_two:Times", "--to-dense", "dense_of({0})", "--rules", "ST101", "--max-examples", "1"]
    assert cli.main(["check", *how, "--factory", "Times({0}, FACTOR)"]) == 0
    assert cli.main(["check", *how, "--factory", "Times({0}, FACTORS)"]) == 2
    assert "name 'FACTORS' is not defined" in (said := capsys.readouterr().err) and "names of scaled_by_two" in said
    found = resolve("scaled_by_two:Times", factory="Times({0}, FACTOR)", to_dense="dense_of({0})")
    assert resolve("scaled_by_two:make", to_dense="dense_of({0})").imports[-1] == "from scaled_by_two import dense_of"
    program: dict[str, Any] = {}
    exec("\n".join([*found.imports, "import torch", f"x = {found.make.format('torch.ones(2)')}"]), program)
    assert program["x"].factor == 2.0 and "from scaled_by_two import dense_of" in found.imports


@pytest.mark.long
def test_sizes_and_dtypes_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--sizes", "2,3", "4,", "--dtypes", "bfloat16", "--rules", "ST101", "--max-examples", "2"]
    assert cli.main(["check", "subclass_trace.zoo:TwoTensor", *how]) == 0
    assert "from dense tensors of sizes (2, 3), (4,), bfloat16" in capsys.readouterr().out


def test_a_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--explain", "ST308"]) == 0
    text = capsys.readouterr().out
    rule = next(r for r in load() if r.id == "ST308")
    assert rule.title in text and rule.text in text
    assert cli.main(["check", "--explain", "ST999"]) == 2


@pytest.mark.slow
def test_the_package_is_a_command_and_its_output_may_be_cut() -> None:
    command = f"{sys.executable} -m subclass_trace check --list | head -1"
    root = Path(subclass_trace.__file__).parent.parent
    done = subprocess.run(command, shell=True, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("ST101") and done.stderr == ""


# ------------------------------------------------------------------------------------ the test class
@pytest.mark.long
def test_options_of_a_test_class_are_those_of_check(monkeypatch: pytest.MonkeyPatch) -> None:
    class Some(ConformanceTests):
        target = Scaled
        options = {"max_examples": 2, "rules": ["ST1"], "skip": ["ST102"], "dtypes": [torch.float32]}
        skip = {"ST103": "because"}

    rules = {r.id: r for r in load()}
    Some().test_rule(rules["ST101"])
    for id, reason in (("ST102", "left out by options"), ("ST201", "left out by options"), ("ST103", "because")):
        with pytest.raises(pytest.skip.Exception, match=reason):
            Some().test_rule(rules[id])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"options": {"max_exampels": 3}}, "no option is called 'max_exampels'"),
        ({"skip": {"ST9999": "no such rule"}}, "no rule is called 'ST9999'"),
        ({"options": {"rules": ["ST9999"]}}, "no rule is called 'ST9999'"),
    ],
)
def test_a_test_class_with_a_misspelt_option_is_refused(members: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        type("Misspelt", (ConformanceTests,), {"target": Scaled, **members})


# ------------------------------------------------------------------------------------ what is tried, and against what
class Matrices(Sound):
    """Takes tensors of any size, and has a dense value for matrices alone."""

    odd = False

    def dense(self) -> torch.Tensor:
        if self.dim() != 2 or self.odd:
            raise ValueError("a matrix, please")
        return self.data_


class NoMatrices(Matrices):
    odd = True


@pytest.mark.long
def test_sizes_that_are_taken_by_chance_are_not_the_class_s() -> None:
    report = check(Matrices, factory="Matrices({0})", rules=["ST310"], max_examples=1)
    assert {len(size) for size in report.subject.sizes} == {2}
    assert report.coverage.right > 100


def test_a_summary_says_that_no_call_was_tried() -> None:
    made = subject_of(NoMatrices, "NoMatrices({0})", to_dense="{0}.dense()")
    report = check(made, rules=["ST310"], max_examples=1)
    assert "no call was tried" in str(report) and "a matrix, please" in str(report)
    assert "0 right" not in str(report)


class Accumulates(Sound):
    """A sum in float64: other roundings than those of the dense program."""

    @classmethod
    def compute(cls, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.sum.default and args[0].dtype is torch.float32 and not kwargs:
            return cls(args[0].data_.double().sum().float(), args[0].extra, args[0].tag)
        return super().compute(func, args, kwargs)


@pytest.mark.long
def test_another_order_of_summation_is_no_fault() -> None:
    """The numbers cancel: the dense program itself gives another sum if they are rounded otherwise."""
    factory = "Accumulates(({0} - {0}.mean()) * 1000)"
    options: dict[str, Any] = {"to_dense": "{0}.data_", "dtypes": [torch.float32], "rules": ["ST310"]}
    report = check(Accumulates, factory=factory, max_examples=1, **options)
    assert report.ok and "x.sum()" not in report.coverage.refused, str(report)


class Unserved(WrapperTensor, default="dequantize"):
    """It has a rule for F.linear, which takes a view that it has no rule for."""

    numbers: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        return self.numbers


@Unserved.implements_torch_function(F.linear)
def _linear(func: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    return x @ weight.view(-1).view(weight.shape).t()


def test_a_function_that_has_a_rule_and_is_always_refused_is_a_finding() -> None:
    report = check(Unserved, max_examples=1, rules=["ST317"], dtypes=[torch.float32])
    assert "F.linear(p, x)" in report.result("ST317").calls
