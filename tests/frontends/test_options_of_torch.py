"""The options and the decorators of ``torch.compile``, which mean the same here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.zoo import TwoTensor


def _ones(*size: int) -> torch.Tensor:
    return torch.ones(*size)


def _two(*size: int) -> torch.Tensor:
    return TwoTensor(torch.ones(*size), torch.ones(*size))


_KINDS = pytest.mark.parametrize("make", [_ones, _two])


@_KINDS
@pytest.mark.parametrize(("dynamic", "expected"), [(None, 2), (True, 1), (False, 4)])
def test_dynamic(make: Callable[..., torch.Tensor], dynamic: bool | None, expected: int) -> None:
    region = st.compile(lambda x: x * 2, dynamic=dynamic)
    for n in (3, 5, 7, 9):
        assert region(make(n)).shape == (n,)
    assert len(region.specializations) == expected


@_KINDS
def test_marked_sizes(make: Callable[..., torch.Tensor]) -> None:
    region = st.compile(lambda x: x * 2, dynamic=False)
    x = make(3, 4)
    torch._dynamo.mark_dynamic(x, 0)
    for t in (x, make(5, 4), make(7, 4)):
        region(t)
    assert len(region.specializations) == 1

    region = st.compile(lambda x: x * 2)
    for n in (3, 5, 7):
        x = make(n, 3)
        torch._dynamo.mark_static(x, 0)
        region(x)
    assert len(region.specializations) == 3


@_KINDS
def test_a_marked_size_that_the_region_fixes(make: Callable[..., torch.Tensor]) -> None:
    x, y = make(4), make(4)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(y, 0)
    region = st.compile(lambda x: x * 2 if x.shape[0] == 4 else x * 3)
    with pytest.raises(st.OptionError, match="mark_dynamic") as caught:
        region(x)
    assert caught.value.path == "args[0].shape[0]"
    assert region(y).shape == (4,)


def test_disable() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert st.compile(f, disable=True) is f
    assert st.compile(disable=True)(f) is f


@pytest.mark.parametrize("recursive", [True, False])
def test_a_disabled_function_is_not_traced(recursive: bool) -> None:
    seen: list[type] = []

    @torch.compiler.disable(recursive=recursive)
    def beside(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x))
        return x + 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return beside(x * 2) * 3

    with pytest.raises(st.UnsupportedError, match=r"torch\.compiler\.disable"):
        st.compile(f, frontend="trace")(torch.ones(2))
    with pytest.warns(st.HandOverWarning, match=r"torch\.compiler\.disable"):
        region = st.compile(f, frontend="auto")
        assert [region(torch.ones(2)).tolist() for _ in range(2)] == [[9, 9]] * 2
    assert seen == [torch.Tensor] * 2
    with pytest.warns(st.HandOverWarning), pytest.raises(st.UnsupportedError):
        st.compile(lambda x: beside(x) * 3, frontend="auto", fullgraph=True)(
            torch.ones(2)
        )  # code that Dynamo has not seen


def test_a_function_that_is_allowed_in_graphs() -> None:
    @torch.compiler.allow_in_graph
    def g(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    assert st.compile(lambda x: g(x) * 2)(torch.zeros(2)).tolist() == [2, 2]


def test_stances() -> None:
    runs: list[str] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        runs.append(type(x).__name__)
        return x * 2

    def g(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    region = st.compile(f)
    with torch.compiler.set_stance("force_eager"):
        region(torch.ones(2))
    assert runs == ["Tensor"]
    assert not region.specializations and "force_eager" in region.explain()

    region = st.compile(g)
    with torch.compiler.set_stance("eager_then_compile"):
        region(torch.ones(2))
        assert not region.specializations
        region(torch.ones(2))
        assert len(region.specializations) == 1
    with torch.compiler.set_stance("eager_on_recompile"):
        assert region(torch.ones(3)).tolist() == [2, 2, 2]
    with torch.compiler.set_stance("fail_on_recompile"):
        assert region(torch.ones(2)).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="fail_on_recompile") as caught:
            region(torch.ones(3))
    assert "size mismatch" in str(caught.value)
    with torch.compiler.set_stance("force_eager"):
        region(torch.ones(2))
    assert len(region.specializations) == 1


def test_options_of_a_back_end() -> None:
    given: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any, *, options: Any) -> Callable[..., Any]:
        given.append(options)
        return gm.forward

    x = torch.ones(2, requires_grad=True)
    st.compile(lambda x: x.sin(), backend=backend, options={"level": 3})(x).sum().backward()
    assert given == [{"level": 3}] * 2


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"options": {"level": 3}}, "options"),
        ({"backend": "inductor", "options": {"max_autotun": True}}, "options['max_autotun']"),
        ({"backend": "inductor", "options": {"max_autotune": "yes"}}, "options['max_autotune']"),
        ({"mode": "reduce-overhead"}, "mode"),
        ({"dynamic": "yes"}, "dynamic"),
        ({"disable": None}, "disable"),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_once(options: dict[str, Any], path: str) -> None:
    with pytest.raises(st.OptionError) as caught:
        st.compile(lambda x: x, **options)
    assert caught.value.path == path


def test_near_misses() -> None:
    for given, meant in {"fullgrap": "fullgraph", "option": "options", "back_end": "backend"}.items():
        with pytest.raises(st.OptionError, match=f"did you mean '{meant}'"):
            st.compile(lambda x: x, **{given: True})
    with pytest.raises(st.OptionError, match="did you mean 'max_autotune'"):
        st.compile(lambda x: x, backend="inductor", options={"max_autotun": True})


def test_compile_of_a_module_takes_the_back_end_by_name() -> None:
    model = torch.nn.Linear(2, 2)
    expected = model(torch.ones(1, 2))
    model.compile(backend="subclass_trace", options={"partitioner": "default"})
    torch.testing.assert_close(model(torch.ones(1, 2)), expected)


class _Step:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @property
    def factor(self) -> float:
        return 2.0


class _Derived(_Step):
    pass


@pytest.mark.parametrize("change", ["method", "of a subclass", "property", "data"])
def test_a_method_that_is_replaced_after_a_hand_over(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's guards do not compare the methods of a class."""
    step = _Derived()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if x.sum() > 0 else x * 3
        return step(y) * step.factor

    with pytest.warns(st.HandOverWarning):
        region = st.compile(f, frontend="auto")
        got = [region(torch.ones(2)) for _ in range(3)]
    changes: dict[str, tuple[type, str, Any]] = {
        "method": (_Step, "scaled", lambda self, x: x * 8),
        "of a subclass": (_Derived, "scaled", lambda self, x: x * 9),
        "property": (_Step, "factor", property(lambda self: 5.0)),
        "data": (_Step, "unread", 3),
    }
    assert all(torch.equal(g, f(torch.ones(2))) for g in got)
    monkeypatch.setattr(*changes[change], raising=False)
    for _ in range(3):
        assert torch.equal(region(torch.ones(2)), f(torch.ones(2)))


def test_a_hand_over_leaves_no_mark_on_the_module() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    model = Branches()
    before = {*vars(model)}
    with pytest.warns(st.HandOverWarning):
        st.compile(model, frontend="auto")(torch.ones(2))
    assert {*vars(model)} == before
