"""What an entry checks of sizes implies what its trace has assumed of them: z3 proves it.

One side is the text that was emitted, parsed; the other what the shape environment holds, and the
sizes and strides that the traced inputs had. What lies between is checked so: expressions that were
simplified, printed, left out, or read from the wrong place. Numbers that depend on values inside
tensors are not in it.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
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
#: what checks compute: by kinds of nodes, and by names
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    getattr(ast, node): getattr(operator, name)
    for node, name in (
        *(("Add", "add"), ("Sub", "sub"), ("Mult", "mul"), ("Pow", "pow"), ("USub", "neg")),
        *(("FloorDiv", "floordiv"), ("Mod", "mod"), ("Div", "truediv"), ("Eq", "eq")),
        *(("NotEq", "ne"), ("Lt", "lt"), ("LtE", "le"), ("Gt", "gt"), ("GtE", "ge")),
        *(("And", "and_"), ("Or", "or_"), ("Not", "not_")),
    )
} | {
    "max": torch.sym_max,
    "min": torch.sym_min,
    "abs": operator.abs,
    "float": torch.sym_float,
    **{f"torch.{f.__name__}": f for f in (torch.sym_float, torch.sym_max, torch.sym_min)},
    "torch.sym_not": operator.not_,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
}


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
        rest = f"; unknown: {', '.join(self.unknown)}"
        return (
            f"{self.proved} assumptions of the trace{left * bool(self.implied)}"
            f"{rest * bool(self.unknown)}"
        )


def needed(conditions: Sequence[Any], symbols: Sequence[SymbolPlan]) -> list[Any]:
    """Conditions of which none follows from the others."""
    formulas = Formulas()
    numbers = [(row, formulas.let(row.symbol, str(row.symbol))) for row in symbols]
    known = [n >= 0 for row, n in numbers if row.kind != "flat" and not row.ragged]
    made = {c: f for c in conditions if (f := formulas.formula(c)) is not None}
    kept = list(conditions)
    for c in reversed(made):  # ranges come first, and say more to a reader
        others = [f for k, f in made.items() if k in kept and k is not c]
        if formulas.against(known + others, [made[c]]) is None:
            kept.remove(c)
    return kept


def prove(
    captured: Captured,
    text: str,
    names: Mapping[str, Sequence[str]],
    compared: Mapping[str, Mapping[str, int]],
    conditions: Sequence[Any],
) -> Proof:
    """Prove it of an entry.

    Args:
        text: of its checks; ``names``: what it calls "flat" arguments, "input" tensors, and each
            "leaf"; ``compared``: what the checks that run in C++ compare.
        conditions: those that were emitted.

    Raises:
        VerificationError: an assumption does not follow; ``got`` are sizes that show it.
    """
    formulas, env = Formulas(), captured.session.shape_env
    rows = [
        (name, n, made_as(n))
        for name, n in _numbers(captured, names)
        # it may have the symbol of a size that it was equal to: no matter where nothing reads it
        if "storage_offset" not in name or name in text
    ]
    symbols = dict[Any, str]()
    for name, _, symbol in rows:
        if symbol is not None and symbol.is_Symbol and symbol not in symbols:
            formulas.let(symbol, symbols.setdefault(symbol, name))
    stated = [
        (f"{name} == {n if e is None else e}", formulas.number(name) == value)
        for name, n, e in rows
        if (value := n if e is None else formulas.formula(e)) is not None
    ]
    all_assumed = [*assumed(env, frozenset(symbols))]
    claims = [*stated, *((str(c), formulas.formula(c)) for c in all_assumed)]
    unknown = [what for what, claim in claims if claim is None]
    claims = [row for row in claims if row[1] is not None]
    entry = _Entry(formulas, {str(s): name for s, name in symbols.items()}, compared)
    facts = entry.facts(text)
    if formulas.against(facts, [claim for _, claim in claims]) is not None:
        for what, claim in claims:
            found = formulas.against(facts, [claim])
            if found == {} or (found is not None and entry.unread):
                unknown.append(what)
            elif found is not None:
                raise VerificationError(
                    "the checks of an entry do not imply what its trace has assumed",
                    path=what,
                    expected="it follows from what the entry checks of sizes",
                    got=", ".join(f"{name} = {n}" for name, n in found.items()),
                )
    left = (c for c in shape_conditions(env, frozenset(symbols)) if c not in conditions)
    return Proof(len(stated) + len(all_assumed) - len(unknown), (*unknown,), (*map(str, left),))


def _numbers(captured: Captured, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Each number that a call tells: how the entry reads it, and what it was in the trace."""
    for position, n in captured.session.arguments.items():
        yield names["flat"][position], n
    tensors = [*zip(names["leaf"], captured.inputs.originals, strict=True)]
    for local, t in tensors:
        if isinstance(offset := t.storage_offset(), torch.SymInt):
            yield f"{local}.storage_offset()", offset
    sizes: list[Any] = [(local, t.shape, t.stride()) for local, t in tensors]
    for local, row in zip(names["input"], captured.inputs.rows, strict=True):
        spec: Any = row.spec
        if row.leaves and all(names["leaf"][k] == "None" for k in row.leaves):
            continue  # a constant of a frozen region, which no call brings
        if spec.layout is not torch.jagged:  # its sizes follow from those inside
            sizes.append((local, spec.size, spec.stride))
    for local, size, stride in sizes:
        rows = [(f"{local}.shape[{d}]", n) for d, n in enumerate(size)]
        rows += [(f"{local}.stride({d})", n) for d, n in enumerate(stride)]
        yield from (row for row in rows if not is_ragged(row[1]) and local != "None")


