"""``verify=``: what the cache has is compared with a new trace before it first serves; what is stale is found, told and dropped."""

from __future__ import annotations

import random
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.artifacts import cache
from subclass_trace.artifacts.container import pack, unpack
from subclass_trace.zoo import TwoTensor

SOURCE = "def f(x, w, n=2):\n    return ((x * w).sin() * n).sum(0)\n"


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of the test's own."""
    monkeypatch.setenv("SUBCLASS_TRACE_CACHE_DIR", str(tmp_path / "cache"))
    cache.opened.cache_clear()
    yield tmp_path / "cache"
    cache.opened.cache_clear()


def of_source(text: str = SOURCE) -> Callable[..., Any]:
    made: dict[str, Any] = {"__name__": "of_source"}
    exec(compile(text, "of_source.py", "exec"), made)
    return made["f"]  # type: ignore[no-any-return]


def inputs(size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = torch.linspace(0.1, 1, size), torch.linspace(1, 2, size)
    return TwoTensor(x, x + 1), TwoTensor(w, w).requires_grad_()


def step(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    result = function(*args, **kwargs)
    grads = torch.autograd.grad(result, args[1], torch.ones_like(result))
    return [result.a, result.b, grads[0].a, grads[0].b]  # type: ignore[attr-defined]


def runs_as_eager(function: Callable[..., Any], *calls: Any, **options: Any) -> Any:
    region = st.compile(function, frontend="trace", cache=True, **options)
    for args in calls or (inputs(),):
        for a, b in zip(step(region, *args), step(function, *args), strict=True):
            torch.testing.assert_close(a, b)
    return region


def entries(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.stc")}


def verified(function: Callable[..., Any], *calls: Any) -> Any:
    """A region that verifies, in which nothing was stale, and what was kept stays as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region = runs_as_eager(function, *calls, verify=True)
    assert "stale" not in region.explain(), region.explain()
    return region


def doctor(directory: Path, change: Callable[[Any], None]) -> str:
    """An entry says something else, under a right digest."""
    ((name, held),) = entries(directory).items()
    header, (data,) = unpack(held)
    change(data)
    data["constants"] = {}
    (directory / name).write_bytes(pack(header, [data]))
    return name


def cosines(data: Any) -> None:
    for half in (data["forward"], data["backwards"]["compiled"][0]["half"]):
        for entry in half["body"]:
            if entry[0][2] in ("sin", "cos"):
                entry[0][2] = {"sin": "cos", "cos": "sin"}[entry[0][2]]


def test_what_is_as_it_was_stays(directory: Path) -> None:
    runs_as_eager(of_source())
    kept = entries(directory)
    verified(of_source())
    assert entries(directory) == kept and len(kept) == 1


def test_lines_do_not_matter(directory: Path) -> None:
    runs_as_eager(of_source())
    kept = entries(directory)
    verified(of_source("# a comment\n\n" + SOURCE.replace("\n ", "\n    # another\n ")))
    assert entries(directory) == kept


def test_a_doctored_graph_is_found(directory: Path) -> None:
    runs_as_eager(of_source())
    kept = entries(directory)
    doctor(directory, cosines)
    with pytest.raises(AssertionError):  # so the digest is right, and nothing else compares it
        runs_as_eager(of_source())
    with pytest.warns(UserWarning, match=r"differs from a new trace.*forward\.body.*sin") as caught:
        region = runs_as_eager(of_source(), verify=True)
    assert len(caught) == 1 and "was stale" in region.explain()
    assert entries(directory) == kept  # the trace has written it
    verified(of_source())


def test_a_guard_that_is_missing_is_found(directory: Path) -> None:
    runs_as_eager(of_source())

    def drop(data: Any) -> None:
        data["guards"]["rows"].pop()

    doctor(directory, drop)
    with pytest.warns(UserWarning, match=r"differs from a new trace.*guards\.rows"):
        runs_as_eager(of_source(), verify=True)


def test_what_nothing_compares_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward of an operation of one's own: the version of its library answers for it."""
    library = types.ModuleType("st_stale")
    library.__version__ = "1.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "st_stale", library)

    @torch.library.custom_op("st_stale::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda _, grad: grad * 2)

    def f(x: Any, w: Any) -> Any:
        return torch.ops.st_stale.twice(x * w) + 1

    runs_as_eager(f)
    twice.register_autograd(lambda _, grad: (grad * 2).clamp(max=0.5))
    with pytest.raises(AssertionError):
        runs_as_eager(f)
    with pytest.warns(UserWarning, match=r"differs from a new trace.*backwards\.compiled"):
        runs_as_eager(f, verify=True)
    assert len(entries(directory)) == 1
    verified(f)


@pytest.mark.long
def test_sizes_and_numbers_that_differed(directory: Path) -> None:
    f = of_source()
    runs_as_eager(f, inputs(3), inputs(4), (*inputs(5), 3), (*inputs(6), 4))
    kept = entries(directory)
    for name in kept:  # those of symbols alone are left
        if not unpack(kept[name])[1][0]["symbols"]:
            (directory / name).unlink()
    kept = entries(directory)
    assert len(kept) > 1
    verified(f, inputs(7), (*inputs(8), 5))
    assert entries(directory).keys() == kept.keys()


def test_each_entry_is_verified_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_as_eager(of_source(), inputs(3), inputs(4))
    traced: list[int] = []
    capture = st.capture.capture.Capture.capture
    monkeypatch.setattr(st.capture.capture.Capture, "capture", lambda *a: (traced.append(1), capture(*a))[1])
    verified(of_source(), inputs(3), inputs(4), inputs(3), inputs(9))
    assert len(traced) == 1  # the one of symbols is the last used, and serves all of them
    traced.clear()
    runs_as_eager(of_source(), inputs(3))
    assert not traced


def test_a_share_is_drawn_beside_the_users_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    runs_as_eager(of_source())
    drawn = iter([0.6, 0.4])
    monkeypatch.setattr(cache, "_chance", random.Random())
    monkeypatch.setattr(cache._chance, "random", lambda: next(drawn))
    found = []
    for _ in range(2):
        region = runs_as_eager(of_source(), verify=0.5)
        found.append("trace" in region.specializations[0].seconds)
    assert found == [False, True]
    monkeypatch.undo()
    assert isinstance(cache._chance, random.SystemRandom)


PROCESS = """
import sys, torch, subclass_trace as st
from subclass_trace.zoo import TwoTensor
def f(x):
    return (x * 2).sin().sum()
x = TwoTensor(torch.ones(3), torch.zeros(3)).requires_grad_()
region = st.compile(f, frontend="trace", cache=True)
(grad,) = torch.autograd.grad(region(x), x, TwoTensor(torch.ones(()), torch.ones(())))
print("trace" in region.specializations[0].seconds, "torch._dynamo" in sys.modules, type(grad).__name__)
"""


@pytest.mark.long
def test_a_hit_imports_no_dynamo_for_wrappers_of_gradients(tmp_path: Path) -> None:
    (tmp_path / "process.py").write_text(PROCESS)
    told = [
        subprocess.run([sys.executable, tmp_path / "process.py"], capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert told == ["True True TwoTensor\n", "False False TwoTensor\n"]


@pytest.mark.parametrize("value", [2, -0.1, "yes", None, float("nan")])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(st.OptionError, match="verify"):
        st.compile(of_source(), cache=True, verify=value)
    with pytest.raises(st.OptionError, match="cache=True"):
        st.compile(of_source(), verify=True)
