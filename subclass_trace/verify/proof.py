"""What an entry checks of sizes implies what its trace has assumed of them: z3 proves it.

One side is the text that was emitted, parsed; the other is what the shape environment holds, and
the sizes and strides that the traced inputs had. So what is between them is checked: expressions
that were simplified, printed, left out, or read from the wrong place.

Args and kinds of tensors are no business of this; nor are numbers that depend on values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.capture import Captured
from ..errors import VerificationError
from ..plan import SymbolPlan
from ..subclass.spec import is_ragged
from ..torch_api.proofs import Formulas
from ..torch_api.symbols import assumed, made_as, shape_conditions

_READ = re.compile(r"\w+\.(shape\[\d+\]|stride\(\d+\)|storage_offset\(\))")


@dataclass(frozen=True)
class Proof:
    """What z3 found.

    Attributes:
        proved: so many assumptions of the trace follow from the checks of the entry.
        unknown: those of which z3 cannot tell, or which are no formulas.
        implied: conditions that follow from the others, and so are not emitted.
    """

    proved: int
    unknown: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()

    def __str__(self) -> str:
        left = f"; left out, as the others imply them: {', '.join(self.implied)}"
        open_ = f"; unknown: {', '.join(self.unknown)}"
        return (
            f"{self.proved} assumptions of the trace{left * bool(self.implied)}"
            f"{open_ * bool(self.unknown)}"
        )


def needed(conditions: Sequence[Any], symbols: Sequence[SymbolPlan]) -> list[Any]:
    """Conditions of which none follows from the others."""
    formulas = Formulas()
    known = [*_bind(formulas, symbols)]
    made = {c: formulas.formula(c) for c in conditions}
    kept = list(conditions)
    for c in reversed(conditions):  # ranges come first, and say more to a reader
        others = [made[k] for k in kept if k is not c and made[k] is not None]
        if made[c] is not None and formulas.against([*known, *others], [made[c]]) is None:
            kept.remove(c)
    return kept


def _bind(formulas: Formulas, symbols: Sequence[SymbolPlan]) -> Iterator[Any]:
    """Numbers for symbols; what is known of those that are sizes."""
    for row in symbols:
        number = formulas.number(str(row.symbol), whole=bool(row.symbol.is_integer))
        formulas.let(row.symbol, number)
        if row.kind != "flat" and not row.ragged:
            yield number >= 0


def prove(
    captured: Captured,
    text: str,
    names: Mapping[str, Sequence[str]],
    checked: Mapping[str, Mapping[str, int]],
    conditions: Sequence[Any],
) -> Proof:
    """Prove it of an entry.

    Args:
        text: of its checks; ``names``: what it calls "flat" arguments, "input" tensors, and each
            "leaf"; ``checked``: what the checks that run in C++ compare.
        conditions: those that were emitted.

    Raises:
        VerificationError: an assumption does not follow; ``got`` are sizes that show it.
    """
    formulas = Formulas()
    claims, symbols, unknown = _claims(captured, names, formulas)
    entry = _Entry(formulas, {str(s): s for s in symbols}, checked)
    entry.read(text)
    known = [*entry.facts, *(n >= 0 for n in entry.sizes.values())]
    if formulas.against(known, [claim for _, claim in claims]) is not None:
        for what, claim in claims:
            found = formulas.against(known, [claim])
            if found == "unknown":
                unknown.append(what)
            elif found is not None:
                raise VerificationError(
                    "the checks of an entry do not imply what its trace has assumed",
                    path=what,
                    expected=f"it follows from {len(entry.facts)} checks on sizes",
                    got=", ".join(f"{name} = {n}" for name, n in found.items()),  # type: ignore[union-attr]
                )
    assumed_ = shape_conditions(captured.session.shape_env, frozenset(symbols))
    implied = tuple(str(c) for c in assumed_ if c not in conditions)
    return Proof(len(claims) - len(unknown), tuple(unknown), implied)


def _claims(
    captured: Captured, names: Mapping[str, Sequence[str]], formulas: Formulas
) -> tuple[list[tuple[str, Any]], set[Any], list[str]]:
    """What the trace has assumed, as formulas over what a call tells; the symbols that it tells;
    and what is no formula."""
    env, rows = captured.session.shape_env, [*_numbers(captured, names)]
    symbols: set[Any] = set()
    for name, n in rows:
        if (symbol := made_as(n)) is not None and symbol.is_Symbol and symbol not in symbols:
            symbols.add(symbol)
            formulas.let(symbol, formulas.number(name, whole=bool(symbol.is_integer)))
    stated = [(f"{name} == {n if (e := made_as(n)) is None else e}", name, n) for name, n in rows]
    claims, unknown = list[tuple[str, Any]](), list[str]()
    for what, name, n in stated:
        expr = made_as(n)
        value = n if expr is None else formulas.formula(expr)
        if value is None:
            unknown.append(what)
        else:
            claims.append((what, formulas.number(name) == value))
    for condition in assumed(env, frozenset(symbols)):
        formula = formulas.formula(condition)
        if formula is None:
            unknown.append(str(condition))
        else:
            claims.append((str(condition), formula))
    return claims, symbols, unknown


def _numbers(captured: Captured, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Each number that a call tells: how the entry reads it, and what it was in the trace."""
    for position, n in captured.session.arguments.items():
        yield names["flat"][position], n
    for local, t in zip(names["leaf"], captured.inputs.originals, strict=True):
        yield from _sizes(local, t.shape, t.stride())
        if isinstance(offset := t.storage_offset(), torch.SymInt):
            yield f"{local}.storage_offset()", offset
    for local, row in zip(names["input"], captured.inputs.rows, strict=True):
        spec: Any = row.spec
        if spec.layout is not torch.jagged:  # its sizes follow from those inside
            yield from _sizes(local, spec.size, spec.stride)


