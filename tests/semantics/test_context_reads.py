"""Values of a context that the trace never reads make no specialization; whatever is read in any way is guarded."""

from __future__ import annotations

import copy
import dataclasses
import operator
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import subclass_trace as st
from subclass_trace.capture import context_reads
from subclass_trace.runtime import codegen
from subclass_trace.subclass import noting
from subclass_trace.subclass.components import Copies, components, wholes, with_components
from subclass_trace.subclass.flatten import flatten
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Tagged(Tensor):
    """One inner tensor; ``scale`` and ``step`` in the context. Operations give dense results from the inner tensor."""

    a: Tensor
    scale: int
    step: int

    @staticmethod
    def __new__(cls, a: Tensor, scale: int = 3, step: int = 0) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        self.a, self.scale, self.step = a, scale, step

    def __tensor_flatten__(self) -> Any:
        return ["a"], {"scale": self.scale, "step": self.step}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], context["scale"], context["step"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].a.detach(), args[0].scale, args[0].step)
        return func(*tree_map(_dense, args), **tree_map(_dense, kwargs or {}))


def _dense(t: Any) -> Any:
    return t.a if isinstance(t, Tagged) else t


def _twice(function: Callable[..., Any], make: Callable[[int], Any], *rest: Any, count: int) -> Any:
    """Call with 1, 2, 1 in the context; results as in eager, and so many specializations."""
    region = st.compile(function)
    for value in (1, 2, 1):
        found, expected = region(make(value), *rest), function(make(value), *rest)
        assert type(found) is type(expected)
        found, expected = (t.a if isinstance(t, TwoTensor) else t for t in (found, expected))
        torch.testing.assert_close(_dense(found), _dense(expected), rtol=0, atol=0)
    assert len(region.specializations) == count
    return region


# ---------------------------------------------------------------------------------------------- never read
def _of_step(value: int) -> Tagged:
    return Tagged(torch.ones(3), step=value)


def test_a_counter_makes_no_specialization() -> None:
    region = _twice(lambda x: (x * 2).sin(), _of_step, count=1)
    assert [m.steps for m in region.specializations[0].plan.unread] == [(("item", "scale"),), (("item", "step"),)]
    text = region.explain()
    assert "context['step'] of args[0] (any int; nothing read .step)" in text


def test_the_type_stays_guarded() -> None:
    region = st.compile(lambda x: x * 2)
    for value in (1, 2, True, 2.0, None, "a"):
        region(_of_step(value))  # type: ignore[arg-type]
    assert len(region.specializations) == 5  # int, bool, float, None, str


def test_the_outer_tensor_stays_guarded() -> None:
    region = st.compile(lambda x: x * 2)
    for size in (2, 3):
        assert region(Tagged(torch.ones(size), step=size)).shape == (size,)
    assert len(region.specializations) == 2


def test_one_is_read_and_the_other_is_not() -> None:
    _twice(lambda x: (x * 2) * x.scale, _of_step, count=1)
    _twice(lambda x: (x * 2) * x.step, _of_step, count=2)


