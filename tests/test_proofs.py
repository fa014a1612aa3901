"""What an entry checks of sizes implies what its trace has assumed of them: z3 proves it, and finds each mutant."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import subclass_trace as st
from subclass_trace import verify
from subclass_trace.frontends import compile_call
from subclass_trace.torch_api.proofs import Formulas
from subclass_trace.verify import proof
from subclass_trace.zoo import TwoTensor

pytest.importorskip("z3")
Tensor = torch.Tensor
R = torch.randn


def cat(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b]).reshape(-1, 4) if (a.shape[0] + b.shape[0]) % 4 == 0 else a


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) if a.shape[1] > 16 else a.sum()


def products(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[0] * a.shape[1] > 3 * b.shape[0] and b.shape[1] // 2 < a.shape[0]:
        return a.sum()
    return b.sum()


def equal(a: Tensor, b: Tensor) -> Tensor:
    return a.sum() + b.sum() if a.shape[0] == 2 * b.shape[1] and a.shape[1] != 7 else b


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cat": (cat, (R(6, 8), R(10, 8))),
    "matmul": (matmul, (R(5, 20), R(20, 7))),
    "products": (products, (R(6, 9), R(5, 8))),
    "bounds": (lambda a: a * 2 if max(a.shape[0], 3) - min(a.shape[1], 5) > 1 else a, (R(9, 4),)),
    "equal": (equal, (R(1, 4).expand(10, 4), R(5, 3).t())),
    "strides": (lambda a: a[2:].t().reshape(-1) if a.shape[0] < 20 else a, (R(12, 9)[:, 2:],)),
    "wrappers": (lambda a, b: a @ b if a.shape[0] > 3 else a, (TwoTensor(R(6, 5), R(6, 5)), R(5, 7))),
    "a wrapper twice": (lambda a, b: a + b.t(), (TwoTensor(R(6, 5), R(6, 5)), TwoTensor(R(5, 6), R(5, 6)))),
    "a module": (nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU()), (R(7, 3, 4),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_translation_validation(name: str) -> None:
    """The guards that were emitted imply all branches, ranges, sizes and strides of the trace."""
    function, args = PROGRAMS[name]
    region = st.compile(function, dynamic=True)
    torch.testing.assert_close(region(args[0], *args[1:]), function(*args), check_stride=True)
    (made,) = region.specializations
    assert made.proof is not None and made.proof.proved >= 4 and not made.proof.unknown
    assert f"proved:    {made.proof.proved} assumptions of the trace" in region.explain()


# ---------------------------------------------------------------------------------------------- mutants
def proved(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The proof of a program for another text of its entry, and that text."""
    calls: list[Any] = []
    monkeypatch.setattr(verify, "SPARES", True)  # else a guard that is dropped may be one that others imply
    monkeypatch.setattr(compile_call, "prove", lambda *args: calls.append(args) or proof.prove(*args))
    function, args = PROGRAMS[name]
    st.compile(function, dynamic=True)(*args)
    (captured, text, *rest) = calls[0]
    again = lambda changed: proof.prove(captured, changed, *rest)
    again.text = text  # type: ignore[attr-defined]
    return again


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sweep(every=3)
def test_a_guard_that_is_dropped_is_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = proved(name, monkeypatch)
    lines = prove.text.splitlines()  # type: ignore[attr-defined]
    guards = [k for k, line in enumerate(lines) if " if x" in line or " if u" in line]
    guards += [k for k, line in enumerate(lines) if line.strip().startswith(("if not (s", "if not check0"))]
    assert guards
    for k in guards:
        mutant = "\n".join([*lines[:k], "        pass", *lines[k + 1 :]])
        with pytest.raises(st.VerificationError, match="do not imply") as caught:
            prove(mutant)
        assert caught.value.path and " = " in str(caught.value.got), lines[k]


@pytest.mark.parametrize(
    ("name", "was", "instead", "claim", "counterexample"),
    [
        ("products", "s7*s73 > 3*s98", "s7*s73 >= 3*s98", "s7*s73 > 3*s98", "shape"),
        ("products", "(s29 // 2) < s73", "(s29 // 2) <= s73", "s73", "shape"),
        ("products", "(s29 // 2)", "(s29 // 3)", "s73", "shape"),
        ("matmul", "s7 >= 17", "s7 >= 16", "s7 >= 17", "shape[1] = 16"),
        ("matmul", "s7 >= 17", "s7 >= 17 or s73 == 2", "s7 >= 17", "shape"),
        ("cat", "((s73 + s98) % 4)", "((s73 - s98) % 4)", "", "shape"),
        ("cat", "s73 = x0.shape[0]", "s73 = x0.shape[1]", "", "shape"),
        ("equal", "2*s", "3*s", "", "shape"),
    ],
)
def test_a_guard_that_is_weakened_is_found(
    name: str, was: str, instead: str, claim: str, counterexample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = proved(name, monkeypatch)
    text: str = prove.text  # type: ignore[attr-defined]
    assert was in text, text
    with pytest.raises(st.VerificationError, match="do not imply") as caught:
        prove(text.replace(was, instead))
    assert claim in str(caught.value.path) and counterexample in str(caught.value.got)


# ---------------------------------------------------------------------------------------------- what is emitted
def test_guards_that_others_imply_are_not_emitted_and_said() -> None:
    function, args = PROGRAMS["matmul"]
    region = st.compile(function, dynamic=True)
    with st.debug(validate_guards=True):
        region(*args)
    (made,) = region.specializations
    assert "s7 > 16" not in made.guards and "s7 >= 17" in made.guards
    assert made.proof is not None and made.proof.implied == ("s7 > 16",)
    assert "left out, as the others imply them: s7 > 16" in region.explain()
    with st.debug(validate_guards=False):
        other = st.compile(function, dynamic=True)
        other(*args)
    assert other.specializations[0].proof is None and "s7 > 16" in other.specializations[0].guards
    for a, b in ((R(5, 17), R(17, 3)), (R(2, 16), R(16, 3))):
        torch.testing.assert_close(region(a, b), function(a, b))
    assert len(region.specializations) == 2


def test_unknown_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Formulas, "effort", 1)
    function, args = PROGRAMS["products"]
    region = st.compile(function, dynamic=True)
    region(*args)
    (made,) = region.specializations
    assert made.proof is not None and made.proof.unknown and not made.proof.implied
    assert "unknown: " in region.explain() and made.proof.unknown[-1] in region.explain()


def test_it_is_switched_by_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PROVES", False)
    monkeypatch.setattr(verify, "SPARES", False)
    with st.debug(validate_guards=True):
        assert verify.PROVES and verify.SPARES
    assert not verify.PROVES and not verify.SPARES
    st.debug(validate_guards=True)
    assert verify.PROVES and verify.SPARES
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(st.OptionError, match=r"subclass_trace\[verify\]"):
        st.debug(validate_guards=True)
