"""What a declaration makes: constructor, flatten, unflatten, repr, inheritance."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar, Optional

import pytest
import torch
from authored import (
    MAKERS,
    Empty,
    Grid,
    Halves,
    Pair,
    Rounding,
    Scaled,
    Shifted,
    Strict,
    TaggedPair,
    leaves,
    randn,
    structure,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import subclass_trace as st
from subclass_trace.authoring import Outer
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
def test_unflatten_honours_the_outer_size_and_stride(make) -> None:
    x = make()
    names, context = x.__tensor_flatten__()
    y = type(x).__tensor_unflatten__({n: getattr(x, n) for n in names}, context, torch.Size((4, 4)), (1, 4))
    assert y.shape == (4, 4) and y.stride() == (1, 4)


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


def test_outer_metadata_of_symbolic_sizes() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    left, right = mode.from_tensor(randn(4, 3)), mode.from_tensor(randn(4, 3))
    x = Halves(left, right)
    rows, columns = left.shape
    assert str(x.shape[0]) == str(rows) and str(x.shape[1]) == str(2 * columns)
    assert [str(n) for n in x.stride()] == [str(2 * columns), "1"]
    assert str(Strict(left.t()).stride()[1]) == str(columns)
    assert not env.guards, env.guards


def test_constructor_like_a_dataclass() -> None:
    a, b = randn(2), randn(2)
    x = TaggedPair(a, b=b, tag=2)
    assert (x.a, x.b, x.tag, x.note) == (a, b, 2, "none")
    assert str(inspect.signature(TaggedPair)) == "(a, b, tag=0, note='none')"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        Pair(a)
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        Pair(a, b, c=1)


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


def test_every_part_of_outer_metadata() -> None:
    class Odd(st.WrapperTensor):
        data_: Tensor

        @classmethod
        def outer_metadata(cls, fields: Any) -> Outer:
            return Outer((2, 2), (1, 7), torch.int64, torch.device("meta"), torch.strided, 5)

    x = Odd(torch.zeros(3))
    assert (x.shape, x.stride(), x.storage_offset()) == ((2, 2), (1, 7), 5)
    assert (x.dtype, x.device.type, x.layout) == (torch.int64, "meta", torch.strided)


def test_outer_metadata_sees_fields_only() -> None:
    class Asks(st.WrapperTensor):
        data_: Tensor

        @classmethod
        def outer_metadata(cls, fields: Any) -> Outer:
            return Outer(size=fields.shape)

    with pytest.raises(st.ProtocolError, match="reads 'shape', which is no field") as error:
        Asks(torch.zeros(3))
    assert error.value.expected == "one of ['data_']"

    class Wrong(st.WrapperTensor):
        data_: Tensor

        @classmethod
        def outer_metadata(cls, fields: Any) -> Any:
            return (2, 2)

    with pytest.raises(st.ProtocolError, match="must return subclass_trace.authoring.Outer"):
        Wrong(torch.zeros(3))

    class Silent(st.WrapperTensor):
        number: int

        @classmethod
        def outer_metadata(cls, fields: Any) -> Outer:
            return Outer(size=(2,))

    with pytest.raises(st.ProtocolError, match="no inner tensor to take its size and dtype from"):
        Silent(1)


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


def test_repr_while_tracing_and_of_fakes() -> None:
    real = Pair(torch.ones(2), torch.zeros(2))
    texts: list[str] = []

    def f(x: Tensor) -> Tensor:
        texts.append(repr(real))
        return x * 2

    fake = FakeTensorMode().from_tensor(real)
    assert repr(fake) == "Pair(a=FakeTensor(..., size=(2,)), b=FakeTensor(..., size=(2,)))"
    graph = make_fx(lambda a: f(Pair(a, a)).a, tracing_mode="fake")(torch.ones(2))
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [torch.ops.aten.mul.Tensor] * 2
    assert texts == [repr(real)] * len(texts)
    with pytest.raises(st.DataDependentError):
        st.compile(lambda x: (repr(x), x * 2)[1])(Pair(torch.ones(2), torch.zeros(2)))


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

    assert str(inspect.signature(Left)) == "(first, rate=0.5, second=None)"
    assert str(inspect.signature(Right)) == "(first, rate=0.25, third=3)"
    assert str(inspect.signature(Both)) == "(first, rate=0.25, third=3, second=None)"
    x = Both(torch.ones(2))
    assert x.__tensor_flatten__() == (["first"], (0.25, 3))
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

    kinds = {f.name: f.kind.value for f in Forms._wrapper_fields}
    optional = "inner tensor or None"
    want = {"a": "inner tensor", "b": optional, "c": "inner tensor", "d": optional, "e": "context", "f": optional}
    assert kinds == {**want, "g": "context", "h": optional}
    assert str(inspect.signature(Forms)) == "(a, b, c, d, *, e=None, f=None, g=(), h=None)"


# ------------------------------------------------------------------------------------------------------------ errors
def declare(annotations: dict[str, Any], bases: tuple[type, ...] = (st.WrapperTensor,), **body: Any) -> type:
    how = body.pop("how", {})
    return type(bases[0])("Bad", bases, {"__annotations__": annotations, "__module__": __name__, **body}, **how)


BAD = {
    "no tensor": ({"n": int}, {}, "Bad declares no inner tensor", "outer_metadata"),
    "nothing": ({}, {}, "Bad declares no inner tensor", "outer_metadata"),
    "optional first": ({"x": Optional[Tensor]}, {}, "a first inner tensor, x, that may be None", "outer_metadata"),  # noqa: UP045
    "list of tensors": ({"x": list[Tensor]}, {}, "Bad.x is neither an inner tensor nor context", "field of its own"),
    "tensor or number": ({"x": Tensor | int}, {}, "Bad.x is neither", "field of its own"),
    "text of tensors": ({"x": "dict[str, Unknown.Tensor]"}, {}, "Bad.x is neither", "field of its own"),
    "list": ({"a": Tensor, "sizes": list[int]}, {}, "Bad.sizes is context of a mutable type", "tuple"),
    "maybe dict": ({"a": Tensor, "sizes": Optional[dict]}, {}, "Bad.sizes is context of a mutable type", "tuple"),  # noqa: UP045
    "mutable default": (
        {"a": Tensor, "sizes": Any},
        {"sizes": []},
        r"Bad.sizes has a mutable default, \[\]",
        "immutable",
    ),
    "tensor default": ({"a": Tensor}, {"a": torch.ones(1)}, "Bad.a is an inner tensor with a default", "None = None"),
    "tensor context": ({"a": Tensor, "b": Any}, {"b": torch.ones(1)}, "has a tensor as default", "b: Tensor"),
    "order": ({"a": Tensor, "b": int, "c": int}, {"b": 1}, "Bad.c has no default but follows b", "KW_ONLY"),
    "slots": ({"a": Tensor}, {"__slots__": ("a",)}, "Bad.a is a slot", "__dict__"),
    "default": ({"a": Tensor}, {"how": {"default": "dense"}}, "'dense' is no default", "refuse"),
    "no dequantize": ({"a": Tensor}, {"how": {"default": "dequantize"}}, "has no dequantize", "add it"),
    "kind changes": ({"a": int}, {"bases": (Pair,)}, "is context here and inner tensor in a base class", "rename"),
}
for _name in (
    "data",
    "grad",
    "shape",
    "names",
    "retains_grad",
    "device",
    "T",
    "size",
    "_version",
    "is_leaf",
    "implements",
    "__init__",
    "cls",
):
    BAD[f"clash {_name}"] = ({_name: Tensor}, {}, f"Bad.{_name} hides an attribute", "rename it")


@pytest.mark.parametrize("annotations, body, message, fix", BAD.values(), ids=BAD)
def test_bad_declarations(annotations, body, message, fix) -> None:
    with pytest.raises(st.ProtocolError, match=message) as error:
        declare(annotations, **body)
    assert fix in error.value.fix and error.value.path.startswith("Bad")


def test_bad_values() -> None:
    with pytest.raises(st.ProtocolError, match="Pair.b must be a tensor") as error:
        Pair(torch.ones(1), None)
    assert "Tensor | None" in error.value.fix
    with pytest.raises(st.ProtocolError, match="Shifted.shift must be a tensor"):
        Shifted(torch.ones(1), 2.0)
    with pytest.raises(st.ProtocolError, match="TaggedPair.note is context and cannot be a list") as error:
        TaggedPair(torch.ones(1), torch.ones(1), note=[1])
    assert error.value.fix == "pass a tuple or a frozenset"
    with pytest.raises(st.ProtocolError, match="cannot be a Tensor") as error:
        TaggedPair(torch.ones(1), torch.ones(1), note=torch.ones(1))
    assert error.value.fix == "annotate it as Tensor"
    with pytest.raises(st.ProtocolError, match="WrapperTensor declares nothing"):
        st.WrapperTensor(torch.ones(1))
    assert Rounding.DOWN in Rounding and len(leaves(MAKERS["scaled pair"]())) == 3
