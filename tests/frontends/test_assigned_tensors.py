"""What a region assigns to modules: tensors, None, children; what it deletes; and attributes of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import subclass_trace as st
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor


class Aux(nn.Module):
    """Keeps a loss."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if buffer:
            self.register_buffer("aux", torch.zeros(()), persistent=False)
        else:
            self.aux = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.aux = y.square().mean()
        return y


class Hidden(nn.Module):
    """Reads what it keeps: the steps are one history, as in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.aux = torch.zeros(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.aux = (self.layer(x) + self.aux).tanh()
        return self.aux


MODULES: dict[str, Callable[[], nn.Module]] = {
    "attribute": Aux,
    "buffer": lambda: Aux(buffer=True),
    "weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5),
}


def _twice(make: Callable[[], nn.Module]) -> list[nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make())
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MODULES)
def test_a_value_that_is_overwritten_unread_is_no_part_of_the_backward(name: str) -> None:
    eager, compiled = _twice(MODULES[name])
    for model, call in ((eager, eager), (compiled, st.compile(compiled))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for k in range(3):
            loss = call(torch.ones(2, 4) * (k + 1)).sum() + (model.aux if isinstance(model, Aux) else 0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_value_that_is_read_is_part_of_the_backward() -> None:
    eager, compiled = _twice(Hidden)
    for call in (eager, st.compile(compiled)):
        outs = [call(torch.ones(2, 4) * k) for k in range(3)]
        sum(outs).sum().backward()
    for a, b in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_only_inputs_that_the_results_depend_on_are_differentiated() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y.detach() + y.shape[0]

    x, y = (torch.randn(2, requires_grad=True).mul(1) for _ in range(2))
    assert st.compile(f).specialize(x, y).plan.differentiated == (0,)


# ---------------------------------------------------------------------------------------------- slots of modules
class Slots(nn.Module):
    """Has places for tensors, and does ``act(self, x)``."""

    def __init__(self, act: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("empty", None)
        self.register_buffer("full", torch.zeros(2))
        self.register_parameter("weight", nn.Parameter(torch.ones(2)))
        self.inner = nn.Module()
        self.inner.register_buffer("empty", None)
        self.plain, self.nothing, self.number = torch.zeros(2), None, 1
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, x)


def _first_then(m: Slots, x: Tensor) -> Tensor:
    m.empty = x * 2 if m.empty is None else m.empty + 1
    return x + m.empty


def _in_child(m: Slots, x: Tensor) -> Tensor:
    m.inner.empty = x * 3
    return x + 1


def _taken(m: Slots, x: Tensor) -> Tensor:
    y = x if m.full is None else x + m.full
    m.full = None
    return y * 1


def _taken_plain(m: Slots, x: Tensor) -> Tensor:
    y = x if m.plain is None else x + m.plain + 1
    m.plain = None
    return y * 1


def _swapped(m: Slots, x: Tensor) -> Tensor:
    m.plain, m.nothing = m.nothing, m.plain
    return x * 2


def _registered(m: Slots, x: Tensor) -> Tensor:
    m.register_buffer("kept", x * 2)
    m.register_buffer("private", x * 3, persistent=False)
    return x + 1


def _deleted(m: Slots, x: Tensor) -> Tensor:
    y = x * 1
    for name in ("full", "plain", "number", "inner"):
        if hasattr(m, name):
            delattr(m, name)
            y = y * 2
    return y


def _again(m: Slots, x: Tensor) -> Tensor:
    if "full" in m._buffers:
        del m.full
    m.register_buffer("full", x * 2, persistent=False)
    return m.full + 1


def _child(m: Slots, x: Tensor) -> Tensor:
    if not hasattr(m, "late"):
        m.late = nn.ReLU()
        return x * 2
    return m.late(x)


def _function(m: Slots, x: Tensor) -> Tensor:
    if m.nothing is None:
        m.nothing = torch.sin
        return x * 1
    return m.nothing(x)


def _log(m: Slots, x: Tensor) -> Tensor:
    if m.nothing is None:
        m.nothing = []
    m.nothing.append(2)
    return x * len(m.nothing)


ACTS: list[Callable[[Any, Tensor], Tensor]] = [
    _first_then,
    _in_child,
    _taken,
    _taken_plain,
    _swapped,
    _registered,
    _deleted,
    _again,
    _child,
    _function,
    _log,
]


def _picture(m: nn.Module) -> Any:
    children = {name: (type(child).__name__, [*child.state_dict()]) for name, child in m.named_modules()}
    plain = {k: v for k, v in vars(m).items() if not k.startswith("_") or k == "_non_persistent_buffers_set"}
    return m.state_dict(), dict(m.named_buffers()), children, plain


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_slots_of_modules(act: Callable[[Any, Tensor], Tensor], wrapped: bool) -> None:
    eager, compiled = Slots(act), Slots(act)
    region = st.compile(compiled)
    for k in range(4):
        x = torch.randn(2)
        x = TwoTensor(x, x + 1) if wrapped else x
        if k == 3:  # another start
            for m in (eager, compiled):
                m.register_buffer("empty", None)
                m.nothing = None
        got, expected = region(x), eager(x)
        assert type(got) is type(expected)
        for pick in [lambda t: t.a, lambda t: t.b] if wrapped else [lambda t: t]:
            torch.testing.assert_close(pick(got), pick(expected))
        assert repr(_picture(eager)) == repr(_picture(compiled))


# ---------------------------------------------------------------------------------------------- what is refused
def _parameter(m: Slots, x: Tensor) -> Tensor:
    m.register_parameter("late", nn.Parameter(torch.ones(2)))
    return x * m.late


def _attribute(m: Slots, x: Tensor) -> Tensor:
    m.inner.late = nn.Parameter(x * 2)
    return x


def _layer(m: Slots, x: Tensor) -> Tensor:
    m.late = nn.Linear(2, 2)
    return m.late(x)


@pytest.mark.parametrize(
    ("act", "path"), [(_parameter, "self.late"), (_attribute, "self.inner.late"), (_layer, "self.late")]
)
def test_lazy_parameters_are_refused_by_name(act: Callable[[Any, Tensor], Tensor], path: str) -> None:
    module = Slots(act)
    before = repr(_picture(module))
    with pytest.raises(st.UnsupportedError, match="the region makes a") as caught:
        st.compile(module)(torch.ones(2))
    assert caught.value.path == path and repr(_picture(module)) == before
    module(torch.ones(2))  # once in eager mode, and then it is there


# ---------------------------------------------------------------------------------------------- numbers
class Numbers(nn.Module):
    """Assigns sizes to what nobody reads, and to items."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.seen = 2, 0.0
        self.table, self.row = {"k": 0}, [0, 1]
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.last, self.seen, self.fresh = x.shape[0], 1.5, x.shape[0] * 2
        self.drop.p = 0.0
        return self.drop(x + 1)


