"""The verifier finds what it says: one deliberately broken subject per rule, and nothing in what the package makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.fx as fx

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.capture.capture import Captured
from subclass_trace.capture.session import Session
from subclass_trace.errors import VerificationError
from subclass_trace.frontends.dynamic import SizeHistory
from subclass_trace.frontends.traced_call import traced_call
from subclass_trace.options import Options
from subclass_trace.partition.interface import Partitioned, partition, resolve_partitioner
from subclass_trace.plan import Plan
from subclass_trace.runtime import specialize
from subclass_trace.state.place import Roots
from subclass_trace.zoo import TwoTensor

aten = torch.ops.aten


@dataclass
class Subject:
    """All that the verifier looks at, of one region: to be broken."""

    captured: Captured
    joint: fx.GraphModule
    num_forward: int
    tangents: tuple[str, ...]
    parts: Partitioned
    plan: Plan
    written: tuple[str, ...] = ()

    def verify(self) -> None:
        verify.verify_joint(self.joint, self.num_forward, self.parts.saved)
        verify.verify_partition(self.parts, self.num_forward, self.tangents, self.written)
        verify.verify_plan(self.parts.forward, self.plan)


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "call_function"]


def outputs(module: fx.GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])


def set_outputs(module: fx.GraphModule, values: list[Any]) -> None:
    module.graph.output_node().args = (values,)


def subject(function: Callable[..., Any], *args: Any, **options: Any) -> Subject:
    session = Session(dynamic=options.get("dynamic", False), decompositions={})
    captured, _, _ = traced_call(function, (args, {}), Options(**options), SizeHistory(), session, symbols=True)
    assert captured.tape is not None
    traced = captured.tape.trace(captured.tape.guess())
    num_forward = len(captured.forward.outputs)
    parts = partition(
        replace(traced, joint=specialize.copied_module(traced.joint)),
        partitioner=resolve_partitioner("min_cut", None),
        serve=captured.served(traced.joint),
        written=specialize.written_inputs(captured),
        static=[],
    )
    saved = specialize.saved_table(parts, captured.described)
    inputs = {n.name: n.meta["descriptor"] for n in placeholders(traced.joint)}
    described = traced.joint.meta["descriptors"]
    specialize.describe_halves(parts, saved, inputs, described[:num_forward], described[num_forward:])
    plan = specialize.make_plan(captured, parts.first, saved)
    return Subject(captured, traced.joint, num_forward, traced.tangents, parts, plan)


def two(*size: int) -> TwoTensor:
    return TwoTensor(torch.rand(size), torch.rand(size))


@pytest.fixture
def plain() -> Subject:
    """Two inputs, one of them differentiated; results of several kinds; a written input."""

    def f(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> Any:
        n.add_(1)
        y = (x * w).sin()
        return y, x[1:], n

    return subject(f, two(3), two(3).requires_grad_(), torch.rand(3))


@pytest.fixture
def dynamic() -> Subject:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x * w, x.shape[0]

    return subject(f, two(3), two(3).requires_grad_(), dynamic=True)


# ---------------------------------------------------------------------------------------------- breaking it
def change(s: Subject, part: str, **fields: Any) -> None:
    s.plan = replace(s.plan, **{part: replace(getattr(s.plan, part), **fields)})


def wrap_value(node: fx.Node) -> None:
    node.meta["val"] = two(3)


def wrapper_constant(s: Subject) -> None:
    s.joint.wrapper = two(3)
    with s.joint.graph.inserting_before(calls(s.joint)[0]):
        s.joint.graph.create_node("get_attr", "wrapper")


def in_place(s: Subject) -> None:
    node = next(n for n in calls(s.joint) if n.target is aten.mul.Tensor)
    node.target = aten.mul_.Tensor


def early_tangent(s: Subject) -> None:
    tangent = next(n for n in placeholders(s.joint) if n.target == s.tangents[0])
    set_outputs(s.joint, [tangent, *outputs(s.joint)[1:]])


def save_other_shape(s: Subject) -> None:
    value = outputs(s.parts.forward)[s.num_forward]
    with value.meta["val"].fake_mode:
        value.meta["val"] = torch.empty(7, 7)


def write_saved(s: Subject) -> None:
    node = next(n for n in placeholders(s.parts.forward) if n.name in s.parts.saved)
    s.written = (str(node.target),)


def same_value_twice(s: Subject) -> None:
    first, second, *_ = calls(s.joint)
    second.meta["trace_name"] = first.meta["trace_name"]


def lost_value(s: Subject) -> None:
    next(
        n
        for n in s.joint.graph.nodes
        if n.meta.get("trace_name") in s.joint.meta["served"] and n.meta["trace_name"] in s.parts.saved
    ).meta.pop("trace_name")


def fewer_descriptors(s: Subject) -> None:
    s.parts.backward.meta["descriptors"] = s.parts.backward.meta["descriptors"][1:]


BROKEN: list[tuple[str, Callable[[Subject], Any]]] = [
    # graphs
    ("a node has no value", lambda s: calls(s.joint)[0].meta.pop("val")),
    ("a value in the graph is not dense", lambda s: wrap_value(calls(s.joint)[0])),
    ("a constant is not dense", wrapper_constant),
    ("the graph holds an operation that writes to its arguments", in_place),
    ("an output of the forward needs a tangent", early_tangent),
    ("two nodes are the same value of the trace", same_value_twice),
    ("a value that is saved is not in the graph", lost_value),
    ("an input does not say what it is", lambda s: placeholders(s.joint)[0].meta.pop("descriptor")),
    ("an output does not say what it is", fewer_descriptors),
    # partition
    (
        "an input of the backward is neither saved nor a tangent",
        lambda s: setattr(s, "parts", replace(s.parts, backward_inputs=("nowhere", *s.parts.backward_inputs[1:]))),
    ),
    ("the forward saves something else than the backward takes", save_other_shape),
    ("a saved value lies in a written input", write_saved),
    # graph and plan
    (
        "the graph takes another number of inputs than the plan gives",
        lambda s: change(s, "inputs", primals=s.plan.inputs.primals[:2]),
    ),
    ("the graph returns another number of values", lambda s: change(s, "gradients", saved=s.plan.gradients.saved[:1])),
]


# ---------------------------------------------------------------------------------------------- tests
def test_what_the_package_makes_is_right(plain: Subject, dynamic: Subject) -> None:
    plain.verify()
    dynamic.verify()
    subject(lambda x: x * torch.tensor([1.0, 2.0]), two(2).requires_grad_()).verify()


@pytest.mark.parametrize(("what", "break_it"), BROKEN, ids=[f"{k}-{w[:40]}" for k, (w, _) in enumerate(BROKEN)])
def test_broken(plain: Subject, what: str, break_it: Callable[[Subject], Any]) -> None:
    break_it(plain)
    with pytest.raises(VerificationError) as caught:
        plain.verify()
    assert caught.value.what == what
    assert caught.value.path and caught.value.expected is not None and caught.value.got is not None


def test_guards() -> None:
    class Config:
        shift = 2.0

    class Holder:
        config = Config()

    holder = Holder()
    holder.config = Config()
    holder.config.shift = 1.0
    region = st.compile(lambda x: x + holder.config.shift)
    guards, call = region.specialize(torch.ones(2)).state, Roots((torch.ones(2),), {}, region.__wrapped__)
    verify.verify_guards(guards, call)
    with pytest.raises(VerificationError, match="the place of a guard cannot be read"):
        verify.verify_guards(guards, Roots((), {}, None))


def test_switch() -> None:
    before = verify.ENABLED
    with verify.enabled():
        assert verify.ENABLED
        with verify.enabled(False):
            assert not verify.ENABLED
        assert verify.ENABLED
    assert before == verify.ENABLED
