"""What a declaration makes: constructor, flatten, unflatten, repr, inheritance; and the files of ``write_scaffold``."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Optional

import pytest
import torch
from authored import MAKERS, Empty, Grid, Halves, Pair, Scaled, Shifted, Strict, TaggedPair, randn, structure
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import subclass_trace as st
from subclass_trace.authoring.scaffold import write_scaffold
from subclass_trace.subclass.protocol import problems

every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every
def test_the_result_is_a_plain_traceable_wrapper(make) -> None:
    x = make()
    assert is_traceable_wrapper_subclass(x) and problems(type(x)) == ()
    assert not type(x).__dict__.get("__slots__")
    names, context = x.__tensor_flatten__()
    y = type(x).__tensor_unflatten__({n: getattr(x, n) for n in names}, context, x.shape, x.stride())
    assert structure(y) == structure(x)
    assert all(getattr(y, n) is getattr(x, n) for n in names)


@every
def test_unflatten_with_symbolic_sizes(make) -> None:
    x = make()
    if isinstance(x, Empty):
        return  # its size is context
    env = ShapeEnv()
    fake = FakeTensorMode(shape_env=env).from_tensor(x)
    assert any(isinstance(n, torch.SymInt) for n in fake.shape)
    names, context = fake.__tensor_flatten__()
    y = type(x).__tensor_unflatten__({n: getattr(fake, n) for n in names}, context, fake.shape, fake.stride())
    assert [str(n) for n in y.shape] == [str(n) for n in fake.shape]
    assert [str(n) for n in y.stride()] == [str(n) for n in fake.stride()]
    assert not env.guards, env.guards


def test_flatten_names_what_is_there() -> None:
    assert Pair(randn(2), randn(2)).__tensor_flatten__() == (["a", "b"], None)
    assert Scaled(randn(2), torch.tensor(1.0)).__tensor_flatten__() == (["codes", "scale"], (torch.float32,))
    assert Shifted(randn(2)).__tensor_flatten__() == (["data_"], (Grid(),))
    assert Shifted(randn(2), randn(2)).__tensor_flatten__()[0] == ["data_", "shift"]
    assert Empty(3).__tensor_flatten__() == ([], (3,))


def test_outer_metadata() -> None:
    inner = torch.arange(12.0).view(4, 3)[1:].t()
    x = Strict(inner)
    assert (x.shape, x.stride(), x.storage_offset()) == (inner.shape, inner.stride(), 3)
    y = Halves(randn(2, 3), randn(2, 3))
    assert y.shape == (2, 6) and y.stride() == (6, 1) and y.dtype == torch.float32
    assert Scaled(randn(2), torch.tensor(1.0), torch.float16).dtype == torch.float16
    assert Empty(3).shape == (3, 2) and Empty(3).dtype == torch.float64
    assert Scaled(inner, torch.tensor(1.0)).storage_offset() == 3


def test_inner_tensors_do_not_require_grad() -> None:
    a, b = randn(3).requires_grad_(), torch.nn.Parameter(randn(3))
    x = Pair(a, b)
    assert not x.a.requires_grad and not x.b.requires_grad and not x.requires_grad
    assert x.a.data_ptr() == a.data_ptr() and x.b.data_ptr() == b.data_ptr()
    y = Pair(plain := randn(3), plain)
    assert y.a is plain and y.b is plain


def test_repr() -> None:
    assert repr(Shifted(torch.ones(2))) == (
        "Shifted(data_=tensor([1., 1.]), shift=None, grid=Grid(steps=16, rounding=<Rounding.NEAREST: 'nearest'>))"
    )
    x = Pair(torch.ones(1), torch.zeros(1))
    assert repr(x) == "Pair(a=tensor([1.]), b=tensor([0.]))"
    assert repr(x.requires_grad_()) == "Pair(a=tensor([1.]), b=tensor([0.]), requires_grad=True)"
    assert repr(x * 2) == "Pair(a=tensor([2.]), b=tensor([0.]), grad_fn=<MulBackward0>)"
    assert repr(torch.nn.Parameter(x)).startswith("Pair(a=tensor([1.])")


def test_replace() -> None:
    x = TaggedPair(randn(2, 3), randn(2, 3), 1)
    y = x.replace(a=(a := torch.ones(2, 3)), tag=5)
    assert type(y) is TaggedPair and y.a is a and y.b is x.b and (y.tag, y.note) == (5, "none")
    z = x.replace(outer_size=(3, 2), outer_stride=(1, 3))
    assert z.shape == (3, 2) and z.stride() == (1, 3) and z.a is x.a
    with pytest.raises(st.ProtocolError, match="TaggedPair has no field c"):
        x.replace(c=1)


def test_post_init_checks_calls_but_not_unflatten() -> None:
    class Positive(st.WrapperTensor):
        data_: Tensor
        times: int = 1

        def __post_init__(self) -> None:
            if self.times < 1:
                raise ValueError("times")

    x = Positive(torch.ones(2))
    with pytest.raises(ValueError, match="times"):
        Positive(torch.ones(2), 0)
    assert Positive.__tensor_unflatten__({"data_": x.data_}, (0,), x.shape, x.stride()).times == 0


# ------------------------------------------------------------------------------------------------------- inheritance
def test_fields_and_contexts_inherit() -> None:
    class Base(st.WrapperTensor, default="per_inner"):
        first: Tensor
        rate: float = 0.5

    class Left(Base):
        second: Tensor | None = None

    class Right(Base):
        rate: float = 0.25
        third: int = 3

    class Both(Left, Right):
        pass

    x = Both(torch.ones(2))
    assert x.__tensor_flatten__() == (["first"], (0.5, 3))  # as dataclasses have it
    assert (x + 1).third == 3 and type(x + 1) is Both


def test_methods_that_the_author_writes_stay() -> None:
    class Own(st.WrapperTensor, default="per_inner"):
        data_: Tensor
        extra: int = 0

        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return ["data_"], {"extra": self.extra}

        @staticmethod
        def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Own:
            return Own(inner["data_"], context["extra"])

        def __repr__(self) -> str:
            return "mine"

    x = Own(torch.ones(2), 4)
    assert x.__tensor_flatten__() == (["data_"], {"extra": 4}) and repr(x) == "mine"
    assert (x * 2).extra == 4 and st.compile(lambda v: v * 2)(x).extra == 4


def test_annotations_in_all_forms() -> None:
    class Forms(st.WrapperTensor):
        constant: ClassVar[int] = 3
        a: torch.Tensor
        b: Optional[torch.Tensor]  # noqa: UP045
        c: torch.nn.Parameter | torch.Tensor
        d: Pair | None
        _: dataclasses.KW_ONLY
        e: NotImported = None  # noqa: F821
        f: Tensor | None = None
        g: tuple[int, ...] = ()
        h: Forms | None = None

    declared = Forms._wrapper_declared
    assert declared.names == tuple("abcdefgh") and declared.context == ("e", "g") and declared.optional == set("bdfh")
    parameters = inspect.signature(Forms).parameters.values()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == list("efgh")


# ------------------------------------------------------------------------------------------------------------ errors
def declare(annotations: dict[str, Any], **body: Any) -> type:
    how = body.pop("how", {})
    bases = (st.WrapperTensor,)
    return type(st.WrapperTensor)("Bad", bases, {"__annotations__": annotations, "__module__": __name__, **body}, **how)


BAD = {
    "no tensor": ({"n": int}, {}, "Bad has no first inner tensor", "outer_metadata"),
    "optional first": ({"x": Optional[Tensor]}, {}, "Bad has no first inner tensor", "outer_metadata"),  # noqa: UP045
    "list of tensors": ({"x": list[Tensor]}, {}, "Bad.x is neither an inner tensor nor context", "field of its own"),
    "tensor or number": ({"x": Tensor | int}, {}, "Bad.x is neither", "field of its own"),
    "text of tensors": ({"x": "dict[str, Unknown.Tensor]"}, {}, "Bad.x is neither", "field of its own"),
    "mutable default": ({"a": Tensor, "b": Any}, {"b": []}, "Bad: mutable default", "dataclass"),
    "order": ({"a": Tensor, "b": int, "c": int}, {"b": 1}, "Bad: non-default argument 'c' follows", "dataclass"),
    "default": ({"a": Tensor}, {"how": {"default": "dense"}}, "'dense' is no default", "refuse"),
    "no dequantize": ({"a": Tensor}, {"how": {"default": "dequantize"}}, "has no dequantize", "add it"),
    "log": ({"log": Tensor}, {}, "Bad.log hides an attribute", "rename it, for example inner_log"),
    "data": ({"data": Tensor}, {}, "Bad.data hides an attribute", "rename it, for example data_"),
    "implements": ({"implements": Tensor}, {}, "Bad.implements hides an attribute", "rename it"),
}


@pytest.mark.parametrize("annotations, body, message, fix", BAD.values(), ids=BAD)
def test_bad_declarations(annotations, body, message, fix) -> None:
    with pytest.raises(st.ProtocolError, match=message) as error:
        declare(annotations, **body)
    assert fix in error.value.fix and error.value.path.startswith("Bad")


BAD_VALUES = {
    "Pair.b must be a tensor": lambda: Pair(torch.ones(1), None),
    "Shifted.shift must be a tensor": lambda: Shifted(torch.ones(1), 2.0),
    "TaggedPair.note is context and cannot be a list": lambda: TaggedPair(torch.ones(1), torch.ones(1), note=[1]),
    "cannot be a Tensor": lambda: TaggedPair(torch.ones(1), torch.ones(1), note=torch.ones(1)),
    "is no ATen operation": lambda: Pair.implements(torch.add)(print),
    "it is composite": lambda: Pair.implements(torch.ops.aten.linear.default)(print),
    "has no inner tensors": lambda: Pair.implements_views(inner=["scale"]),
    "a conjugate or negative bit": lambda: Pair(torch.ones(1, dtype=torch.complex64).conj(), torch.ones(1)),
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_bad_values_and_rules(message) -> None:
    with pytest.raises((st.ProtocolError, st.UnsupportedError), match=message):
        BAD_VALUES[message]()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        Pair(torch.ones(1))


# --------------------------------------------------------- ``write_scaffold``: files that run as they are, and refusals
ROOT = Path(st.__file__).parents[1]


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=folder, env=environment
    )


@pytest.mark.slow
def test_the_written_test_passes(tmp_path) -> None:
    files = write_scaffold("BlockFP8Weight", tmp_path / "new" / "package")
    assert [f.name for f in files] == ["block_fp8_weight.py", "test_block_fp8_weight.py"]
    for file in files:
        text = file.read_text()
        assert "MyTensor" not in text and "my_tensor" not in text and text.endswith("\n")
    options = ("-q", "-p", "no:cacheprovider", "--show-capture=no")
    done = run("-m", "pytest", *options, files[1].name, folder=files[1].parent)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", ["", "my tensor", "1Tensor", "class", "_Hidden", "a.b", "../up"])
def test_names_that_are_none(name, tmp_path) -> None:
    with pytest.raises(st.OptionError, match="cannot be the name of a public class") as error:
        write_scaffold(name, tmp_path)
    assert error.value.got == repr(name) and not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    with pytest.raises(st.OptionError, match="test_mine.py exists") as error:
        write_scaffold("Mine", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["test_mine.py"]  # all or nothing
    assert "another name" in error.value.fix and (tmp_path / "test_mine.py").read_text() == "precious"
