"""Which operations a class has."""

from __future__ import annotations

import pytest
import torch
from sound import Sound

from subclass_trace.errors import OptionError
from subclass_trace.testing import check, subject_of
from subclass_trace.testing.coverage import COMMON, Support, cover

aten = torch.ops.aten
SOME = ["add", "mul", "sum", "view", "exp", "sin", "neg", "abs", "nn.functional.dropout"]


class Partial(Sound):
    """Refuses exp, is dense for sin, and wrong for neg."""

    @classmethod
    def compute(cls, func, args, kwargs):
        if func is aten.exp.default:
            raise NotImplementedError("no exp")
        if func is aten.sin.default:
            return func(args[0].data_)
        if func is aten.neg.default:
            return super().compute(aten.abs.default, args, kwargs)
        return super().compute(func, args, kwargs)


def test_each_outcome() -> None:
    swept = cover(subject_of(Partial, "Partial({0})", to_dense="{0}.data_"), SOME)
    found = {r.operation: r.support for r in swept.rows}
    assert found["exp"] is Support.REFUSED
    assert found["sin"] is Support.DENSE
    assert found["neg"] is Support.WRONG
    assert {found[n] for n in ("add", "mul", "sum", "view", "abs", "nn.functional.dropout")} == {Support.SUPPORTED}
    assert [r.operation for r in swept.missing] == ["neg", "exp"]
    assert "no exp" in swept.missing[1].reason


def test_an_operation_that_changes_its_operand_is_wrong() -> None:
    class Careless(Sound):
        @classmethod
        def compute(cls, func, args, kwargs):
            out = super().compute(func, args, kwargs)
            if func is aten.neg.default:
                args[0].data_.neg_()
            return out

    swept = cover(subject_of(Careless, "Careless({0})", to_dense="{0}.data_"), ["neg", "abs", "zero_"])
    assert {r.operation: r.support.value for r in swept.rows} == {
        "neg": "wrong",
        "abs": "supported",
        "zero_": "supported",
    }
    assert swept.missing[0].reason == "it changes its operand"


def test_all_operations_and_unknown_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from subclass_trace.testing import kit

    seen: list[object] = []
    monkeypatch.setattr(kit, "cover", lambda subject, names: seen.append(names))
    for operations in (True, "all", ["add"]):
        check(Sound, factory="Sound({0})", rules=["ST101"], max_examples=1, operations=operations)
    assert seen == [COMMON, None, ["add"]]
    with pytest.raises(OptionError, match="operations cannot be 'common'"):
        check(Sound, factory="Sound({0})", rules=["ST101"], max_examples=1, operations="common")


def test_the_most_used_come_first() -> None:
    swept = cover(subject_of(Partial, "Partial({0})", to_dense="{0}.data_"), ["sinh", "abs", "add", "acosh"])
    assert [r.operation for r in swept.rows] == ["add", "abs", "acosh", "sinh"]


def test_without_a_projection_sizes_are_compared() -> None:
    swept = cover(subject_of(Partial, "Partial({0})"), ["neg", "exp"])
    assert {r.operation: r.support for r in swept.rows} == {"neg": Support.SUPPORTED, "exp": Support.REFUSED}


def test_it_is_part_of_the_report() -> None:
    report = check(Partial, factory="Partial({0})", rules=["ST101"], max_examples=1, operations=["add", "exp"])
    rows = report.as_json()["operations"]
    assert [(r["operation"], r["outcome"], r["rank"]) for r in rows] == [
        ("add", "supported", COMMON.index("add")),
        ("exp", "refused", None),  # none of the counted models uses it
    ]
    assert "most used that are missing or wrong" in str(report)
    assert "refused 1" in str(report)


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="counted with torch 2.13")
def test_names_of_common_operations_exist() -> None:
    from subclass_trace.torch_api.testing import opinfo_database

    assert [n for n in COMMON if n not in opinfo_database()] == []