class _Entry:
    """What the checks of an entry say of sizes.

    Args:
        symbols: the names of symbols -> how a call tells them.
    """

    def __init__(
        self,
        formulas: Formulas,
        symbols: Mapping[str, str],
        compared: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.formulas, self.symbols, self.compared = formulas, symbols, compared
        self._locals: dict[str, Any] = {}
        #: checks of sizes that are no formula: what might follow from them is unknown
        self.unread: list[str] = []

    def facts(self, text: str) -> list[Any]:
        """Formulas that hold where it serves; what is no formula is left out."""
        function: Any = ast.parse(text).body[0]
        found, same = list[Any](), dict[str, str]()
        for line in function.body[0].body:
            if isinstance(line, ast.Assign) and isinstance(name := line.targets[0], ast.Name):
                value = ast.unparse(line.value)
                is_number = self.symbols.get(name.id) == value
                made = self.formulas.numbers[value] if is_number else self._formula(line.value)
                self._locals[name.id] = made
            elif isinstance(line, ast.If) and isinstance(line.body[0], ast.Return):
                whole: Any = line.test
                either = isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.Or)
                for test in whole.values if either else [whole]:
                    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
                        same[ast.unparse(test.left)] = ast.unparse(test.comparators[0])
                    found += self._after(test)
        numbers = self.formulas.numbers
        sizes = [read for read in numbers if _READ.fullmatch(read)]
        for read in sizes:
            local, _, of_it = read.partition(".")
            if local in same:  # one tensor with two names
                found.append(numbers[read] == self.formulas.number(f"{same[local]}.{of_it}"))
        return [*found, *(numbers[read] >= 0 for read in sizes)]

    def _after(self, test: ast.expr) -> list[Any]:
        """What holds after a test that was not true."""
        call = getattr(test, "operand", None)
        if isinstance(call, ast.Call) and (rows := self.compared.get(ast.unparse(call.func))):
            given = {*map(ast.unparse, call.args)}
            reads = {read: n for read, n in rows.items() if read.partition(".")[0] in given}
            return [self.formulas.number(read) == n for read, n in reads.items()]
        made = self._formula(test)
        if made is None and any(
            isinstance(n, ast.Name) and n.id in self.symbols for n in ast.walk(test)
        ):
            self.unread.append(ast.unparse(test))
        return [] if made is None else [self.formulas.compute(operator.not_, made)]

    def _formula(self, node: Any) -> Any:
        """None where it is about something else."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._locals.get(node.id)
        if _READ.fullmatch(read := ast.unparse(node)):
            return self.formulas.number(read)
        kind, parts = _taken_apart(node)
        made = [*map(self._formula, parts)]
        if kind not in _FUNCTIONS or any(m is None for m in made):
            return None
        compute = functools.partial(self.formulas.compute, _FUNCTIONS[kind])
        return compute(*made) if len(made) < 3 else functools.reduce(compute, made)


def _taken_apart(node: Any) -> tuple[Any, list[Any]]:
    """What is computed, and of what."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func), node.args
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) if len(node.ops) == 1 else None, [node.left, *node.comparators]
    if isinstance(node, ast.BoolOp):
        return type(node.op), node.values
    if isinstance(node, ast.BinOp):
        return type(node.op), [node.left, node.right]
    return (type(node.op), [node.operand]) if isinstance(node, ast.UnaryOp) else (None, [])
