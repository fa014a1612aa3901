"""The functions, the report and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as s
from sound import Sound, subject

from subclass_trace import cli
from subclass_trace.errors import OptionError, ProtocolError
from subclass_trace.testing import ConformanceError, assert_conforms, check, register_strategy
from subclass_trace.testing.page import page
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
        assert len(r.text) > 80 and r.wrong and r.right and r.wrong != r.right, r.id
        compile(_indented(r.wrong), r.id, "exec")
        compile(_indented(r.right), r.id, "exec")


def _indented(code: str) -> str:
    body = "\n".join(f"        {line}" for line in code.splitlines())
    return f"class C:\n    def f(self):\n        pass\n{body}\n        pass"


@pytest.mark.parametrize(
    ("rules", "skip", "expected"),
    [(["ST101"], (), {"ST101"}), (["ST10"], ["ST101"], {f"ST10{k}" for k in range(2, 10)}), (["st101"], (), {"ST101"})],
)
def test_rules_are_chosen_by_id_and_prefix(rules: list[str], skip: list[str], expected: set[str]) -> None:
    assert {r.id for r in select(rules, skip)} == expected


def test_rules_are_chosen_by_family() -> None:
    assert {r.family for r in select(["fake"])} == {"fake"}


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(OptionError, match="no rule is called 'ST999'"):
        select(["ST999"])


def test_check_reports_every_rule() -> None:
    report = check(TwoTensor, rules=["ST1"], max_examples=3)
    assert [r.rule for r in report.results] == list(load())
    assert {r.outcome for r in report.results if r.rule.id.startswith("ST1")} == {Outcome.PASS}
    assert {r.outcome for r in report.results if not r.rule.id.startswith("ST1")} == {Outcome.SKIPPED}
    assert report.ok


def test_a_rule_without_a_check_does_not_pass() -> None:
    result = check(TwoTensor, dtypes=[torch.int64], rules=["ST503"], max_examples=3).result("ST503")
    assert (result.outcome, result.checks) == (Outcome.NOT_APPLICABLE, 0)
    assert result.reason == "it has no instances of a floating point dtype"


def test_exempt_rules_say_why() -> None:
    result = check(subject(), rules=["ST101"]).result("ST101")
    assert result.outcome is Outcome.PASS
    result = check(Sound, factory="Sound({0})", exempt={"ST101": "because"}, rules=["ST101"]).result("ST101")
    assert (result.outcome, result.reason) == (Outcome.NOT_APPLICABLE, "because")


def test_assert_conforms() -> None:
    assert assert_conforms(TwoTensor, rules=["ST101"], max_examples=3).ok
    with pytest.raises(ConformanceError, match=r"breaks 1 of \d+ rules\nST502 clone keeps type and value") as caught:
        assert_conforms(PLAIN_OUT, rules=["ST502"], max_examples=3)
    assert isinstance(caught.value, AssertionError)
    assert caught.value.report.failures[0].rule.id == "ST502"


def test_the_state_of_torch_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    check(TwoTensor, rules=["ST5"], max_examples=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


# ------------------------------------------------------------------------------------ how to build an instance
def test_a_factory_function() -> None:
    found = resolve(make_two)
    assert (found.cls, found.arity) == (TwoTensor, 1)
    assert any(line.endswith("import make_two") for line in found.imports)


def make_two(x: torch.Tensor) -> TwoTensor:
    """A factory that can be imported."""
    return TwoTensor(x, x.clone())


def test_constructors_are_tried() -> None:
    assert resolve(Sound, arity=1).make == "Sound({0})"


def test_a_projection_is_found() -> None:
    class Scaled(Sound):
        def dequantize(self):
            return self.data_.clone()

    assert resolve(Scaled).dense == "{0}.dequantize()"


class Hard(Sound):
    """Cannot be built from dense tensors."""

    @staticmethod
    def __new__(cls, data, *, secret):
        return Sound.__new__(cls, data)


def test_a_class_that_cannot_be_built() -> None:
    with pytest.raises(OptionError, match="cannot see how to build a Hard") as caught:
        check(Hard)
    assert "give factory=" in str(caught.value)


def test_a_registered_class() -> None:
    register_strategy(Hard, "Hard({0}, secret=1)", to_dense="{0}.data_")
    found = resolve(Hard)
    assert (found.make, found.dense) == ("Hard({0}, secret=1)", "{0}.data_")


def test_a_strategy_of_instances() -> None:
    instances = s.sampled_from([2, 3]).map(lambda n: TwoTensor(torch.ones(n), torch.zeros(n)))
    report = check(TwoTensor, strategy=instances, rules=["ST101", "ST502"], max_examples=4)
    assert [r.outcome for r in report.results if r.outcome is not Outcome.SKIPPED] == [Outcome.PASS] * 2


def test_a_class_without_the_protocol() -> None:
    class Bare(torch.Tensor):
        pass

    with pytest.raises(ProtocolError, match="Bare is no traceable wrapper subclass"):
        check(Bare)


# ------------------------------------------------------------------------------------ the report
def test_json_has_the_documented_keys() -> None:
    data = json.loads(json.dumps(check(PLAIN_OUT, rules=["ST101", "ST502"], max_examples=3).as_json()))
    assert set(data) == {
        "schema", "class", "versions", "profile", "seconds", "ok", "counts", "rules", "operations",
    }  # fmt: skip
    assert (data["schema"], data["ok"], data["operations"]) == (1, False, None)
    row = next(r for r in data["rules"] if r["id"] == "ST502")
    assert set(row) == {
        "id", "title", "family", "severity", "outcome", "checks", "examples", "seconds", "reason", "failure",
    }  # fmt: skip
    assert set(row["failure"]) == {"what", "got", "expected", "script"}
    assert data["counts"] == {"pass": 1, "fail": 1, "not applicable": 0, "skipped": len(load()) - 2, "error": 0}


def test_the_page_stands_alone() -> None:
    text = page(check(PLAIN_OUT, rules=["ST101", "ST502"], max_examples=3))
    assert "<script src" not in text and "<link" not in text and "http" not in text.replace("https://", "http")[:0]
    assert "clone keeps the class" in text and "x.clone()" in text
    assert text.count("<details id=") == 2


def test_the_text_shows_the_counterexample() -> None:
    text = str(check(PLAIN_OUT, rules=["ST101", "ST502"], max_examples=3))
    assert "✓ ST101" in text.replace("  ", " ") and "✗" in text
    assert "y = x.clone()" in text
    assert "1 pass, 1 fail" in text


# ------------------------------------------------------------------------------------ the command
def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    two = "subclass_trace.zoo:TwoTensor"
    assert cli.main(["check", two, "--rules", "ST101", "--max-examples", "3"]) == 0
    assert cli.main(["check", PLAIN_OUT, "--rules", "ST502", "--max-examples", "3"]) == 1
    assert cli.main(["check", "no.such.module:Thing"]) == 2
    assert cli.main(["check", two, "--rules", "ST999"]) == 2
    assert cli.main(["check"]) == 2
    assert "cannot find 'no.such.module:Thing'" in capsys.readouterr().err


def test_json_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", "subclass_trace.zoo:TwoTensor", "--rules", "ST101", "--json", "--max-examples", "3"])
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_html_on_the_command_line(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    cli.main(["check", PLAIN_OUT, "--rules", "ST502", "--html", str(target), "--max-examples", "3"])
    assert "<!doctype html>" in target.read_text(encoding="utf-8")


def test_a_factory_on_the_command_line() -> None:
    how = ["--factory", "TwoTensor({0}, {0} * 2)", "--to-dense", "{0}.a", "--rules", "ST513", "--max-examples", "3"]
    assert cli.main(["check", "subclass_trace.zoo:TwoTensor", *how]) == 0


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(load())


def test_the_pages_of_the_rules_are_current() -> None:
    from tools import rule_pages

    found = {p.name: p.read_text(encoding="utf-8") for p in rule_pages.FOLDER.glob("*.md")}
    assert found == rule_pages.pages(), "run python -m tools.rule_pages"


def test_a_line_that_hangs_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from subclass_trace.testing import script

    class Slow(Sound):
        def __tensor_flatten__(self):
            while self.tag:
                pass

    monkeypatch.setattr(script, "LINE_SECONDS", 0.2)
    result = check(subject_of(Slow, "Slow({0})"), rules=["ST101"], max_examples=1).result("ST101")
    assert result.outcome is Outcome.FAIL
    assert "TookTooLong: more than 0 s" in result.reason
