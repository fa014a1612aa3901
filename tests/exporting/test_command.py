"""``subclass-trace export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from subclass_trace.cli import main
from tests.exporting.models import X, two

TARGET = "tests.exporting.test_command"
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def make() -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return two(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), (X,)


def make_nothing() -> int:
    return 3


def raise_an_error() -> None:
    raise KeyError("weights")


def test_writes_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.pt2"
    assert main(["export", f"{TARGET}:make", "--out", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"] == ["input"] and told["state"] == ["0.weight.a", "0.weight.b", "0.bias"]
    module, (x,) = make()
    found = torch.export.load(file).module()(x)
    with torch.no_grad():
        torch.testing.assert_close(found[0], module(x).a)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([f"{TARGET}:make_nothing"], "expected: (module, args)"),
        ([f"{TARGET}:TARGET"], "got:      str"),
        ([f"{TARGET}:raise_an_error"], "got:      KeyError: 'weights'"),
        ([f"{TARGET}:not_there"], "package.module:function"),
        (["no.such.module:f"], "package.module:function"),
    ],
)
def test_says_what_is_wrong(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", *arguments, "--out", str(tmp_path / "m.pt2")]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "m.pt2").exists()
