"""Sizes and numbers that Python code takes for ordinary ones: text, keys, hashes, ``isinstance``, methods of ``int``."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import decimal
import fractions
import functools
import json
import numbers
import pickle
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.zoo import TwoTensor

Tensor = torch.Tensor
TABLE = {"4": 10.0, "5": 20.0, "6": 30.0}


@functools.lru_cache
def cached(n: int) -> int:
    return n * 2


def pair(n: Any) -> tuple[int, int]:
    return (n, n) if isinstance(n, int) else (1, 1)


def by_type(n: Any) -> int:
    """What ``type`` is otherwise used for works as ever."""

    class Meta(type):
        pass

    made = Meta("Made", (), {})
    assert type(made) is Meta and isinstance(made, Meta) and not isinstance(int, Meta)
    assert isinstance(int, type) and isinstance(Meta, type) and issubclass(Meta, type) and not isinstance(n, type)
    assert type(int) is type and type("Plain", (), {}).__name__ == "Plain" and type(made()).__name__ == "Made"
    return 2 if type(n) is int else 3


class ByName(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for n in (4, 5, 6):
            setattr(self, f"w{n}", torch.nn.Parameter(torch.full((1,), float(n))))

    def forward(self, x: Tensor) -> Tensor:
        return x * getattr(self, f"w{x.shape[0]}", 7.0)


def matched(x: Tensor) -> Tensor:
    match x.shape[0]:
        case int() as n:
            return x * n
    return x


def caught(x: Tensor) -> Tensor:
    try:
        return x * {4: 2.0, 5: 3.0, 6: 4.0}[x.shape[0]]
    except Exception:
        return x


#: these make the size a number
FIXED: dict[str, Callable[[Tensor], Any]] = {
    "f-string": lambda x: (x * 2, f"{x.shape[0]}"),
    "format": lambda x: f"{x.shape[0]:03d} {x.shape[0] / 2:.2f}",
    "str": lambda x: x * TABLE.get(str(x.size(0)), 0.0),
    "repr of sizes": lambda x: repr(x.shape),
    "percent": lambda x: "%d %s %r" % (x.shape[0], x.shape[0], x.shape),  # noqa: UP031
    "key": lambda x: x * {4: 10.0, 5: 20.0, 6: 30.0}[x.shape[0]],
    "key of a result": lambda x: {x.shape[0]: x * 2},
    "member": lambda x: x * (1 if x.shape[0] in {4, 6} else 2),
    "frozenset": lambda x: sorted(frozenset([x.shape[0], 5])),
    "hash": lambda x: hash(x.shape[0]) == hash(4),
    "hash of sizes": lambda x: {x.shape: 1, torch.Size([5]): 2}[torch.Size([x.shape[0]])],
    "json": lambda x: json.dumps({"n": x.shape[0]}),
    "json with lines": lambda x: json.dumps({"n": [x.shape[0]]}, indent=1),
    "Fraction": lambda x: str(fractions.Fraction(x.shape[0], 2)),
    "Decimal": lambda x: str(decimal.Decimal(x.shape[0])),
    "to_bytes": lambda x: x.shape[0].to_bytes(2, "big"),
    "numerator": lambda x: (x.shape[0].numerator, x.shape[0].real),
    "numpy": lambda x: torch.from_numpy(np.arange(x.shape[0])) + x,
    "cached": lambda x: cached(x.shape[0]) * x,
    "pickle": lambda x: pickle.loads(pickle.dumps(x.shape[0])),
    "caught": caught,
    "of a half": lambda x: {2.0: "a", 2.5: "b"}.get(x.shape[0] / 2, "c"),
}
#: these leave it a symbol
FREE: dict[str, Callable[[Tensor], Any]] = {
    "isinstance": lambda x: x * pair(x.shape[0])[0],
    "copy": lambda x: copy.deepcopy({"n": x.shape[0]})["n"],
    "isinstance of a number": lambda x: x * (2 if isinstance(x.shape[0], numbers.Integral) else 3),
    "isinstance of a half": lambda x: x * (2 if isinstance(x.shape[0] / 2, float) else 3),
    "isinstance of a flag": lambda x: x * (2 if isinstance(x.shape[0] > 3, bool) else 3),
    "not isinstance": lambda x: x * (2 if isinstance(x.shape[0], (float, str)) else 3),
    "class": lambda x: x.shape[0].__class__.__name__,
    "type": lambda x: x * by_type(x.shape[0]),
    "name of a type": lambda x: (type(x.shape[0]).__name__, type(x.shape[0] / 2).__name__),
    "table of types": lambda x: {int: 2, float: 3}[type(x.shape[0])],
    "match": matched,
    "divmod": lambda x: (*divmod(x.shape[0], 2), *divmod(9, x.shape[0])),
    "text of a comparison": lambda x: (x * 2, str(x.shape[0] > 3)),
}
KINDS: dict[str, Callable[[int], Tensor]] = {
    "dense": lambda n: torch.ones(n),
    "two": lambda n: TwoTensor(torch.ones(n), torch.full((n,), 3.0)),
}


def same(mine: Any, theirs: Any) -> bool:
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, TwoTensor):
        return same(mine.a, theirs.a) and same(mine.b, theirs.b)
    if isinstance(mine, Tensor):
        return torch.equal(mine, theirs) and mine.dtype == theirs.dtype
    if isinstance(mine, dict):
        return same(list(mine.items()), list(theirs.items()))
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs)


# the first call of "auto" is static
@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=["auto", "dynamic"])
@pytest.mark.parametrize("name", [*FIXED, *FREE])
def test_as_in_eager(name: str, options: dict[str, Any]) -> None:
    f = (FIXED | FREE)[name]
    compiled = st.compile(f, **options)
    with verify.enabled():
        for n in (4, 5, 6, 4):
            x = torch.arange(float(n))
            assert same(compiled(x), f(x)), n
    if "dynamic" in options:
        assert len(compiled.specializations) == (3 if name in FIXED else 1)


@dataclasses.dataclass(frozen=True)
class Size:
    n: int


def test_of_a_hash_and_a_text_of_the_users() -> None:
    f = lambda x: (x * {Size(4): 2, Size(5): 3}.get(Size(x.shape[0]), 4), repr(Size(x.shape[0])))
    compiled = st.compile(f, dynamic=True)
    for n in (4, 5, 6):
        assert same(compiled(torch.ones(n)), f(torch.ones(n)))


class WithSize(TwoTensor):
    """Keeps a record with its size in its context."""

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], Size(self.a.shape[0])

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["b"])


def test_a_hash_that_nobody_but_the_package_asks_for() -> None:
    compiled = st.compile(lambda x: x * 2, dynamic=True)
    for n in (4, 5, 6):
        x = WithSize(torch.ones(n), torch.ones(n))
        assert torch.equal(compiled(x).a, torch.full((n,), 2.0))
    assert len(compiled.specializations) == 1, compiled.explain()


@pytest.mark.parametrize("name", ["str", "key", "isinstance", "match"])
def test_of_a_wrapper(name: str) -> None:
    f = (FIXED | FREE)[name]
    compiled = st.compile(f)
    for n in (4, 5, 6, 5):
        x = KINDS["two"](n)
        assert same(compiled(x), f(x)), n


def test_of_a_module() -> None:
    module = ByName()
    compiled = st.compile(module, dynamic=True)
    for n in (4, 5, 6, 7):
        assert torch.equal(compiled(torch.ones(n)), module(torch.ones(n)))


def test_explained() -> None:
    compiled = st.compile(FIXED["str"], dynamic=True)
    compiled(torch.ones(4))
    text = compiled.explain()
    assert "args[0].size(0) = 4: " in text and "test_python_numbers.py" in text


def test_other_sizes_stay_symbols() -> None:
    compiled = st.compile(lambda x, y: (x * TABLE[str(x.shape[0])], y * 2), dynamic=True)
    for n in (7, 8, 9):
        compiled(torch.ones(4), torch.ones(n))
    assert len(compiled.specializations) == 1


#: what no number from inside a tensor can answer
REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "str": lambda x: str(x.sum().item()),
    "format": lambda x: f"{x.sum().item():.1f}",
    "text of a tensor": lambda x: f"{x.sum()}",
    "repr of a tensor": lambda x: repr(x),
    "text in a list": lambda x: str([x]),
    "key": lambda x: {3.0: "a"}.get(x.sum().item(), "b"),
    "key of a result": lambda x: {x.long().sum().item(): x},
    "frozenset": lambda x: frozenset([x.long().sum().item()]),
    "numpy": lambda x: np.arange(x.long().sum().item()),
    "to_bytes": lambda x: x.long().sum().item().to_bytes(2, "big"),
}


OF_WRAPPERS = ("text of a tensor", "repr of a tensor", "text in a list")  # inner tensors have numbers of their own


@pytest.mark.parametrize(("name", "kind"), [*((n, "dense") for n in REFUSED), *((n, "two") for n in OF_WRAPPERS)])
def test_a_number_that_depends_on_values(name: str, kind: str) -> None:
    with pytest.raises(st.DataDependentError) as caught:
        st.compile(REFUSED[name])(KINDS[kind](3))
    assert "test_python_numbers.py" in str(caught.value.path) and caught.value.fix


def test_the_class_of_a_number_that_depends_on_values() -> None:
    def f(x: Tensor) -> Tensor:
        whole, half = x.long().sum().item(), x.sum().item()
        assert type(whole) is int and type(half) is float
        scale = 2 if isinstance(whole, int) and isinstance(half, float) and not isinstance(half, int) else 3
        return x * scale * divmod(half, 2)[0]

    compiled = st.compile(f)
    for v in (3.0, 5.5):
        assert torch.equal(compiled(torch.full((2,), v)), f(torch.full((2,), v)))
    assert len(compiled.specializations) == 1


def test_the_text_of_a_known_value() -> None:
    f = lambda x: (x * 2, f"{torch.tensor(3.0)} {torch.tensor(2.5):.1f}", repr(torch.ones(2)))
    assert same(st.compile(f)(torch.ones(2)), f(torch.ones(2)))


def test_everything_is_put_back() -> None:
    before = {cls: dict(vars(cls)) for cls in (torch.SymInt, torch.SymFloat, torch.SymBool)}
    plain = builtins.print
    st.compile(FIXED["str"], dynamic=True)(torch.ones(4))
    with pytest.raises(st.DataDependentError):
        st.compile(REFUSED["str"])(torch.ones(4))
    st.compile(FREE["type"], dynamic=True)(torch.ones(4))
    assert {cls: dict(vars(cls)) for cls in before} == before and builtins.print is plain and "type" not in globals()


def test_a_library_that_does_without_a_hash() -> None:
    """einops looks whether sizes can be hashed, and has another way for those that cannot."""
    library = types.ModuleType("einops.einops")
    source = "def flat(x):\n    try:\n        hash(x.shape[0])\n    except TypeError:\n        return x.reshape(-1)\n    return x"
    exec(compile(source, "/lib/site-packages/einops/einops.py", "exec"), vars(library))
    compiled = st.compile(lambda x: library.flat(x) * 2, dynamic=True)
    for n in (4, 5, 6):
        compiled(torch.ones(n, 2))
    assert len(compiled.specializations) == 1


def test_a_type_error_of_the_users_own() -> None:
    def f(x: Tensor) -> Tensor:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        st.compile(f, dynamic=True)(torch.ones(4))


NAMED = TwoTensor(torch.ones(2), torch.zeros(2))


@pytest.mark.parametrize("f", [lambda x: f"{NAMED}", lambda x: f"{NAMED.a}"], ids=["wrapper", "inner"])
def test_the_text_of_a_tensor_that_is_closed_over(f: Callable[[Tensor], str]) -> None:
    with pytest.raises(st.DataDependentError):
        st.compile(f)(torch.ones(2))


class ByTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.n = x.shape[0]
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * TABLE[f"{g.shape[0]}"] * {4: 2.0, 5: 3.0}.get(ctx.n, 4.0)


class ByClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * pair(g.shape[0])[0]


@pytest.mark.parametrize(("function", "specializations"), [(ByTable, 3), (ByClass, 1)])
def test_asked_in_a_backward(function: Any, specializations: int) -> None:
    f = lambda x: function.apply(x).sin()
    compiled = st.compile(f, dynamic=True)
    for n in (4, 5, 6, 4):
        grads = []
        for g in (f, compiled):
            x = torch.arange(float(n), requires_grad=True)
            g(x).sum().backward()
            grads.append(x.grad)
        assert torch.allclose(*grads)
    assert len(compiled.specializations) == specializations


class Scaling(TwoTensor):
    """Its code asks for the number that a size is."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        n = args[0].a.shape[0]
        assert isinstance(n, int)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        return out * TABLE[f"{n}"] if func is torch.ops.aten.sin.default else out


