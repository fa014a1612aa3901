"""Whose code is this: one answer, by file and by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

import subclass_trace as st
from subclass_trace.torch_api.owners import Owner, owner_of, owner_of_file, owner_of_name, package_of

ROOT = Path(__file__).parents[1]
FILES = {
    torch.nn.modules.linear.__file__: Owner.TORCH,
    st.__file__: Owner.OURS,
    "<subclass_trace entry 3>": Owner.OURS,
    json.__file__: Owner.PYTHON,
    "<frozen importlib._bootstrap>": Owner.PYTHON,
    numpy.__file__: Owner.INSTALLED,
    __file__: Owner.USER,
    "<string>": Owner.USER,
    "<ipython-input-1>": Owner.USER,
}
NAMES = {
    "torch": Owner.TORCH,
    "torch.nn.functional": Owner.TORCH,
    "functorch.dim": Owner.TORCH,
    "torchvision.ops": Owner.USER,  # no part of torch, whatever its name begins with
    "torch_helpers": Owner.USER,
    "builtins": Owner.PYTHON,
    "collections.abc": Owner.PYTHON,
    "subclass_trace.zoo": Owner.OURS,
    "__main__": Owner.USER,
    "": Owner.USER,
}


@pytest.mark.parametrize("file", FILES)
def test_files(file: str) -> None:
    assert owner_of_file(file) is FILES[file]


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    assert owner_of_name(name) is NAMES[name]


def test_classes_and_functions() -> None:
    assert owner_of(torch.nn.Linear) is Owner.TORCH
    assert owner_of(json.dumps) is Owner.PYTHON
    assert owner_of(test_files) is Owner.USER
    assert package_of(object()) == "" and package_of(numpy.ndarray) == "numpy"


def test_there_is_one_answer() -> None:
    """No other file of the package tells torch's code by the beginning of a name."""
    asks = ('startswith("torch")', "startswith('torch')", '== "torch"', "sys.stdlib_module_names")
    found = {
        path.name
        for folder in ("state", "capture", "subclass", "runtime", "data", "frontends", "artifacts", "torch_api")
        for path in (ROOT / "subclass_trace" / folder).rglob("*.py")
        if any(text in path.read_text() for text in asks)
    }
    assert found == {"owners.py"}