def _sizes(local: str, size: Sequence[Any], stride: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for form, numbers in (("shape[{}]", size), ("stride({})", stride)):
        for d, n in enumerate(numbers):
            if not is_ragged(n) and local != "None":
                yield f"{local}.{form.format(d)}", n


class _Entry:
    """What the checks of an entry say of sizes.

    Attributes:
        facts: formulas that hold where it serves; what is not read here leaves some out.
        sizes: what it reads of tensors, which is never below zero.
    """

    def __init__(
        self,
        formulas: Formulas,
        symbols: Mapping[str, Any],
        checked: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.formulas, self.symbols, self.checked = formulas, symbols, checked
        self.facts: list[Any] = []
        self.sizes: dict[str, Any] = {}
        self._locals: dict[str, Any] = {}
        self._same: dict[str, str] = {}

    def read(self, text: str) -> None:
        """The lines that each call runs."""
        (function,) = ast.parse(text).body
        (attempt, *_) = function.body  # type: ignore[attr-defined]
        for line in attempt.body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                self._assign(line.targets[0].id, line.value)
            elif isinstance(line, ast.If) and isinstance(line.body[0], ast.Return):
                either = isinstance(line.test, ast.BoolOp) and isinstance(line.test.op, ast.Or)
                for test in line.test.values if either else [line.test]:  # type: ignore[attr-defined]
                    self._miss(test)
        for name, first in self._same.items():  # of one tensor, which has two names
            for read in [*self.formulas.numbers]:
                if read.startswith(f"{name}."):
                    other = self._size(first + read.removeprefix(name))
                    self.facts.append(self._size(read) == other)

    def _assign(self, name: str, value: ast.expr) -> None:
        symbol = self.symbols.get(name)
        if symbol is not None and isinstance(value, ast.Name):  # a number of the call
            self._locals[name] = self.formulas.number(value.id, whole=bool(symbol.is_integer))
        elif (made := self._made(value)) is not None:
            self._locals[name] = made

    def _miss(self, test: ast.expr) -> None:
        """A call of which this is true is not served."""
        call = test.operand if isinstance(test, ast.UnaryOp) else test
        if isinstance(call, ast.Call) and (rows := self.checked.get(ast.unparse(call.func))):
            given = {ast.unparse(a) for a in call.args}
            reads = {read: n for read, n in rows.items() if read.partition(".")[0] in given}
            self.facts += [self._size(read) == n for read, n in reads.items()]
        elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            self._same[ast.unparse(test.left)] = ast.unparse(test.comparators[0])
        elif (made := self._made(test)) is not None:
            self.facts.append(self.formulas.z3.Not(made))

    def _size(self, read: str) -> Any:
        return self.sizes.setdefault(read, self.formulas.number(read))

    def _made(self, node: ast.expr) -> Any:
        """A formula; None where it is about something else."""
        try:
            return self._formula(node)
        except (KeyError, TypeError, AttributeError, self.formulas.z3.Z3Exception):
            return None

    def _formula(self, node: Any) -> Any:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            if _READ.fullmatch(read := ast.unparse(node)):
                return self._size(read)
        parts = [*map(self._formula, _OPERANDS[type(node)](node))]
        z3, numbers = self.formulas.z3, self.formulas.arithmetic
        if isinstance(node, ast.Name):
            return self._locals[node.id]
        if isinstance(node, ast.Constant):
            kind = {bool: z3.BoolVal, int: z3.IntVal, float: z3.RealVal}[type(node.value)]
            return kind(node.value)
        if isinstance(node, ast.BoolOp):
            return (z3.And if isinstance(node.op, ast.And) else z3.Or)(*parts)
        if isinstance(node, ast.Compare):
            pairs = zip(node.ops, parts, parts[1:], strict=False)
            return z3.And(*(_COMPARED[type(op)](a, b) for op, a, b in pairs))
        if isinstance(node, ast.Call):
            return getattr(numbers, _CALLED[ast.unparse(node.func)])(*parts)
        return _COMPUTED[type(node.op)](numbers, z3)(*parts)


_OPERANDS: dict[type, Callable[[Any], list[Any]]] = {
    ast.Name: lambda n: [],
    ast.Constant: lambda n: [],
    ast.BoolOp: lambda n: n.values,
    ast.Compare: lambda n: [n.left, *n.comparators],
    ast.BinOp: lambda n: [n.left, n.right],
    ast.UnaryOp: lambda n: [n.operand],
    ast.Call: lambda n: n.args,
}
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_COMPUTED: dict[type, Callable[[Any, Any], Callable[..., Any]]] = {
    ast.Add: lambda numbers, z3: lambda a, b: a + b,
    ast.Sub: lambda numbers, z3: lambda a, b: a - b,
    ast.Mult: lambda numbers, z3: lambda a, b: a * b,
    ast.Pow: lambda numbers, z3: numbers.pow,
    ast.FloorDiv: lambda numbers, z3: numbers.floordiv,
    ast.Div: lambda numbers, z3: numbers.div,
    ast.Mod: lambda numbers, z3: numbers.mod,
    ast.USub: lambda numbers, z3: lambda a: -a,
    ast.Not: lambda numbers, z3: z3.Not,
}
_CALLED = {
    "max": "max",
    "min": "min",
    "abs": "abs",
    "float": "to_real",
    "math.floor": "floor",
    "math.ceil": "ceil",
    "math.trunc": "trunc",
}
