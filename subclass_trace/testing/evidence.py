r"""How the sweep writes down what it has found: the lines of a program, from the operands to both
sides.

x = MyTensor(torch.randn((2, 3), generator=torch.Generator().manual_seed(1)).mul(4))
dx = x.dequantize().clone()
got = x.abs()
expected = dx.abs()
print("got:     ", got, "\nexpected:", expected)
assert same(got.dequantize(), expected)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from types import CodeType
from typing import Any, NamedTuple

import torch

from .operands import MODULES, SPREAD, Operands
from .probes import leaves
from .render import program
from .subject import Subject


@dataclass(frozen=True)
class Call:
    """One call of the table.

    Attributes:
        text: the source.
        rule: which rule a wrong value breaks.
        drawn: values are of chance.
        code: what `eval` or `exec` takes.
        names: what it names.
        expression: not statements.
    """

    text: str
    rule: str
    drawn: bool
    code: CodeType
    names: frozenset[str]
    expression: bool


def call_of(text: str, rule: str, drawn: bool = False) -> Call:
    """A call from its source."""
    try:
        code, expression = compile(text, f"<{text}>", "eval"), True
    except SyntaxError:
        code, expression = compile(text, f"<{text}>", "exec"), False
    return Call(text, rule, drawn, code, frozenset(code.co_names), expression)


@dataclass
class Failure(Exception):
    """A rule does not hold.

    Attributes:
        rule: its id; "" where a rule of its own says so.
        what: what should hold, in words.
        got, expected: the two sides as text.
        lines: the lines that ran, from making the instance to the failure.
        subject: what was checked.
        operations: names of the operations that it takes, where that is known.
        call: the call of the sweep that shows it.
    """

    rule: str
    what: str
    got: str
    expected: str
    lines: tuple[str, ...]
    subject: Subject
    operations: frozenset[str] = frozenset()
    call: str = ""

    @property
    def script(self) -> str:
        """A short program that shows it; it imports its helpers from this package."""
        return program(self.subject, self.lines, short=True)

    @property
    def standalone(self) -> str:
        """The same program with the sources of its helpers: it needs torch and the class alone."""
        return program(self.subject, self.lines)

    def __reduce__(self) -> Any:
        return Failure, tuple(getattr(self, f.name) for f in fields(self))

    def __str__(self) -> str:
        return f"{self.what}\n  got:      {self.got}\n  expected: {self.expected}"


class Evidence:
    """Writes programs about calls on operands of one size."""

    def __init__(self, subject: Subject, operands: Operands) -> None:
        self.subject, self.operands = subject, operands
        kinds = {v.dtype for v in leaves(operands.shared["x"])} - {torch.bool, torch.int64}
        exact = kinds == {torch.float64} and subject.tolerance == Subject.tolerance
        self.tolerance = (1e-9, 1e-9) if exact else subject.tolerance

    def used(self, call: Call) -> frozenset[str]:
        """The operands of a call."""
        return call.names & self.operands.lines.keys()

    def wrapped(self, call: Call) -> list[str]:
        """Those of them that are wrappers."""
        return sorted(self.used(call) & self.operands.wrappers)

    def setup(self, call: Call) -> list[str]:
        """Imports and operands."""
        imports = [line for n, line in MODULES.items() if n in call.names and n != "torch"]
        seed = f"torch.manual_seed({SPREAD}); " if self.subject.random else ""
        lines = self.operands.lines.items()
        return [*imports, *(f"{seed}{n} = {line}" for n, line in lines if n in call.names)]

    def body(self, call: Call, target: str, mode: str = "") -> list[str]:
        """The call itself, in a mode."""
        if call.expression:
            lines = [f"{target} = {call.text}" if target else call.text]
        else:
            lines = [*call.text.splitlines(), *([f"{target} = out"] * (target != ""))]
        return ["\n    ".join([f"with {mode}:", *lines])] if mode else lines

    def dense_lines(self, call: Call, also: Iterable[str] = ()) -> list[str]:
        """The dense operands.

        Args:
            also: operands that are dense, of which the dense program gets copies.
        """
        source = self.subject.dense or "torch.randn({0}.shape, dtype={0}.dtype)"
        lines = [f"d{n} = {source.format(n)}.clone()" for n in self.wrapped(call)]
        return [*lines, *(f"d{n} = {n}.clone()" for n in also)]

    def against_dense(self, call: Call, target: str, also: Iterable[str] = ()) -> list[str]:
        """The call, and the same on dense tensors.

        Args:
            target: a name for the result, or "".
        """
        lines, expected = self.dense_lines(call, also), "expected" if target else ""
        return [*lines, *self.body(call, target), *self.on_dense(call, expected, also)]

    def on_dense(self, call: Call, target: str, also: Iterable[str] = ()) -> list[str]:
        """The call on dense tensors alone."""
        names = "|".join([*self.wrapped(call), *also])
        body = self.body(call, target)
        return [re.sub(rf"\b({names})\b", r"d\1", line) for line in body] if names else body

    def projected(self, name: str, value: Any) -> str:
        """The source of the dense value of a result."""
        if isinstance(value, self.subject.cls) and self.subject.dense is not None:
            return f"{self.subject.dense.format(name)}.detach()"
        return name

    def found(
        self,
        call: Call,
        rule: str,
        what: str,
        sides: tuple[Any, Any],
        steps: Iterable[str],
        look: tuple[str, str] | None = None,
        *,
        setup: Iterable[str] | None = None,
        tolerance: tuple[float, float] | None = None,
    ) -> Failure:
        """A call is not what it is on dense tensors.

        Args:
            sides: the two sides.
            steps: lines after the set-up.
            look: the source of both sides; None if the steps raise.
            setup: other lines than the imports and operands of the call.
        """
        lines = [*(self.setup(call) if setup is None else setup), *steps]
        if look:
            *both, last = shown(*look, tolerance)
            lines += [*both, f"{last}, {what!r}"]
        got, expected = (str(side)[:600] for side in sides)
        return Failure(rule, what, got, expected, tuple(lines), self.subject, call=call.text)


def shown(got: str, expected: str, tolerance: tuple[float, float] | None = None) -> list[str]:
    """The end of a program: both sides are printed, and compared."""
    near = f", {tolerance[0]}, {tolerance[1]}" if tolerance else ""
    both = (("got", got), ("expected", expected))
    return [
        *(f"{name} = {source}" for name, source in both if name != source),
        'print("got:     ", got, "\\nexpected:", expected)',
        f"assert same(got, expected{near})",
    ]


def flat(value: Any) -> list[Any]:
    """The values in lists and tuples."""
    return [t for v in value for t in flat(v)] if isinstance(value, (list, tuple)) else [value]


def item(name: str, out: Any, k: int) -> str:
    """The source of the k-th result."""
    return name if torch.is_tensor(out) else f"{name}[{k}]"


class Ran(NamedTuple):
    """What a call gave, the operands afterwards, and what the dense program took."""

    out: Any
    after: dict[str, Any]
    operations: frozenset[str] = frozenset()
    pointwise: bool = False
