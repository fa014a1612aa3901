"""How a case of `cases` is written down: what runs, what torch.compile does with it, and what is expected."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS / "differential"), str(_TESTS)]
from oracle import Inputs, backward_of, check  # noqa: E402
from wrappers import two  # noqa: E402

import subclass_trace as st  # noqa: E402

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """A fact: ``run`` passes, raises ``refused``, or shows the difference named by ``differs``; ``fault``: a bug, open.

    ``handed``: what our trace refuses is right with ``frontend="auto"``, since Dynamo serves it.
    """

    group: str
    name: str
    run: Callable[[], Any]
    torch: str  # what torch.compile does
    refused: str = ""
    differs: str = ""
    fault: str = ""
    handed: bool = True

    @property
    def expectation(self) -> str:
        """As the table prints it."""
        if self.fault:
            return f"**fault**: {self.fault}"
        if self.refused == "eager":
            return "runs eagerly"
        if self.refused:
            return f"{'handed over' if self.handed else 'refused'}: `{self.refused}`"
        return f"differs: {self.differs}" if self.differs else "right"


CASES: list[Case] = []
YES = "supported"


def _same(
    group: str,
    name: str,
    fn: Callable[..., Any],
    make: Callable[[int], Any],
    *,
    back: Any = None,
    torch: str = YES,
    refused: str = "",
    differs: str = "",
    fault: str = "",
    handed: bool = True,
    **how: Any,
) -> None:
    """Eager and compiled agree: values, types, strides, aliasing, versions, gradients, random state."""

    def run() -> None:
        def inputs(call: int) -> Inputs:
            made = make(call)
            return made if isinstance(made, Inputs) else Inputs(made if isinstance(made, tuple) else (made,))

        check(fn, inputs, backward=None if back is None else backward_of(back), **{"specializations": 1, **how})

    CASES.append(Case(group, name, run, torch, refused, differs, fault, handed))


def _fact(
    group: str,
    name: str,
    *,
    torch: str = YES,
    refused: str = "",
    differs: str = "",
    handed: bool = True,
    close: bool = False,
) -> Callable[[Callable[..., Any]], Any]:
    """A case with a program of its own. One that takes ``compile`` gives the same with `st.compile` as without: tensors that
    are equal (``close``: but for rounding), or what is ``==``.
    """

    def add(program: Callable[..., Any]) -> Any:
        run = functools.partial(_agrees, program, close) if inspect.signature(program).parameters else program
        CASES.append(Case(group, name, run, torch, refused, differs, handed=handed))
        return program

    return add


def _agrees(program: Callable[..., Any], close: bool) -> None:
    eager, ours = program(lambda f: f), program(st.compile)
    if isinstance(eager, Tensor):
        assert type(eager) is type(ours) and (torch.allclose if close else torch.equal)(eager, ours)
    else:
        assert eager == ours


def cases(group: str) -> tuple[Callable[..., None], Callable[..., Any]]:
    """``same`` and ``fact``, which add cases to a group of the table."""
    return functools.partial(_same, group), functools.partial(_fact, group)


def root(make: Callable[..., Tensor] = two, *size: int) -> Callable[[int], Inputs]:
    """One leaf that requires grad."""

    def made(call: int) -> Inputs:
        w = make(*(size or (3, 3)), seed=call).requires_grad_()
        return Inputs((w,), (w,))

    return made


def nonleaf(make: Callable[..., Tensor] = two, *size: int) -> Callable[[int], Inputs]:
    """A value of a leaf that requires grad."""

    def made(call: int) -> Inputs:
        w = make(*(size or (3, 3)), seed=call).requires_grad_()
        return Inputs((w * 1,), (w,))

    return made


def plain(make: Callable[..., Tensor] = two, *size: int) -> Callable[[int], Tensor]:
    """One input without grad."""
    return lambda call: make(*(size or (3, 3)), seed=2 * call)


def no_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """The function in no_grad."""

    def inner(*args: Any) -> Any:
        with torch.no_grad():
            return f(*args)

    return inner


def tagged(call: int) -> Tensor:
    x = two(3, seed=call)
    x.tag = 2 + call % 2
    return x
