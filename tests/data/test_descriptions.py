"""What a description refuses: other calls, other state, broken and foreign data; nothing of it is run."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st_
from regions import Layers
from torch import nn

import subclass_trace as st
from subclass_trace.data.describe import VERSION
from subclass_trace.data.objects import find, fingerprint, name_of
from subclass_trace.data.vocabulary import Reader, Writer
from subclass_trace.errors import DescriptionError, Unlike
from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor

FACTOR = 2.0
CALLED: list[str] = []


def shout() -> float:
    """Nobody shall call it."""
    CALLED.append("shout")
    return 1.0


class Pair(nn.Module):
    """Two layers, of which a test ties the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.heads = {"n": 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) * FACTOR * self.heads["n"]


def described(function: Any, *args: Any) -> Any:
    """The data of a specialization, through JSON."""
    region = st.compile(function, frontend="trace")
    region(*args)
    found = region.specializations[0].describe(*args)
    assert not found.gaps, found.gaps
    return json.loads(json.dumps(found.data))


def tied(module: Pair) -> None:
    module.b.weight = module.a.weight


def hooked(module: Pair) -> None:
    module.a.register_forward_hook(lambda *_: None)


def frozen(module: Pair) -> None:
    module.a.weight.requires_grad_(False)


def wrapped(module: Pair) -> None:
    w = module.a.weight.detach()
    module.a.weight = nn.Parameter(TwoTensor(w, w))


def other_forward(module: Pair) -> None:
    module.forward = lambda x: x  # type: ignore[method-assign]


def other_layer(module: Pair) -> None:
    module.a = nn.Identity()  # type: ignore[assignment]


def other_number(module: Pair) -> None:
    module.heads["n"] = 3


def trains_no_more(module: Pair) -> None:
    module.a.weight.data = module.a.weight.data.double()


