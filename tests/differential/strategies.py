"""Lines of generated programs, as source text, so that a shrunk failure can be read and run by hand.

A program is two functions, ``inputs(call)`` and ``program(*args)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import wrappers
from oracle import Inputs

KINDS = ("dense", "two", "nested", "scaled", "masked", "biased")
SIZES = ((3, 3), (2, 3), (4,), (2, 2, 2))

POINTWISE = ("{a} * 2", "{a} + 1", "{a}.sin()", "{a}.tanh()", "{a}.relu()", "-{a}", "{a}.exp()", "{a}.sigmoid()")
OTHER = ("{a}.clone()", "{a}.detach()", "{a}.contiguous()", "F.dropout({a}, 0.5, True)", "torch.zeros_like({a})")
BINARY = (
    "{a} + {b}",
    "{a} * {b}",
    "{a} - {b}",
    "torch.where({a} > 0, {a}, {b})",
    "torch.cat([{a}, {b}])",
    "torch.stack([{a}, {b}])",
)
REDUCE = ("{a}.sum()", "{a}.sum(0)", "{a}.mean(-1, keepdim=True)", "{a}.amax(0)", "{a}.cumsum(0)")
VIEWS = (
    "{a}.view(-1)",
    "{a}[0]",
    "{a}[1:]",
    "{a}[..., ::2]",
    "{a}.unsqueeze(0)",
    "{a}.transpose(0, -1)",
    "{a}.view_as({a})",
)
VIEWS += (
    "{a}.narrow(0, 0, 1)",
    "{a}.expand(2, *{a}.shape)",
    "{a}.diagonal()",
    "{a}.reshape(-1)",
    "{a}[:]",
    "{a}.squeeze()",
)
MULTI = ("{a}.split(1)", "{a}.unbind(0)", "{a}.chunk(2, -1)", "{a}.sort()")
INDEX = (
    "{a}[[0, 1]]",
    "{a}.index_select(0, torch.tensor([1, 0]))",
    "{a}.flip(0)",
    "torch.gather({a}, 0, torch.zeros_like({a}).long())",
)
INPLACE = (
    "{a}.add_(1)",
    "{a}.mul_(2)",
    "{a}.zero_()",
    "{a}[0] = 1",
    "{a}[0].mul_(3)",
    "{a}.relu_()",
    "{a}.sin_()",
    "{a}.view(-1)[1:].add_(2)",
)
INPLACE += ("{a}[{a} > 0.5] = 0.25", "{a}.masked_fill_({a} < 0, 9.0)", "{a}[...] = {a}.flip(0)", "{a}.add_({a})")
INPLACE2 = ("{a}.copy_({b})", "{a}.add_({b})", "{a}.mul_({b})", "{a}[:1] = {b}[:1]", "{a}[0].copy_({b}[0])")
INPLACE2 += ("{a}.index_copy_(0, torch.tensor([1]), {b}[:1].clone())", "{a}.index_add_(0, torch.tensor([0]), {b}[:1])")
MASKED = ("{a} * 2", "{a} + 1", "{a}.sin()", "{a}.relu()", "-{a}", "{a}.clone()", "{a}.detach()", "{a}.sum()")


@dataclass
class Program:
    """A generated program; prints as what one would type to run it."""

    make_lines: tuple[str, ...]
    args: tuple[str, ...]
    roots: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    backward: tuple[int, ...] | None
    how: str

    @property
    def source(self) -> str:
        """The two functions."""
        body = "\n".join(f"    {line}" for line in self.lines)
        make = "\n".join(f"    {line}" for line in self.make_lines)
        return (
            f"def inputs(call):\n{make}\n    return Inputs(({', '.join(self.args)},), ({''.join(r + ', ' for r in self.roots)}))\n\n"
            f"def program({', '.join(f'x{k}' for k in range(len(self.args)))}):\n{body}\n    return ({', '.join(self.results)},)\n"
        )

    def functions(self) -> tuple[Any, Any]:
        """(program, inputs)."""
        names = {"torch": torch, "F": F, "Inputs": Inputs, **vars(wrappers)}
        exec(compile(self.source, "<generated>", "exec"), names)
        return names["program"], names["inputs"]

    def __repr__(self) -> str:
        back = "no backward" if self.backward is None else f"backward of outputs {list(self.backward)} by {self.how}"
        return f"\n{self.source}# {back}\n"