def test_asked_by_a_wrapper_class() -> None:
    compiled = st.compile(lambda x: x.sin(), dynamic=True)
    for n in (4, 5, 6):
        x = Scaling(torch.ones(n), torch.zeros(n))
        assert torch.equal(compiled(x).a, x.sin().a)


class WithText(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * len(f"{g}")


def test_a_text_in_a_backward() -> None:
    """Its text is that of the real gradient: the code is called as the backward runs."""
    found = []
    for compile in (lambda f: f, st.compile):
        x = torch.ones(2, requires_grad=True)
        compile(lambda x: WithText.apply(x).sin())(x).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_an_operation_that_fake_tensors_run_only_with_numbers_has_a_specialization_for_each_size() -> None:
    for dynamic in (False, True):
        region = st.compile(lambda x: torch.histogram(x, 4)[0], dynamic=dynamic)
        for n in (5, 6, 7):
            x = torch.linspace(0, 1, n)
            assert region(x).equal(torch.histogram(x, 4)[0])


def test_an_operator_of_the_users_without_a_fake_kernel_is_refused_by_name() -> None:
    @torch.library.custom_op("subclass_trace_tests::no_fake_kernel", mutates_args=())
    def no_fake_kernel(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(st.UnsupportedError, match="no kernel for fake tensors: .*no_fake_kernel") as refusal:
        st.compile(lambda x: no_fake_kernel(x))(torch.ones(2))
    assert "register_fake" in (refusal.value.fix or "") and __file__ in (refusal.value.path or "")