CHANGES: list[Callable[[Pair], None]] = [
    *(tied, hooked, frozen, wrapped, other_forward, other_layer, other_number, trains_no_more)
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_another_module_is_told_apart(change: Callable[[Pair], None]) -> None:
    data, x = described(Pair(), torch.ones(2, 3)), torch.ones(2, 3)
    same, other = Pair(), Pair()
    change(other)
    st.compile(same, frontend="trace").bind(data, x)
    with pytest.raises(Unlike):
        st.compile(other, frontend="trace").bind(data, x)


@pytest.mark.parametrize("hooks", [0, 1, 2, 3])
def test_hooks_of_other_ids(hooks: int) -> None:
    """They are keys that differ in each process; how many there are, what they do and what they are given is compared."""

    def doubled(_: Any, args: Any) -> Any:
        return tuple(a * 2 for a in args)

    def with_names(_: Any, args: Any, names: Any) -> Any:
        return tuple(a + 1 for a in args), names

    def made(count: int) -> Pair:
        module = Pair()
        module.load_state_dict(weights)
        if count > 0:
            module.a.register_forward_pre_hook(doubled)
        if count > 1:
            module.a.register_forward_pre_hook(with_names, with_kwargs=True)
        if count > 2:
            module.a.register_forward_hook(lambda _, args, out: out * 3)
        return module

    x, weights = torch.ones(2, 3), Pair().state_dict()
    data, later = described(made(2), x), made(hooks)
    region = st.compile(later, frontend="trace")
    if hooks == 2:
        region.bind(data, x)
    else:
        with pytest.raises(Unlike):
            region.bind(data, x)
    assert torch.equal(region(x), later(x))


def test_two_that_were_one_are_told_apart() -> None:
    module, x = Pair(), torch.ones(2, 3)
    tied(module)
    data = described(module, x)
    with pytest.raises(Unlike):
        st.compile(Pair(), frontend="trace").bind(data, x)


CALLS: dict[str, Callable[[], torch.Tensor]] = {
    "another size": lambda: torch.ones(3, 3),
    "another stride": lambda: torch.ones(3, 2).t(),
    "another dtype": lambda: torch.ones(2, 3).double(),
    "one that requires grad": lambda: torch.ones(2, 3, requires_grad=True),
    "a wrapper": lambda: TwoTensor(torch.ones(2, 3), torch.ones(2, 3)),
    "no tensor": lambda: 3,  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("call", CALLS)
def test_another_call_is_told_apart(call: str) -> None:
    data = described(Pair(), torch.ones(2, 3))
    with pytest.raises(Unlike):
        st.compile(Pair(), frontend="trace").bind(data, CALLS[call]())


def test_an_inference_tensor_is_told_apart() -> None:
    data = described(lambda x: x * 2, torch.ones(3))
    with torch.inference_mode():
        x = torch.ones(3)
    with pytest.raises(Unlike):
        st.compile(lambda x: x * 2, frontend="trace").bind(data, x)


@pytest.mark.parametrize("around", [torch.no_grad, lambda: torch.autocast("cpu")])
def test_another_mode_is_told_apart(around: Callable[[], Any]) -> None:
    data = described(Pair(), torch.ones(2, 3))
    with around(), pytest.raises(Unlike, match="thread"):
        st.compile(Pair(), frontend="trace").bind(data, torch.ones(2, 3))


OPTIONS: list[dict[str, Any]] = [
    {"backend": lambda graph, inputs: graph.forward},
    {"partitioner": "default"},
    {"dynamic": True},
    {"decompositions": {torch.ops.aten.mul.Tensor: torch.add}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: next(iter(o)))
def test_other_options_are_told_apart(options: dict[str, Any]) -> None:
    data = described(Pair(), torch.ones(2, 3))
    with pytest.raises(Unlike, match="options"):
        st.compile(Pair(), frontend="trace", **options).bind(data, torch.ones(2, 3))


def test_one_with_gaps_names_them() -> None:
    generator = torch.Generator()
    region = st.compile(lambda x: x + torch.rand(3, generator=generator), frontend="trace")
    region(torch.ones(3))
    found = region.specializations[0].describe(torch.ones(3))
    assert found.gaps and "is not portable" in region.explain()
    with pytest.raises(DescriptionError) as caught:
        region.bind(found.data, torch.ones(3))
    assert caught.value.path == "gaps" and "Generator" in str(caught.value.got)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_modules_of_one_class_with_weights_of_other_kinds(first: int, second: int) -> None:
    """None is taken apart as another one is."""
    kinds: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.clone,
        lambda w: TwoTensor(w.clone(), w * 2),
        lambda w: TwoTensor(TwoTensor(w.clone(), w * 2), TwoTensor(w.clone(), w * 2)),
    ]

    def made(kind: int) -> nn.Linear:
        layer = nn.Linear(3, 3)
        layer.weight = nn.Parameter(kinds[kind](layer.weight.detach()))
        return layer

    x, one, two = torch.ones(2, 3), made(first), made(second)
    for layer in (one, two):
        want, got = layer(x), st.compile(layer, frontend="trace")(x)
        assert type(want) is type(got) and [*map(torch.equal, leaves_of(want), leaves_of(got))].count(False) == 0


def test_what_is_bound_sees_later_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It pins only what was compared."""
    module, x = Pair(), torch.ones(2, 3)
    data = described(Pair(), x)
    region = st.compile(module, frontend="trace")
    region.bind(data, x)
    assert torch.equal(region(x), module(x))
    module.heads["n"] = 5
    assert torch.equal(region(x), module(x))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert torch.equal(region(x), module(x))
    module.a.weight = nn.Parameter(torch.zeros(3, 3))
    assert torch.equal(region(x), module(x))


def test_other_tangents_are_traced_when_they_come() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.sin(), x.cos()

    def grad(function: Any, *outputs: int) -> torch.Tensor:
        x = torch.linspace(0, 1, 30).requires_grad_()
        out = function(x * 1)
        return torch.autograd.grad(sum(out[k].pow(2).sum() for k in outputs), x)[0]

    region = st.compile(f, frontend="trace")
    data = described(f, torch.linspace(0, 1, 30).requires_grad_() * 1)
    region.bind(data, torch.linspace(0, 1, 30).requires_grad_() * 1)
    for outputs in ((0, 1), (0,), (1,)):
        torch.testing.assert_close(grad(region, *outputs), grad(f, *outputs))
    assert len(region.specializations) == 1


# ---------------------------------------------------------------------------------------------- broken and foreign
def test_what_it_is_not() -> None:
    for data in (None, [], {}, {"versions": [1]}, "text"):
        with pytest.raises(DescriptionError):
            st.compile(Pair()).bind(data, torch.ones(2, 3))


def test_another_version_names_the_field() -> None:
    data = described(Pair(), torch.ones(2, 3))
    data["versions"][0] = "1.0"
    with pytest.raises(DescriptionError) as caught:
        st.compile(Pair()).bind(data, torch.ones(2, 3))
    assert caught.value.path == "versions" and str(VERSION) in str(caught.value.expected)


@given(st_.data())
def test_broken_data_is_a_typed_error(drawn: st_.DataObject) -> None:
    """Any part of a description, replaced by something else: it is refused, or serves as before."""
    whole = copy.deepcopy(_WHOLE)
    at, ways = whole, 0
    while isinstance(at, (dict, list)) and at and ways < 12:
        key = drawn.draw(st_.sampled_from([*at] if isinstance(at, dict) else [*range(len(at))]))
        inside = at[key]
        ways += 1
        if not isinstance(inside, (dict, list)) or not inside or drawn.draw(st_.integers(0, 3)) == 0:
            at[key] = drawn.draw(
                st_.sampled_from([None, 0, -1, 10**6, "x", [], {}, ["at", 0], ["named", "class", "os", "x"]])
            )
            break
        at = inside
    module, x = Pair(), torch.ones(2, 3)
    region = st.compile(module, frontend="trace")
    try:
        region.bind(whole, x)
    except (DescriptionError, Unlike, st.SubclassTraceError):
        return
    try:
        region.specializations[0].run((x,), {})
    except Exception:  # a graph that is another one may be wrong; it cannot be told, and runs torch's operations alone
        return


_WHOLE: Any = described(Pair(), torch.ones(2, 3))


@pytest.mark.parametrize("called", ["shout", "print", "exec"])
def test_a_guard_calls_nothing_that_may_do_something(called: str) -> None:
    data = described(Pair(), torch.ones(2, 3))
    name = ["named", "function", __name__, called] if called == "shout" else ["named", "attribute", "builtins", called]
    data["places"] += [[None, "const", name], [len(data["places"]), "call", ["tuple"]]]
    data["guards"]["rows"].append(["value", len(data["places"]) - 1, ["float", (1.0).hex()]])
    with pytest.raises(DescriptionError):
        st.compile(Pair()).bind(data, torch.ones(2, 3))
    assert not CALLED


@pytest.mark.parametrize(
    "target", [["python", "system"], ["function", __name__, "shout"], ["attribute", "builtins", "exec"]]
)
def test_a_graph_calls_operations_alone(target: Any) -> None:
    data = described(Pair(), torch.ones(2, 3))
    data["forward"]["body"][0][0] = target
    with pytest.raises(DescriptionError):
        st.compile(Pair()).bind(data, torch.ones(2, 3))
    assert not CALLED


def test_a_name_is_no_code() -> None:
    data = described(Pair(), torch.ones(2, 3))
    for entry in data["forward"]["inputs"]:
        entry[0] = "x = __import__('os')"
    region = st.compile(Pair(), frontend="trace")
    try:
        region.bind(data, torch.ones(2, 3))
    except st.SubclassTraceError:
        return
    assert "__import__('os')" not in region.specializations[0].source


# ---------------------------------------------------------------------------------------------- the vocabulary
_ATOMS = st_.one_of(
    *(st_.none(), st_.booleans(), st_.integers(), st_.floats(), st_.text(), st_.binary(), st_.complex_numbers()),
    st_.sampled_from([torch.float32, torch.strided, torch.preserve_format, torch.device("cpu"), ..., slice(1, None)]),
    st_.lists(st_.integers(0, 9)).map(torch.Size),
)
_VALUES = st_.recursive(
    _ATOMS,
    lambda inner: st_.one_of(
        st_.lists(inner, max_size=3),
        st_.lists(inner, max_size=3).map(tuple),
        st_.dictionaries(st_.text(), inner, max_size=3),
    ),
    max_leaves=8,
)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return [*a] == [*b] and all(_same(v, b[k]) for k, v in a.items())
    if isinstance(a, complex):
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b)


@given(_VALUES)
def test_a_value_comes_back(value: Any) -> None:
    assert _same(Reader().value(json.loads(json.dumps(Writer().value(value)))), value)


@pytest.mark.parametrize(
    "thing",
    [
        *(
            torch.add,
            torch.Tensor.add,
            torch.nn.functional.relu,
            torch.ops.aten.add.Tensor,
            torch.ops.aten,
            torch,
            print,
        ),
        *(
            nn.Linear,
            nn.Linear.forward,
            Layers,
            vars(torch.Tensor)["__repr__"],
            torch._foreach_add_,
            torch.is_grad_enabled,
        ),
    ],
    ids=lambda thing: str(getattr(thing, "__name__", thing)),
)
def test_a_thing_is_found_by_its_name(thing: Any) -> None:
    name = name_of(thing)
    assert name is not None and find(json.loads(json.dumps(name))) is thing


def test_a_fingerprint_is_of_what_code_does() -> None:
    def made(text: str) -> str:
        space: dict[str, Any] = {}
        exec(text, space)
        return fingerprint(space["f"].__code__)

    first = made("def f(x):\n    return x + 1")
    assert made("# of one\n\ndef f(x):\n\n    return x + 1  # more") == first
    assert {
        made("def f(x):\n    return x + 1.0"),
        made("def f(y):\n    return y + 1"),
        made("def f(x):\n    return x - 1"),
    }.isdisjoint({first})