def test_numbers_that_nobody_reads_are_assigned_and_not_compared() -> None:
    module = Numbers()
    region = st.compile(module)
    for k in range(2, 8):
        module.seen = float(k)
        torch.testing.assert_close(region(torch.ones(k)), torch.full((k,), 2.0))
        assert (module.last, module.seen, module.fresh) == (k, 1.5, 2 * k) and type(module.last) is int
    assert len(region.specializations) == 2
    module.drop.p = 1.0  # torch reads this one
    assert region(torch.ones(2)).tolist() == [2, 2] and module.drop.p == 0


def test_items_of_dicts_and_lists_of_numbers() -> None:
    def act(m: Any, x: Tensor) -> Tensor:
        m.table["k"] = m.row[0] = x.shape[0]
        m.row.append(x.shape[0])
        return x + len(m.row)

    eager, compiled = Numbers(), Numbers()
    region = st.compile(act)
    for k in (2, 3, 4):
        torch.testing.assert_close(region(compiled, torch.ones(k)), act(eager, torch.ones(k)))
        assert (eager.table, eager.row) == (compiled.table, compiled.row)
        assert all(type(n) is int for n in (*compiled.row, *compiled.table.values()))


def test_a_module_among_the_arguments() -> None:
    eager, compiled = Numbers(), Numbers()
    region = st.compile(lambda m, x: m(x))
    for k in (2, 3, 4):
        torch.testing.assert_close(region(compiled, torch.ones(k)), eager(torch.ones(k)))
        assert (eager.last, eager.fresh) == (compiled.last, compiled.fresh) and type(compiled.last) is int
    with pytest.raises(st.UnsupportedError, match="escapes"):
        st.compile(lambda m, x: m.row.append(x * 2))(compiled, torch.ones(2))
    assert compiled.row == [0, 1]


def test_deleted_items_keep_the_order_of_the_others() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = {"a": 1, "b": 2, "c": 3}

        def forward(self, x: Tensor) -> Tensor:
            if "a" in self.rows:
                return x * self.rows.pop("a")
            return x * 7

    module = Table()
    region, x = st.compile(module), torch.ones(2)
    module.rows = {"a": 5, "b": 2, "c": 3}
    assert region.specialize(x) is not None and [*module.rows] == ["a", "b", "c"]
    assert [region(x)[0].item() for _ in range(3)] == [5, 7, 7] and [*module.rows] == ["b", "c"]
