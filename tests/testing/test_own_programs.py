"""What an author hands in and declares, what he is told is missing, and the properties for tests of his own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis.errors import NoSuchExample
from sound import Sound

from subclass_trace import cli
from subclass_trace.errors import OptionError
from subclass_trace.testing import EquivalenceError, assert_equivalent, check, programs, round_trips, wrappers
from subclass_trace.zoo import TwoTensor

HOW = {"factory": "Sound({0})", "to_dense": "{0}.data_", "dtypes": [torch.float32]}
TWO = ["check", "subclass_trace.zoo:TwoTensor", "--to-dense", "{0}.a", "--rules", "ST320"]


@pytest.mark.long
def test_programs_are_functions_and_expressions() -> None:
    report = check(Sound, programs=[lambda x, y: torch.special.i0(x) * y, "x.erfc()"], rules=["ST320"], **HOW)
    assert report.result("ST320").checks >= 2 and report.ok
    wrong = check(
        Sound, programs=["x.no_such_method()", "x.data_.sin() if hasattr(x, 'data_') else x"], rules=["ST320"], **HOW
    )
    assert set(wrong.result("ST320").calls) == {"x.no_such_method()", "x.data_.sin() if hasattr(x, 'data_') else x"}
    own = check(Sound, programs=["x.data_"], rules=["ST320"], **HOW)  # dense tensors have none
    assert own.result("ST320").checks >= 1 and own.ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"programs": ["x +"]}, "the program 'x \\+' is no Python"),
        ({"use": "decoration"}, "'decoration' is no use of a wrapper"),
        ({"dtypes": ["float32"]}, "dtypes= cannot be used"),
        ({"dtypes": torch.float32}, "dtypes= cannot be used"),
        ({"sizes": (3, 4)}, "sizes= cannot be used"),
        ({"valid": "mask"}, "valid must have one gap"),
        ({"valid": "{0}.no_such_mask"}, "valid= gives no mask"),
        ({"valid": "{0}.data_"}, "valid= gives no mask"),
        ({"valid": "{0}.data_[0] > 0"}, "valid= gives no mask"),
    ],
)
def test_what_cannot_be_declared(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check(Sound, **{**HOW, **options})


@pytest.mark.long
def test_what_is_no_target() -> None:
    with pytest.raises(OptionError, match="an instance of Sound is no target"):
        check(Sound(torch.ones(2)))
    with pytest.raises(OptionError, match=r"Picks\(\{0\}\): TypeError: floating point only"):
        check(Picks, dtypes=[torch.int64])
    assert check(Sound, rules="ST101", max_examples=1, **HOW).result("ST101").checks > 0


class Picks(Sound):
    """A class of floating point numbers."""

    @staticmethod
    def __new__(cls, data):
        if not data.is_floating_point():
            raise TypeError("floating point only")
        return Sound.__new__(cls, data)


class NoSelf(Sound):
    """requires_grad_ gives nothing."""

    def requires_grad_(self, requires_grad=True):
        super().requires_grad_(requires_grad)


def test_a_fault_of_the_class_is_none_of_the_kit() -> None:
    assert not check(NoSelf, factory="NoSelf({0})", to_dense="{0}.data_", rules=["ST702", "ST313"]).errors
    mixed = check(Sound, factory="Sound({0}, None, {1})", to_dense="{0}.data_", rules=["ST101"], dtypes=[torch.float32])
    assert not mixed.errors


@pytest.mark.long
def test_programs_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good_calls.py").write_text("def call(x, y):\n    return (x * y).sum()\n")
    (tmp_path / "bad_calls.py").write_text("def call(x, y):\n    return x.a if hasattr(x, 'b') else x * 2\n")
    (tmp_path / "no_calls.py").write_text("A = 1\n")
    codes = [
        cli.main([*TWO, "--programs", str(tmp_path / f"{name}_calls.py")]) for name in ("good", "bad", "no", "lost")
    ]
    assert codes == [0, 1, 2, 2]
    assert cli.main([*TWO, "--use", "activation"]) == 0
    assert "has no program" in capsys.readouterr().err


@pytest.mark.long
def test_a_summary_says_what_was_not_exercised() -> None:
    report = check(TwoTensor, to_dense="{0}.a", rules=["ST310"], dtypes=[torch.float32])
    assert report.coverage.right > 500 and "p.add_(x)" in report.coverage.refused
    assert "operations: " in str(report) and "not exercised: " in str(report)
    assert report.as_json()["coverage"]["use"] == "activation"


class Scaled(Sound):
    """Its tangent is another one under tracing."""

    def __deepcopy__(self, memo):
        return type(self)(self.data_ + 1)


def test_round_trips_are_properties() -> None:
    x = TwoTensor(torch.ones(2), torch.zeros(2))
    for holds in round_trips.values():
        holds(x)
    with pytest.raises(EquivalenceError, match="deepcopy gives back something else"):
        round_trips["copy"](Scaled(torch.ones(2)))
    for holds in round_trips.values():  # of a part, the copy is whole
        holds(Sound(torch.arange(4.0)[1:3]))


@settings(max_examples=5, deadline=None)
@given(programs())
def test_programs_run_on_dense_tensors(program) -> None:
    assert torch.is_tensor(program(torch.ones(2, 3), torch.ones(2, 3))) or program.__name__


def test_a_stack_that_gives_something_else_is_named() -> None:
    x = torch.ones(3, requires_grad=True)
    assert_equivalent(lambda x: (x * 2).sin(), [x])

    def other(x):
        return x * (2 if torch.compiler.is_compiling() else 3)

    with pytest.raises(EquivalenceError, match="region gives another result"):
        assert_equivalent(other, [x])
    with pytest.raises(OptionError, match="no stack is called 'jit'"):
        assert_equivalent(other, [x], stacks=["jit"])


class Numbered(Sound):
    """With a number in the context."""

    def __new__(cls, data, extra=None, scale=1.5, size=None, stride=None):
        return super().__new__(cls, data, extra, scale, size, stride)


def test_instances_have_other_contexts_if_the_factory_has_a_number() -> None:
    assert find(wrappers(Numbered, factory="Numbered({0})"), lambda x: x.tag != 1.5).tag == 3.0
    assert find(wrappers(Numbered, factory="Numbered({0})"), lambda x: True).tag == 1.5
    with pytest.raises(NoSuchExample):
        find(wrappers(Numbered, factory="Numbered({0})", contexts=False), lambda x: x.tag != 1.5)
