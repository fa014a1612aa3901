"""The verifier finds what it says: one deliberately broken subject per rule, and nothing in what the package makes."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sympy
import torch
import torch.fx as fx

from subclass_trace import verify
from subclass_trace.capture.capture import Captured
from subclass_trace.errors import VerificationError
from subclass_trace.frontends.dynamic import SizeHistory
from subclass_trace.frontends.specialization import Traced, trace_call
from subclass_trace.options import Options
from subclass_trace.partition.interface import Partitioned, partition, resolve_partitioner
from subclass_trace.plan import (
    BasePrimal,
    InputOutput,
    LeafAlias,
    LeafPrimal,
    Plan,
    SizeOutput,
    ValueAlias,
)
from subclass_trace.runtime import specialize
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
        verify.verify_joint(self.joint, num_forward=self.num_forward, tangents=self.tangents)
        verify.verify_partition(self.parts, num_forward=self.num_forward, tangents=self.tangents, written=self.written)
        verify.verify_plan(self.plan)
        verify.verify_inputs(self.parts.forward, self.plan)
        names = [str(n.target) for n in placeholders(self.parts.backward)]
        verify.verify_backward(self.parts.backward, names, [*self.parts.saved, *self.tangents])


def placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "call_function"]


def outputs(module: fx.GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])


def set_outputs(module: fx.GraphModule, values: list[Any]) -> None:
    module.graph.output_node().args = (values,)


def subject(function: Callable[..., Any], *args: Any, **options: Any) -> Subject:
    def then(found: Traced) -> Traced:
        return found

    call: Traced = trace_call(function, (args, {}), Options(**options), SizeHistory(), {}, symbols=True, then=then)
    captured = call.captured
    assert captured.tape is not None
    traced = captured.tape.trace(captured.tape.guess())
    num_forward = len(captured.forward_nodes)
    parts = partition(
        specialize._copy(traced.joint),
        num_forward=num_forward,
        tangents=traced.tangents,
        partitioner=resolve_partitioner("min_cut", None),
        serve=captured.served(traced.joint),
        written=specialize._written(captured),
        static=[],
    )
    saved = specialize.saved_table(parts, specialize._primal_paths(captured))
    plan = specialize.make_plan(captured, call.flat, parts.first, saved)
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
def change(s: Subject, **fields: Any) -> None:
    s.plan = replace(s.plan, **fields)


def change_input(s: Subject, k: int, **fields: Any) -> None:
    change(s, inputs=(*s.plan.inputs[:k], replace(s.plan.inputs[k], **fields), *s.plan.inputs[k + 1 :]))


def change_output(s: Subject, k: int, output: Any) -> None:
    change(s, outputs=(*s.plan.outputs[:k], output, *s.plan.outputs[k + 1 :]))


INPUT_LEAF = LeafAlias(None, 0, 0, True)


def alias(s: Subject, *leaves: LeafAlias | None) -> ValueAlias:
    return ValueAlias(1, s.plan.values[1], leaves)


def change_mutation(s: Subject, **fields: Any) -> None:
    change(s, mutations=(replace(s.plan.mutations[0], **fields),))


def wrap_value(node: fx.Node) -> None:
    node.meta["val"] = two(3)


def use_before_definition(s: Subject) -> None:
    node = next(n for n in calls(s.joint) if any(u.op == "call_function" for u in n.users))
    calls(s.joint)[-1].append(node)


def nested_outputs(s: Subject) -> None:
    set_outputs(s.joint, [outputs(s.joint)])


def wrapper_constant(s: Subject) -> None:
    s.joint.wrapper = two(3)
    with s.joint.graph.inserting_before(calls(s.joint)[0]):
        s.joint.graph.create_node("get_attr", "wrapper")


def in_place(s: Subject) -> None:
    node = next(n for n in calls(s.joint) if n.target is aten.mul.Tensor)
    node.target = aten.mul_.Tensor


def swapped_primals(s: Subject) -> None:
    first, second, *_ = placeholders(s.joint)
    first.target, second.target = second.target, first.target


def early_tangent(s: Subject) -> None:
    tangent = next(n for n in placeholders(s.joint) if n.target == s.tangents[0])
    set_outputs(s.joint, [tangent, *outputs(s.joint)[1:]])


def drop_saved(s: Subject) -> None:
    set_outputs(s.parts.forward, outputs(s.parts.forward)[:-1])


def rename_saved(s: Subject) -> None:
    first, *rest = s.parts.saved
    inputs = tuple("nowhere" if n == first else n for n in s.parts.backward_inputs)
    s.parts = replace(s.parts, saved=("nowhere", *rest), backward_inputs=inputs)


def save_constant(s: Subject) -> None:
    values = outputs(s.parts.forward)
    set_outputs(s.parts.forward, [*values[: s.num_forward], *["text"] * (len(values) - s.num_forward)])


def save_other_shape(s: Subject) -> None:
    value = outputs(s.parts.forward)[s.num_forward]
    with value.meta["val"].fake_mode:
        value.meta["val"] = torch.empty(7, 7)


def write_saved(s: Subject) -> None:
    node = next(n for n in placeholders(s.parts.forward) if n.name in s.parts.saved)
    s.written = (str(node.target),)


def unused_saved(s: Subject) -> None:
    node = calls(s.parts.forward)[0]
    values = outputs(s.parts.forward)
    set_outputs(s.parts.forward, [*values, node])
    s.parts = replace(s.parts, saved=(*s.parts.saved, node.name))


def save_twice(s: Subject) -> None:
    set_outputs(s.parts.forward, [*outputs(s.parts.forward), outputs(s.parts.forward)[-1]])
    s.parts = replace(s.parts, saved=(*s.parts.saved, s.parts.saved[-1]))


def output_of_other_type(s: Subject) -> None:
    value = outputs(s.parts.forward)[0]
    with value.meta["val"].fake_mode:
        value.meta["val"] = torch.empty(3, dtype=torch.int32)


def input_of_other_rank(s: Subject) -> None:
    node = placeholders(s.parts.forward)[4]  # not saved, so that no earlier rule sees it
    assert node.name not in s.parts.saved
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(3, 3)


def left_over_symbol(s: Subject) -> None:
    spec = replace(s.captured.inputs[0].spec, context=None)
    change_input(s, 0, spec=spec)


VALUE = "a forward value does not exist"
LEAF = "a leaf does not exist"
INPUT = "an input does not exist"
POSITION = "a position does not exist"

BROKEN: list[tuple[str, Callable[[Subject], Any]]] = [
    # graphs
    ("the graph is not sound", use_before_definition),
    ("the graph does not return one flat list", nested_outputs),
    ("a node has no value", lambda s: calls(s.joint)[0].meta.pop("val")),
    ("a value in the graph is not dense", lambda s: wrap_value(calls(s.joint)[0])),
    ("a constant is not dense", wrapper_constant),
    ("the graph holds an operation that writes to its arguments", in_place),
    ("a node is neither forward nor backward", lambda s: calls(s.joint)[0].meta.pop("partitioner_tag")),
    ("a node belongs to no autograd node", lambda s: calls(s.joint)[0].meta.pop("seq_nr")),
    ("a graph input has the wrong name", swapped_primals),
    ("outputs are missing", lambda s: set_outputs(s.joint, [])),
    ("an output of the forward needs a tangent", early_tangent),
    # partition
    ("the forward returns the wrong number of values", drop_saved),
    ("a value is saved twice", save_twice),
    ("an extra value is not saved", lambda s: setattr(s, "parts", replace(s.parts, extra=frozenset({"nowhere"})))),
    ("a saved value is no node of the forward", rename_saved),
    ("a saved value is not dense", save_constant),
    ("not every input of the backward is bound", lambda s: setattr(s, "parts", replace(s.parts, backward_inputs=()))),
    (
        "an input of the backward is neither saved nor a tangent",
        lambda s: setattr(s, "parts", replace(s.parts, backward_inputs=("nowhere", *s.parts.backward_inputs[1:]))),
    ),
    ("a saved value is not used", unused_saved),
    ("the forward saves something else than the backward takes", save_other_shape),
    ("a saved value lies in a written input", write_saved),
    # the plan
    ("an input's leaves do not fit its spec", lambda s: change_input(s, 0, leaves=(0,))),
    (LEAF, lambda s: change_input(s, 0, leaves=(0, 99))),
    (POSITION, lambda s: change_input(s, 0, position=99)),
    ("a place in the leaf table is never filled", lambda s: change(s, leaf_count=9)),
    (INPUT, lambda s: change(s, positions=(99, *s.plan.positions[1:]))),
    ("a position belongs to another input", lambda s: change(s, positions=(1, 0, 2))),
    ("a leaf is two graph inputs", lambda s: change(s, primals=(LeafPrimal(0), *s.plan.primals))),
    (LEAF, lambda s: change(s, primals=(BasePrimal((0, 99), 3, torch.float32),))),
    ("a forward output does not exist", lambda s: change(s, detach_values=frozenset({99}))),
    (INPUT, lambda s: change_mutation(s, input=99)),
    ("a leaf of the input does not exist", lambda s: change_mutation(s, leaves=(5,))),
    ("a mutation has no new contents", lambda s: change_mutation(s, value=None)),
    (VALUE, lambda s: change_mutation(s, value=99)),
    ("new contents do not fit the input", lambda s: change_mutation(s, input=0)),
    ("an input is changed by two rows", lambda s: change(s, mutations=s.plan.mutations * 2)),
    ("an output that a recipe needs does not exist", lambda s: change(s, outputs=s.plan.outputs[:1])),
    ("a symbolic number does not exist", lambda s: change_output(s, 0, SizeOutput(0))),
    (POSITION, lambda s: change_output(s, 0, InputOutput(99))),
    ("the base of a view does not exist", lambda s: change_output(s, 1, replace(s.plan.outputs[1], base=99))),
    (VALUE, lambda s: change_output(s, 0, replace(s.plan.outputs[0], value=99))),
    ("the result does not fit its value", lambda s: change_output(s, 0, replace(s.plan.outputs[0], value=0))),
    ("aliases do not fit the value", lambda s: change(s, aliases=(alias(s, INPUT_LEAF),))),
    (LEAF, lambda s: change(s, aliases=(alias(s, replace(INPUT_LEAF, leaf=99), None),))),
    (LEAF, lambda s: change(s, aliases=(alias(s, replace(INPUT_LEAF, value=0, leaf=9), None),))),
    (VALUE, lambda s: change(s, aliases=(alias(s, replace(INPUT_LEAF, value=99), None),))),
    (VALUE, lambda s: change(s, aliases=(replace(alias(s, None, None), value=99),))),
    (INPUT, lambda s: change(s, aliases=(replace(alias(s, None, None), holder=(99, ())),))),
    (VALUE, lambda s: change(s, differentiable=(99,))),
    (INPUT, lambda s: change(s, differentiated=(99,))),
    ("an input gets a gradient unasked", lambda s: change(s, differentiated=(0,))),
    (INPUT, lambda s: change(s, watched_inputs=(99,))),
    (VALUE, lambda s: change(s, watched_values=(99,))),
    ("a value is saved twice", lambda s: change(s, saved=s.plan.saved[:1] * 2)),
    ("values are saved without a backward", lambda s: change(s, differentiable=())),
    # graph and plan
    ("the graph takes another number of inputs than the plan gives", lambda s: change(s, primals=s.plan.primals[:2])),
    ("a graph input differs from its leaf", input_of_other_rank),
    ("the graph returns another number of values", lambda s: change(s, saved=s.plan.saved[:1])),
    ("an output differs from the plan's value", output_of_other_type),
]

S0 = sympy.Symbol("nowhere")

BROKEN_SIZES: list[tuple[str, Callable[[Subject], Any]]] = [
    (
        "a position does not exist",
        lambda s: change(s, symbols=(replace(s.plan.symbols[0], kind="argument", leaf=None, dim=99),)),
    ),
    ("a symbol has no single source", lambda s: change(s, symbols=(replace(s.plan.symbols[0], leaf=None),))),
    (LEAF, lambda s: change(s, symbols=(replace(s.plan.symbols[0], leaf=99),))),
    (INPUT, lambda s: change(s, symbols=(replace(s.plan.symbols[0], leaf=None, input=99),))),
    ("a dimension does not exist", lambda s: change(s, symbols=(replace(s.plan.symbols[0], dim=5),))),
    ("a symbol is bound twice", lambda s: change(s, symbols=s.plan.symbols * 2)),
    ("a size of the trace is left", left_over_symbol),
    ("a size uses a symbol that no call binds", lambda s: change(s, symbols=())),
    ("a condition uses a symbol that no call binds", lambda s: change(s, conditions=(S0 >= 2,))),
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


@pytest.mark.parametrize(("what", "break_it"), BROKEN_SIZES, ids=[w[:40] for w, _ in BROKEN_SIZES])
def test_broken_sizes(dynamic: Subject, what: str, break_it: Callable[[Subject], Any]) -> None:
    break_it(dynamic)
    with pytest.raises(VerificationError) as caught:
        dynamic.verify()
    assert caught.value.what == what


def test_backward_that_was_traced_later(plain: Subject) -> None:
    backward = plain.parts.backward
    names = [str(n.target) for n in placeholders(backward)]
    with pytest.raises(VerificationError, match="the inputs of the backward differ"):
        verify.verify_backward(backward, names[1:], names)
    with pytest.raises(VerificationError, match="the backward takes what is not saved"):
        verify.verify_backward(backward, names, names[1:])


def test_forward_alone(plain: Subject) -> None:
    verify.verify_forward(plain.parts.forward)
    with pytest.raises(VerificationError, match="a graph input has the wrong name"):
        verify.verify_forward(plain.joint)


@pytest.mark.parametrize("late", [False, True])
def test_write_back_inside_the_graph(plain: Subject, late: bool) -> None:
    forward = plain.parts.forward
    with forward.graph.inserting_before(forward.graph.output_node()):
        copy = forward.graph.call_function(aten.copy_.default, (placeholders(forward)[4], calls(forward)[0]))
        if late:  # something runs after it
            forward.graph.node_copy(calls(forward)[1])
    copy.meta.update(calls(forward)[0].meta)
    if not late:
        verify.verify_forward(forward, write_back=True)
    with pytest.raises(VerificationError, match="the graph holds an operation that writes to its arguments"):
        verify.verify_forward(forward, write_back=late)


def test_every_rule_is_broken_by_a_test() -> None:
    """Each message of the verifier stands in this file."""
    messages = set()
    sources = [path.read_text() for path in pathlib.Path(verify.__file__).parent.glob("*.py")]
    for node in (n for source in sources for n in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("require", "VerificationError"):
                text = node.args[{"require": 1, "VerificationError": 0}[node.func.id]]
                if isinstance(text, ast.Constant):
                    messages.add(text.value)
    with open(__file__, encoding="utf-8") as file:
        tested = file.read()
    assert len(messages) > 30
    assert [m for m in sorted(messages) if m not in tested] == []


def test_the_message_says_where(plain: Subject) -> None:
    change_input(plain, 0, leaves=(0,))
    with pytest.raises(VerificationError) as caught:
        plain.verify()
    assert str(caught.value) == (
        "an input's leaves do not fit its spec\n  where:    inputs[0] args[0]\n  expected: 2 places\n  got:      (0,)"
    )


def test_switch() -> None:
    before = verify.ENABLED
    with verify.enabled():
        assert verify.ENABLED
        with verify.enabled(False):
            assert not verify.ENABLED
        assert verify.ENABLED
    assert before == verify.ENABLED
