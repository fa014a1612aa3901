"""Bad input: each a typed error with what, path, expected, got and fix, and the caller's tensors unchanged."""

from __future__ import annotations

import functools
import sys

import pytest
import torch

import subclass_trace as st
from subclass_trace.frontends.routes import Route, route_of
from subclass_trace.zoo import TwoTensor


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.ones(size), torch.full(size, 2.0))


def traced(function, **options):
    """A region whose refusals are errors, and not handed to Dynamo."""
    return st.compile(function, frontend="trace", **options)


class Bare(torch.Tensor):
    pass


class NoUnflatten(torch.Tensor):
    @staticmethod
    def __new__(cls, a):
        self = torch.Tensor._make_wrapper_subclass(cls, a.shape)
        self.a = a
        return self

    def __tensor_flatten__(self):
        return ["a"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        raise NotImplementedError


class Liar(torch.Tensor):
    """Names whatever ``names`` says."""

    names: object = (["missing"], None)

    @staticmethod
    def __new__(cls, a):
        self = torch.Tensor._make_wrapper_subclass(cls, a.shape)
        self.a, self.number, self.none = a, 3, None
        return self

    def __tensor_flatten__(self):
        return self.names

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Liar(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        raise NotImplementedError


def liar(names: object) -> Liar:
    x = Liar(torch.ones(2))
    x.names = names
    return x


def refused(f, *args, **kwargs) -> st.SubclassTraceError:
    """Call; the error; the caller's tensors (values and versions) are as before."""
    given = [a for a in args if type(a) in (torch.Tensor, TwoTensor)]
    before = [
        (t.a.clone(), t._version) if isinstance(t, TwoTensor) else (t.detach().clone(), t._version) for t in given
    ]
    with pytest.raises(st.SubclassTraceError) as caught:
        f(*args, **kwargs)
    for t, (value, version) in zip(given, before, strict=True):
        assert torch.equal(t.a if isinstance(t, TwoTensor) else t, value)
        assert t._version == version
    error = caught.value
    for part in (error.path, error.expected, error.got, error.fix):
        assert part is None or part in str(error)
    return error


def complete(error: st.SubclassTraceError) -> None:
    """All parts of the message are there."""
    missing = [n for n in ("what", "path", "expected", "got", "fix") if not getattr(error, n)]
    assert not missing, f"{type(error).__name__} lacks {missing}:\n{error}"


# ---------------------------------------------------------------------------------------------- the message itself
def test_message_of_all_parts() -> None:
    error = st.ProtocolError("what", path="args[0].a", expected="x", got="y", fix="z")
    assert str(error) == "what\n  where:    args[0].a\n  expected: x\n  got:      y\n  fix:      z"


def test_absent_parts_are_left_out() -> None:
    assert str(st.GuardError("what", got="y")) == "what\n  got:      y"


@pytest.mark.parametrize("name", [n for n in st.__all__ if n.endswith("Error")])
def test_all_errors_share_one_base(name: str) -> None:
    assert issubclass(getattr(st, name), st.SubclassTraceError)
    assert issubclass(getattr(st, name), RuntimeError)


# ---------------------------------------------------------------------------------------------- subclasses
def test_a_subclass_without_the_protocol() -> None:
    """A call of such a region runs eagerly."""
    x = torch.ones(2).as_subclass(Bare)
    assert type(st.compile(lambda x: x + 1)(x)) is Bare
    error = refused(functools.partial(st.trace, lambda x: x + 1), x)
    assert route_of(error) is Route.EAGER  # it means to be no wrapper
    assert str(error) == (
        "Bare is a tensor subclass that cannot be traced through: Bare has no __tensor_flatten__(self) -> (attribute names, "
        "context); Bare has no static __tensor_unflatten__(inner_tensors, context, outer_size, outer_stride); Bare has no "
        "__torch_dispatch__(cls, func, types, args, kwargs)\n"
        "  where:    args[0]\n"
        "  expected: torch.Tensor, or a subclass with __tensor_flatten__, __tensor_unflatten__ and __torch_dispatch__\n"
        f"  got:      an instance of {__name__}.Bare\n"
        "  fix:      add the missing methods, or pass value.as_subclass(torch.Tensor)"
    )


def test_half_of_the_protocol_nested_in_a_pytree() -> None:
    error = refused(traced(lambda d: d["k"][1] + 1), {"k": [torch.ones(2), NoUnflatten(torch.ones(2))]})
    assert type(error) is st.ProtocolError
    assert error.path == "args[0]['k'][1]"
    assert "NoUnflatten has no static __tensor_unflatten__" in error.what
    complete(error)


def test_a_refused_subclass_inside_a_wrapper_is_named_by_its_path() -> None:
    x = TwoTensor(torch.ones(2).as_subclass(Bare), torch.ones(2))
    error = refused(functools.partial(st.trace, lambda x: x + 1), x=x)
    assert route_of(error) is Route.EAGER and error.path == "kwargs['x'].a"


@pytest.mark.parametrize(
    ("names", "path", "expected", "got"),
    [
        (
            (["missing"], None),
            "args[0].missing",
            "a tensor at attribute 'missing'",
            "'Liar' object has no attribute 'missing'",
        ),
        ((["number"], None), "args[0].number", "a tensor, or an opaque object such as a DeviceMesh", "int: 3"),
        ((["none"], None), "args[0].none", "a tensor, or an opaque object such as a DeviceMesh", "NoneType: None"),
        (["a"], "args[0]", "([attribute names], context)", "['a']"),
        (("a", None), "args[0]", "([attribute names], context)", "('a', None)"),
        (None, "args[0]", "([attribute names], context)", "None"),
        (([3], None), "args[0]", None, None),
    ],
)
def test_a_flatten_that_lies(names: object, path: str, expected: str | None, got: str | None) -> None:
    error = refused(traced(lambda x: x + 1), liar(names))
    assert type(error) is st.ProtocolError
    complete(error)
    if expected is not None:
        assert (error.path, error.expected, error.got) == (path, expected, got)


def test_a_flatten_that_raises() -> None:
    class Raises(TwoTensor):
        def __tensor_flatten__(self):
            raise ValueError("inside flatten")

    x = two(2)
    y = torch.Tensor._make_wrapper_subclass(Raises, (2,))
    y.a, y.b = x.a, x.b
    with pytest.raises((st.ProtocolError, ValueError), match="inside flatten"):
        st.compile(lambda x: x + 1)(y)


# ---------------------------------------------------------------------------------------------- data-dependent code
def test_nothing_is_written_when_the_refusal_comes_after_a_mutation() -> None:
    def f(x):
        x.add_(1)
        return x if x.sum() > 0 else -x

    refused(traced(f), torch.ones(3))
    refused(traced(lambda x: (x.add_(1), x if x.a.sum() > 0 else -x)), two(3))


def test_the_users_own_exception_comes_through_unchanged() -> None:
    class Mine(Exception):
        pass

    def f(x):
        raise Mine(1, 2)

    region = st.compile(f)
    for _ in range(2):
        with pytest.raises(Mine) as caught:
            region(torch.ones(2))
        assert caught.value.args == (1, 2)
    assert region.specializations == []


# ---------------------------------------------------------------------------------------------- calls and options
def test_arguments_that_do_not_fit() -> None:
    for function in (lambda x, y: x + y, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError):
            st.compile(function)(torch.ones(2), torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("name", ["mincut", "nope", 3])
def test_an_unknown_partitioner(name) -> None:
    error = refused(lambda: st.compile(lambda x: x, partitioner=name))
    assert type(error) is st.OptionError
    assert error.expected and error.got and repr(name) in error.what


def test_a_budget_needs_min_cut() -> None:
    error = refused(lambda: st.compile(lambda x: x, activation_memory_budget=0.5, partitioner="default"))
    assert type(error) is st.OptionError


def test_an_unknown_option() -> None:
    error = refused(lambda: st.compile(lambda x: x, dynamik=True))
    assert type(error) is st.OptionError
    assert error.fix == "did you mean 'dynamic'?"


@pytest.mark.parametrize("value", [3, "f", None.__class__])
def test_compiling_something_that_is_not_a_function(value) -> None:
    with pytest.raises((st.OptionError, TypeError)):
        st.compile(value)(torch.ones(2))


def test_too_many_specializations() -> None:
    region = traced(lambda x, n: x * n, max_specializations=3, dynamic=False)
    for n in range(3):
        region(torch.ones(2), n)
    error = refused(region, torch.ones(2), 3)
    assert type(error) is st.LimitError
    assert error.expected == "at most max_specializations=3"
    assert "[0] args[1]: expected 0, got 3" in error.got
    complete_but_path = [n for n in ("what", "expected", "got", "fix") if not getattr(error, n)]
    assert complete_but_path == []


def test_a_result_that_escapes_by_a_side_effect_is_not_silent() -> None:
    """A fake tensor that Python state keeps must not be used by a later region without a typed error."""
    kept = []
    region = traced(lambda x: kept.append(x + 1) or x * 2)
    for k in range(2):
        region(torch.full((2,), float(k)))
        assert [t.tolist() for t in kept] == [[n + 1.0] * 2 for n in range(k + 1)]
    hidden: list[torch.Tensor] = []  # of which the region does not know
    sys.addaudithook(lambda event, args: hidden.append(*args) if event == "subclass_trace.tests.hide" else None)
    st.compile(lambda x: (sys.audit("subclass_trace.tests.hide", x + 1), x * 2)[1])(torch.ones(2))
    error = refused(traced(lambda x: x + hidden[0]), torch.ones(2))
    assert isinstance(error, st.UnsupportedError)


@pytest.mark.parametrize(
    "options",
    [
        {"max_specializations": "x"},
        {"max_specializations": True},
        {"max_specializations": 0},
        {"dynamic": "x"},
        {"decompositions": {torch.ops.aten.sin.default: 3}},
        {"partitioner": st.MinCut(budget=0.5), "activation_memory_budget": 0.5},
    ],
    ids=str,
)
def test_options_of_the_wrong_kind(options) -> None:
    with pytest.raises(st.OptionError) as caught:
        st.compile(torch.sin, **options)
    assert caught.value.expected and caught.value.got


def test_nothing_to_compile_is_not_a_decorator() -> None:
    with pytest.raises(st.OptionError, match="nothing to compile"):
        st.compile(None)
    assert st.compile()(torch.sin)(torch.zeros(2)).equal(torch.zeros(2))
    assert st.compile(dynamic=True)(torch.sin)(torch.zeros(2)).equal(torch.zeros(2))
