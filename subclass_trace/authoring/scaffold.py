"""A new wrapper class as two files that run: the class and its test.

>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     [path.name for path in write_scaffold("MyTensor", folder)]
['my_tensor.py', 'test_my_tensor.py']
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from ..errors import OptionError


def write_scaffold(
    name: str, directory: str | os.PathLike[str], *, use: str = "activation"
) -> list[Path]:
    """Write a wrapper class and its test.

    Args:
        name: of the class; the files are named after it (``MyTensor``: ``my_tensor.py``).
        directory: where; made if it does not exist.
        use: ``"activation"``, or ``"weight"``: of a layer, in int8, with a scale for each row.

    Returns:
        The two files. ``pytest test_my_tensor.py`` passes as they are.

    Raises:
        OptionError: the name cannot be one of a class; there is no such use; or a file exists.
    """
    if use not in _TEXTS:
        raise OptionError(f"{use!r} is no use", expected=" or ".join(map(repr, _TEXTS)))
    body, test = _TEXTS[use]
    module = _module_name(name)
    folder = Path(directory)
    paths = {folder / f"{module}.py": body, folder / f"test_{module}.py": test}
    there = [path for path in paths if path.exists()]
    if there:
        raise OptionError(
            f"{there[0]} exists", path=there[0], fix="choose another name or directory"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(
            text.replace("MyTensor", name).replace("my_tensor", module), encoding="utf-8"
        )
    return list(paths)


def _module_name(name: str) -> str:
    """``MyFP8Tensor`` -> ``my_fp8_tensor``, if that can be imported."""
    if (
        not (name.isidentifier() and name.isascii())
        or keyword.iskeyword(name)
        or name.startswith("_")
    ):
        raise OptionError(
            f"{name!r} cannot be the name of a public class",
            expected="a Python identifier such as MyTensor",
            got=repr(name),
            fix="use the letters a to z and digits, beginning with a letter",
        )
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    if module in sys.stdlib_module_names or module in packages_distributions():
        raise OptionError(
            f"{module}.py would stand in front of the module {module}",
            expected="a name that no module has: MyTensor for my_tensor.py",
            got=repr(name),
        )
    return module


_CLASS = '''\
"""`MyTensor`: values that know their scale. value = codes * scale.

Replace the inner tensors, the context and the rules by yours; the author's guide of subclass_trace
says what each part is for. `pytest test_my_tensor.py` checks the class against the rules that every
wrapper subclass has to keep.
"""

from __future__ import annotations

from typing import Any

import torch
from subclass_trace import WrapperTensor
from torch import Tensor

aten = torch.ops.aten


class MyTensor(WrapperTensor, default="dequantize"):
    """``codes * scale``.

    Args:
        codes: the shape and dtype of the wrapper.
        scale: 0-dim, one for all codes.
    """

    codes: Tensor
    scale: Tensor

    @classmethod
    def from_dense(cls, x: Tensor) -> MyTensor:
        """The wrapper that stands for a dense tensor. Not differentiable."""
        scale = x.new_full((), 2.0)
        return cls(x.detach() / scale, scale)

    def dequantize(self) -> Tensor:
        """The dense value, differentiable for callers. Operations without a rule compute on it."""
        return self.codes * self.scale

    def requantize_(self, value: Tensor) -> None:
        """Write a dense value into the inner tensors: what in-place operations end in."""
        self.codes.copy_(value / self.scale)


# Views look at the codes; the scale is shared with the base.
MyTensor.implements_views(inner="codes")


@MyTensor.implements(aten.neg.default)
def _neg(func: Any, x: MyTensor) -> MyTensor:
    """A rule: negation stays wrapped. Everything without a rule gives the dense result."""
    return x.replace(codes=func(x.codes), scale=x.scale.clone())
'''

_TEST = '''\
"""`MyTensor` keeps the rules of wrapper subclasses, and does what it is for."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from subclass_trace import compile
from subclass_trace.testing import assert_conforms, wrappers

from my_tensor import MyTensor


def test_conforms() -> None:
    assert_conforms(MyTensor, max_examples=5)


@settings(max_examples=20, deadline=None)
@given(wrappers(MyTensor, floating=True))
def test_negation_stays_wrapped(x: MyTensor) -> None:
    assert type(-x) is MyTensor
    assert torch.equal((-x).dequantize(), -x.dequantize())


def test_trains_like_the_dense_weight() -> None:
    w = MyTensor.from_dense(torch.randn(4, 3)).requires_grad_()
    dense = w.detach().dequantize().requires_grad_()
    x = torch.randn(2, 3)
    for step in (torch.nn.functional.linear, compile(torch.nn.functional.linear)):
        w.grad = dense.grad = None
        step(x, w).square().sum().backward()
        torch.nn.functional.linear(x, dense).square().sum().backward()
        torch.testing.assert_close(w.grad, dense.grad)
'''

_WEIGHT = '''\
"""`MyTensor`: the weight of a layer in int8, with a scale for each row. value = codes * scale.

Replace the inner tensors and `dequantize` by yours; the author's guide of subclass_trace says what
each part is for. `pytest test_my_tensor.py` checks the class against the rules that every wrapper
subclass has to keep.
"""

from __future__ import annotations

from typing import Any

import torch
from subclass_trace import WrapperTensor
from subclass_trace.authoring import Outer
from torch import Tensor


class MyTensor(WrapperTensor, default="weight"):
    """``codes * scale``: (m, n) in int8, and (m, 1) in the dtype that the weight shows.

    Layers, rows, the transpose, conversions, writes and FSDP2's hooks follow from `dequantize` and
    `from_dense`.
    """

    codes: Tensor
    scale: Tensor

    @classmethod
    def outer_metadata(cls, fields: Any) -> Outer:
        """As codes, in the dtype of the scale."""
        return Outer(dtype=fields.scale.dtype)

    @classmethod
    def from_dense(cls, x: Tensor) -> MyTensor:
        """Quantise a matrix. Not differentiable."""
        if x.dim() != 2:
            raise ValueError(f"MyTensor holds matrices, got {tuple(x.shape)}")
        scale = x.detach().abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        return cls((x.detach() / scale).round().clamp(-127, 127).to(torch.int8), scale)

    def dequantize(self) -> Tensor:
        """The dense value. It treats rows alike, and columns: so both can be cut and exchanged."""
        return self.codes * self.scale
'''

_WEIGHT_TEST = '''\
"""`MyTensor` keeps the rules of wrapper subclasses, and is a weight."""

from __future__ import annotations

import torch
from subclass_trace import compile
from subclass_trace.testing import assert_conforms

from my_tensor import MyTensor


def test_conforms() -> None:
    assert_conforms(MyTensor, use="weight", max_examples=5)


def test_a_layer_has_it_as_its_weight() -> None:
    layer = torch.nn.Linear(4, 3)
    layer.weight = torch.nn.Parameter(MyTensor.from_dense(layer.weight))
    x = torch.randn(2, 4)
    expected = torch.nn.functional.linear(x, layer.weight.dequantize(), layer.bias)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(compile(layer)(x), expected)
'''

_TEXTS = {"activation": (_CLASS, _TEST), "weight": (_WEIGHT, _WEIGHT_TEST)}
