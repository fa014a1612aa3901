"""Sizes of exported programs that are symbols: what ``dynamic_shapes`` may be, and what becomes of such programs."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import AdditionalInputs, Dim, ShapesCollection, register_dataclass

import subclass_trace as st
from subclass_trace.errors import ExportError
from subclass_trace.zoo import TwoTensor
from tests.exporting.models import Tied, X, close, two

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*functools.*:FutureWarning")


@pytest.mark.parametrize(
    "shapes", [{"x": {0: Dim("rows", min=2, max=64)}}, ({0: Dim.DYNAMIC},), {"x": {0: Dim.AUTO, 1: None}}]
)
def test_dynamic_sizes(shapes: Any) -> None:
    module = two(Tied())
    exported = st.export(module, (X,), dynamic_shapes=shapes)
    (found,) = exported.program.range_constraints.values()
    assert found.lower == 2 and (found.upper == 64 or "rows" not in str(shapes))
    run = exported.program.module()
    for rows in (3, 9):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            close(exported.unflatten_outputs(run(*exported.flatten_inputs(x))), copy.deepcopy(module)(x))


@dataclasses.dataclass
class Registered:
    first: torch.Tensor
    second: torch.Tensor


register_dataclass(Registered)


def of_both() -> ShapesCollection:
    found = ShapesCollection()
    found[X] = {0: Dim.DYNAMIC}
    return found


def of_others() -> AdditionalInputs:
    found = AdditionalInputs()
    found.add((torch.randn(9, 4),))
    return found


@pytest.mark.parametrize(
    ("function", "make", "shapes"),
    [
        (lambda x: x * 2, lambda x: (x,), of_both),
        (lambda x: x * 2, lambda x: (x,), of_others),
        (
            lambda p: p.first.sum(0) + p.second,
            lambda x: (Registered(x, torch.ones(4)),),
            lambda: {"p": [{0: Dim.DYNAMIC}, None]},
        ),
        (
            lambda p: p.first.sum(0) + p.second,
            lambda x: (Registered(x, torch.ones(4)),),
            lambda: ({"first": {0: Dim.DYNAMIC}},),
        ),
        (lambda *a: a[0] + a[1], lambda x: (torch.ones(4), x), lambda: ((None, {0: Dim.DYNAMIC}),)),
        (lambda d: d["a"][0] + 1, lambda x: ({"a": [x]},), lambda: {"d": {"a": [{0: Dim.DYNAMIC}]}}),
    ],
)
def test_forms_of_dynamic_shapes(function: Any, make: Any, shapes: Any) -> None:
    exported = st.export(function, make(X), dynamic_shapes=shapes())
    for rows in (3, 9):
        args = make(torch.randn(rows, 4))
        close(exported.unflatten_outputs(exported.program.module()(*exported.flatten_inputs(*args))), function(*args))


class ByKeyword(nn.Module):
    def forward(self, x: torch.Tensor, *, z: torch.Tensor) -> Any:
        return x + 1, z * 2, z.shape[0], z.shape


def attention(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "shapes"),
    [
        (ByKeyword(), (X,), {"z": X + 1}, {"x": None, "z": {0: Dim("rows", min=2, max=64)}}),
        (attention, (X[None, None],), {}, None),
        (lambda x: None, (X,), {}, None),
    ],
)
def test_decomposed_and_saved(function: Any, args: Any, kwargs: Any, shapes: Any, tmp_path: Path) -> None:
    exported = st.export(function, args, kwargs, dynamic_shapes=shapes)
    torch.export.save(exported.program, tmp_path / "p.pt2")
    for program in (exported.program.run_decompositions(), torch.export.load(tmp_path / "p.pt2")):
        inputs = exported.flatten_inputs(*args, **kwargs)
        close(exported.unflatten_outputs(program.module()(*inputs)), function(*args, **kwargs))


def test_dynamic_sizes_of_wrappers() -> None:
    exported = st.export(
        lambda x, y: (x @ y, x.shape[0]),
        (TwoTensor(X, X + 1), torch.rand(4, 2)),
        dynamic_shapes={"x": {0: Dim.DYNAMIC}},
    )
    x = TwoTensor(torch.rand(7, 4), torch.rand(7, 4))
    y = torch.rand(4, 2)
    found, rows = exported.unflatten_outputs(exported.program.module()(*exported.flatten_inputs(x, y)))
    close(found, x @ y)
    assert rows == 7


@pytest.mark.parametrize(
    ("function", "shapes", "what"),
    [
        (lambda x: x * 2 if x.shape[0] == 5 else x, {"x": {0: Dim.DYNAMIC}}, "number|more than in a range"),
        (lambda x: x.reshape(-1, 2, 4) if x.shape[0] % 2 == 0 else x, {"x": {0: Dim.DYNAMIC}}, "more than in a range"),
        (lambda x: x * 2, {"y": {0: Dim.DYNAMIC}}, "names no argument"),
        (lambda x: x * 2, {"x": {3: Dim.DYNAMIC}}, "names no dimension"),
        (lambda x: x * 2, {"x": Dim.DYNAMIC}, "does not fit"),
        (lambda x: x * 2, (None, None), "does not fit"),
        (lambda x: x * 2, {"x": {0: Dim("few", min=2, max=3)}}, "not among the sizes"),
    ],
)
def test_sizes_that_cannot_be_dynamic(function: Any, shapes: Any, what: str) -> None:
    with pytest.raises(ExportError, match=what) as caught:
        st.export(function, (X,), dynamic_shapes=shapes)
    assert caught.value.path