@pytest.mark.parametrize("generated", [True, False])
def test_training_with_a_counter(generated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not generated:
        monkeypatch.setattr(codegen._EntryEmitter, "emit", _refuse)
    region = st.compile(lambda x, w: (x * w).sin())
    for step in range(3):
        w = torch.ones(3, requires_grad=True)
        region(_of_step(step), w).sum().backward()
        torch.testing.assert_close(w.grad, torch.ones(3).cos())
    assert len(region.specializations) == 1
    assert (region.specializations[0].entry is None) is not generated


def _refuse(self: Any) -> Any:
    raise codegen.NotGenerated("for the reference")


def test_the_input_itself_keeps_its_own_context() -> None:
    def f(x: Any) -> Any:
        x.a.add_(1)
        return x, x * 2

    region = st.compile(f)
    for step in (1, 2):
        x = _of_step(step)
        same, double = region(x)
        assert same is x and x.step == step
        torch.testing.assert_close(double, torch.full((3,), 4.0))
    assert len(region.specializations) == 1


def test_the_inner_wrapper_taken_out_keeps_its_own_context() -> None:
    def f(x: Any) -> Any:
        return x.a, x.b * 2

    region = st.compile(f)
    for step in (1, 2):
        x = TwoTensor(_of_step(step), _of_step(step))
        inner, _ = region(x)
        assert inner is x.a and inner.step == step
    assert len(region.specializations) == 1


Named = namedtuple("Named", ["scale", "step"])


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: int
    step: int


@dataclasses.dataclass
class Mutable:
    scale: int
    step: int


def _with_context(pack: Callable[[int, int], Any], unpack: Callable[[Any], tuple[int, int]]) -> type[Tagged]:
    class Other(Tagged):
        def __tensor_flatten__(self) -> Any:
            return ["a"], pack(self.scale, self.step)

        @classmethod
        def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
            return cls(inner["a"], *unpack(context))

    return Other


_FORMS: dict[str, Any] = {
    "tuple": (lambda a, b: (a, b), lambda c: c),
    "list": (lambda a, b: [a, b], lambda c: c),
    "named tuple": (Named, lambda c: c),
    "frozen dataclass": (Frozen, lambda c: (c.scale, c.step)),
    "dataclass": (Mutable, lambda c: (c.scale, c.step)),
    "whole": (lambda a, b: b, lambda c: (3, c)),
}


@pytest.mark.parametrize("form", _FORMS)
def test_forms_of_contexts(form: str) -> None:
    cls = _with_context(*_FORMS[form])
    _twice(lambda x: x * 2, lambda v: cls(torch.ones(3), 3, v), count=1)
    _twice(lambda x: x * x.step, lambda v: cls(torch.ones(3), 3, v), count=2)


def test_components() -> None:
    context = {"a": 1, "b": [2], "c": "x", "d": None, "e": torch.float32}
    assert components(context) == {(("item", k),): context[k] for k in "ac"}
    assert wholes(context) == {(("item", k),): context[k] for k in "be"}
    assert with_components(Frozen(1, 2), {(("field", "step"),): 5}) == Frozen(1, 5)
    assert with_components(Named(1, 2), {(("field", "step"),): 5}) == Named(1, 5)
    assert components(torch.Size([2, 3])) == {} and components(Mutable(1, 2)) == {
        (("field", "scale"),): 1,
        (("field", "step"),): 2,
    }


# ---------------------------------------------------------------------------------------------- read in some way
class Read(torch.autograd.Function):
    """The backward reads the context, the forward does not."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Tensor) -> Tensor:
        ctx.x = x
        return w.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, grad * ctx.x.step


class Property(Tagged):
    @property
    def doubled(self) -> int:
        return self.step * 2


class InDispatch(Tagged):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs) * args[0].step


class ByFlatten(Tagged):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _, context = args[0].__tensor_flatten__()
        return super().__torch_dispatch__(func, types, args, kwargs) * context["step"]


class Derived(Tagged):
    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        super().__init__(a, scale, step)
        self.derived = step * 2


class Threshold(Tagged):
    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        super().__init__(a, scale, step)
        self.large = step > 1
        self.table = {"step": step}


class Closure(Tagged):
    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        super().__init__(a, scale, step)
        self.function = lambda t: t * step


class Selected(Tagged):
    """``chosen`` is ``scale`` or 7, and ``step`` decides which."""

    def __init__(self, a: Tensor, scale: int = 7, step: int = 0) -> None:
        super().__init__(a, scale, step)
        self.chosen = scale if step == 1 else 7


class Checked(Tagged):
    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        super().__init__(a, scale, step)
        if step > 2:
            raise ValueError("an unknown step")


class Sometimes(Tagged):
    """Has ``high`` only for some contexts."""

    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        super().__init__(a, scale, step)
        if step == 2:
            self.high = 5


class RoundTheClass(Tagged):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs) * object.__getattribute__(args[0], "step")


class OwnGetattribute(Tagged):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "step" if name == "other" else name)


class Slots(Tagged):
    __slots__ = ("hidden",)

    def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
        super().__init__(a, scale, step)
        self.hidden = step


class Printed(Tagged):
    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "x" * self.step


class Outer(Tensor):
    """Reads the context of its inner wrapper when it is built."""

    @staticmethod
    def __new__(cls, a: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a: Any) -> None:
        self.a, self.factor = a, a.step * 10

    def __tensor_flatten__(self) -> Any:
        return ["a"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[t.a if isinstance(t, cls) else t for t in args]) * args[0].factor


def _sets(x: Any) -> Any:
    x.step = 9
    return x * 2


_READS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "attribute": (lambda x: (x * 2) * x.step, _of_step),
    "getattr": (lambda x: (x * 2) * getattr(x, "st" + "ep"), _of_step),
    "attrgetter": (lambda x: (x * 2) * operator.attrgetter("step")(x), _of_step),
    "vars": (lambda x: (x * 2) * vars(x)["step"], _of_step),
    "__dict__": (lambda x: (x * 2) * x.__dict__["step"], _of_step),
    "__getstate__": (lambda x: (x * 2) * x.__getstate__()["step"], _of_step),
    "property": (lambda x: (x * 2) * x.doubled, lambda v: Property(torch.ones(3), 3, v)),
    "property of the class": (
        lambda x: (x * 2) * type(x).doubled.fget(x),
        lambda v: Property(torch.ones(3), 3, v),
    ),
    "dispatch": (lambda x: x * 2, lambda v: InDispatch(torch.ones(3), 3, v)),
    "flatten in the dispatch": (lambda x: x * 2, lambda v: ByFlatten(torch.ones(3), 3, v)),
    "round the class": (lambda x: x * 2, lambda v: RoundTheClass(torch.ones(3), 3, v)),
    "own __getattribute__": (lambda x: (x * 2) * x.other, lambda v: OwnGetattribute(torch.ones(3), 3, v)),
    "slots": (lambda x: (x * 2) * x.hidden, lambda v: Slots(torch.ones(3), 3, v)),
    "one branch": (lambda x: (x * 2) * x.step if x.a.dim() == 1 else x * 2, _of_step),
    "equal numbers": (lambda x: (x * 2) * x.scale, lambda v: Tagged(torch.ones(3), v, v)),
    "derived": (lambda x: (x * 2) * x.derived, lambda v: Derived(torch.ones(3), 3, v)),
    "derived, equal to another value": (lambda x: (x * 2) * x.derived, lambda v: Derived(torch.ones(3), 2, v)),
    "a truth value": (lambda x: (x * 2) * (2 if x.large else 3), lambda v: Threshold(torch.ones(3), 3, v)),
    "in a container": (lambda x: (x * 2) * x.table["step"], lambda v: Threshold(torch.ones(3), 3, v)),
    "closure": (lambda x: x.function(x * 2), lambda v: Closure(torch.ones(3), 3, v)),
    "a choice": (lambda x: (x * 2) * x.chosen, lambda v: Selected(torch.ones(3), 4, v)),
    "an attribute that is not there": (
        lambda x: (x * 2) * getattr(x, "high", 1),
        lambda v: Sometimes(torch.ones(3), 3, v),
    ),
    "nested": (lambda x: (x.a * 2) * x.a.step, lambda v: TwoTensor(_of_step(v), _of_step(v))),
    "nested, the second": (lambda x: (x.b * 2) * x.b.step, lambda v: TwoTensor(_of_step(1), _of_step(v))),
    "by the wrapper around it": (lambda x: x * 2, lambda v: Outer(_of_step(v))),
    "a wrapper of it as the result": (lambda x: TwoTensor(x, x), _of_step),
    "a wrapper of its inner wrapper": (lambda x: TwoTensor(x.a, x.a), lambda v: TwoTensor(_of_step(v), _of_step(v))),
    "repr": (lambda x: (x * 2) * len(f"{x!r}"), lambda v: Printed(torch.ones(3), 3, v)),
    "detach": (lambda x: x.detach(), _of_step),
    "__reduce_ex__": (lambda x: (x * 2) * x.__reduce_ex__.__self__.step, _of_step),
    "set": (_sets, _of_step),
}


@pytest.mark.parametrize("how", _READS)
def test_what_is_read_is_guarded(how: str) -> None:
    function, make = _READS[how]
    region = _twice(function, make, count=2)
    late = make(2)
    result = region(late)
    if isinstance(result, Tagged):
        assert result.step == 2
    if isinstance(result, TwoTensor):
        assert result.a.step == 2


def test_a_value_that_the_class_checks_is_guarded() -> None:
    region = st.compile(lambda x: x * 2)
    for value in (1, 2, 1):
        region(Checked(torch.ones(3), 3, value))
    assert [m.steps for m in region.specializations[1].plan.unread] == [(("item", "scale"),)]


CONDITIONS: dict[str, tuple[Callable[[int], bool], tuple[int, ...]]] = {
    "not zero": (lambda step: step != 0, (1, 2, 0)),
    "divisible": (lambda step: step % 10 != 0, (1, 2, 10, 20, 11)),
    "below a far bound": (lambda step: step < 5000, (1, 4999, 5000)),
    "downwards": (lambda step: step >= 3, (5, 4, 3, 2)),
    "one value": (lambda step: step != 7, (1, 6, 7, 8)),
    "in a set": (lambda step: step not in {70, 80}, (1, 70)),
    "as text": (lambda step: str(step) != "12", (1, 12)),
    "truth": (lambda step: bool(step), (1, 0)),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_attribute_that_follows_one_value_under_a_condition_on_another(name: str) -> None:
    holds, steps = CONDITIONS[name]

    class Conditional(Tagged):
        def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
            super().__init__(a, scale, step)
            self.e = scale if holds(step) else 0

    region = st.compile(lambda x: x.sin() * x.e)
    for step in steps:
        x = Conditional(torch.ones(3), step=step)
        torch.testing.assert_close(region(x), torch.ones(3).sin() * x.e)


def test_a_condition_on_truth_values_together() -> None:
    class Switched(Tagged):
        def __init__(self, a: Tensor, scale: int = 3, step: int = 0) -> None:
            super().__init__(a, scale, step)

        def __tensor_flatten__(self) -> Any:
            return ["a"], {"scale": self.scale, "step": self.step, "p": self.p, "q": self.q}

        @classmethod
        def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
            return _switched(inner["a"], **context)

    def _switched(a: Tensor, scale: int, step: int, p: bool, q: bool) -> Any:
        made: Any = Switched(a, scale, step)
        made.p, made.q = p, q
        made.e = scale if not (p and q and step == 7) else 0
        return made

    region = st.compile(lambda x: x.sin() * x.e)
    for p, q, step in ((False, False, 7), (True, False, 7), (True, True, 6), (True, True, 7)):
        x = _switched(torch.ones(3), 3, step, p, q)
        torch.testing.assert_close(region(x), torch.ones(3).sin() * x.e)


def test_read_in_the_backward_alone() -> None:
    region = st.compile(lambda x, w: Read.apply(x, w) + (x * 2))
    for step in (2, 5, 2):
        w = torch.ones(3, requires_grad=True)
        region(_of_step(step), w).sum().backward()
        assert w.grad is not None and w.grad.tolist() == [step] * 3
    assert len(region.specializations) == 2


class ReadLater(torch.autograd.Function):
    """The backward of the backward reads the context, and nothing before it."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Tensor) -> Tensor:
        ctx.x = x
        ctx.save_for_backward(w)
        return w * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, ReadInBackward.apply(ctx.x, grad, *ctx.saved_tensors)


class ReadInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, grad: Tensor, w: Tensor) -> Tensor:
        ctx.x = x
        ctx.save_for_backward(grad, w)
        return grad * w * 2

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> Any:
        grad, w = ctx.saved_tensors
        return None, second * w * 2, second * grad * ctx.x.step


