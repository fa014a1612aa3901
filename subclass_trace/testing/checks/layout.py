"""ST6xx: memory formats."""

from __future__ import annotations

from ..rules import Severity, rule
from ..script import Script, on


@rule(
    "ST613",
    "operations give the strides that they give on dense tensors",
    severity=Severity.WARNING,
)
def strides(t: Script) -> None:
    """Views and copies choose the strides of their result by fixed rules, which compilers compute on their own with meta
    tensors. A wrapper whose outer strides are others breaks `view`, `is_contiguous` and the guards on strides.
    """
    t.wrapper("x", min_dims=1, min_side=2)
    t.assume(t.value("x.layout is torch.strided"))

    def as_on_dense(op: str) -> None:
        t.require(f"y = {op}")
        t.require("assert type(y) is type(x)", "its results are of another class")
        t.require("m = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device='meta')")
        t.require(f"meta_y = {on('m', op)}")
        t.expect("(y.shape, y.stride())", "(meta_y.shape, meta_y.stride())", "sizes and strides as of a dense tensor")

    t.each(_STRIDED, as_on_dense, "it refuses views and copies, or gives another class")


_STRIDED = ("x.transpose(0, -1)", "x.t()", "x.clone()", "x.unsqueeze(0)", "x.detach()", "x.permute(-1)", "x[:1]")