@pytest.mark.parametrize("generated", [True, False])
def test_read_in_a_backward_that_is_traced_later(generated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specialization serves any step; each double backward uses the step of its own call."""
    if not generated:
        monkeypatch.setattr(codegen._EntryEmitter, "emit", _refuse)
    region = st.compile(lambda x, w: ReadLater.apply(x, w) + (x * 0))

    def second_gradient(step: int) -> list[float]:
        w = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(region(_of_step(step), w).sum(), w, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), w)
        return second.tolist()

    w = torch.ones(3, requires_grad=True)
    region(_of_step(1), w).sum().backward()
    for step in (4, 5, 4):
        assert second_gradient(step) == [float(step)] * 3
    (made,) = region.specializations
    following = [b.next for b in made.program.backwards.compiled if b.next is not None]
    assert [len(b.compiled) for b in following] == [2]  # one for 4, one for 5
    assert (made.entry is None) is not generated


# ---------------------------------------------------------------------------------------------- the class afterwards
def test_the_class_is_left_as_it_was() -> None:
    plain = Tagged.__getattribute__

    def fails(x: Any) -> Any:
        assert Tagged.__getattribute__ is not plain
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        st.compile(fails)(_of_step(1))
    assert Tagged.__getattribute__ is plain and "__getattribute__" not in vars(Tagged)
    assert not noting._rows and not noting._classes


def test_a_region_inside_another() -> None:
    inner = st.compile(lambda x: (x * 3) * x.step)
    _twice(lambda x: inner(x) + 1, _of_step, count=2)
    assert "__getattribute__" not in vars(Tagged)


def test_nested_traces_of_one_class() -> None:
    watched = []
    for _ in range(2):
        x = _of_step(1)
        kept = Copies(((("item", "step"),),), {"step": (("item", "step"),)})
        row = context_reads._Watched(x, flatten(x)[1], 0, (), {"a": x.a}, dict(vars(x)), kept)
        watched.append(row)
    first, second = watched
    with noting.noting([first]):
        with noting.noting([first, second]):
            assert second.wrapper.step == 1 and not first.read and second.read
        with noting.unnoted():
            assert first.wrapper.step == 1 and not first.read
        assert first.wrapper.step == 1 and first.read
    assert "__getattribute__" not in vars(Tagged) and not noting._rows


def test_other_threads_read_their_own_objects() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def f(x: Any) -> Any:
        inside.set()
        assert done.wait(20)
        return x * 2

    def reader() -> None:
        assert inside.wait(20)
        seen.append(_of_step(41).step + 1)
        done.set()

    thread = threading.Thread(target=reader)
    thread.start()
    region = st.compile(f)
    region(_of_step(1))
    thread.join()
    region(_of_step(2))
    assert seen == [42] and len(region.specializations) == 1


def test_classes_with_nothing_to_leave_out_are_not_touched() -> None:
    before = TwoTensor.__getattribute__

    def f(x: Any) -> Any:
        assert TwoTensor.__getattribute__ is before
        return x * 2

    st.compile(f)(TwoTensor(torch.ones(2), torch.ones(2)))


def test_copies_of_a_wrapper_hold_what_was_read() -> None:
    """``copy.copy`` goes through ``__reduce_ex__``, which hands out the whole state."""

    class Copied(Tagged):
        def __reduce_ex__(self, version: Any) -> Any:
            return type(self), (self.a, self.scale, self.step)

    region = st.compile(lambda x: copy.copy(x) * 2)
    for step in (1, 2):
        region(Copied(torch.ones(3), 3, step))
    assert len(region.specializations) == 2


def test_under_torch_compile_dynamo_compares_contexts() -> None:
    """Its guards hold whole contexts, so that a backward that is traced later needs no values of the call."""
    from subclass_trace.frontends.dynamo import subclass_trace as backend

    torch.compiler.reset()
    compiled = torch.compile(lambda x, w: (x * w).sin(), backend=backend)
    for step in (1, 2):
        w = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(compiled(_of_step(step), w).sum(), w, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), w)
        torch.testing.assert_close(second, -torch.ones(3).sin())
    torch.compiler.reset()
