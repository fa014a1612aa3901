"""`Script`: what a rule's check writes its steps into. What ran is the counterexample.

A check never computes with torch by itself; it hands lines of Python to the script, which runs them
one by one in a namespace that holds ``torch``, the class, and the helpers of `probes`. When a check
fails, the lines that ran, with imports and the sources of the helpers that they use in front, are a
program that anyone can run.

    t.wrapper("x")                       x = TwoTensor(torch.randn((3, 5), ...), ...)
                                         of the operands of this example (`operands.case`)
    t.run("y = x.detach()")              must work: an exception fails the rule
    t.require("z = x.add_(1)")           may be refused: an exception means that this example does
                                         not apply
    t.expect("z is x", "True")           compares two expressions; counted
"""

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch

from . import probes
from .evidence import Failure, shown
from .operands import SPREAD, NoOperands, Operands
from .render import HELPERS, both_sides, named_operations
from .subject import Subject

#: why rules about numbers do not apply
NO_PROJECTION = "no projection to dense is known: give to_dense="


class NotApplicable(Exception):
    """This example says nothing about the rule; the argument says why."""


class Script:
    """The lines of one example of one rule, their namespace, and the checks made so far."""

    def __init__(
        self, subject: Subject, operands: Operands, dangerous: frozenset[str] = frozenset()
    ) -> None:
        self.subject, self.operands, self.dangerous = subject, operands, dangerous
        self.names: dict[str, Any] = {**HELPERS, **operands.base}
        self.lines: list[str] = []
        self.checks = 0

    # ---- examples
    def wrapper(
        self,
        name: str = "x",
        like: str = "x",
        *,
        grad: bool = False,
        floating: bool = False,
        min_dims: int = 0,
        around: str = "{0}",
    ) -> Any:
        """Bind a fresh instance of the subject to ``name``, and return it.

        Args:
            like: the operand that it is: ``x``, ``y`` (of the same sizes and context, with other
                numbers), ``m`` (of other sizes).
            grad: call ``requires_grad_()`` on it; implies floating. Refused by the class: the
                example does not apply.
            floating: of a floating point dtype.
            min_dims: it has so many dimensions, and sides of 2 or more.
            around: put around each dense argument of the factory, for nesting:
                ``"Pair({0}, {0}.clone())"``.

        Raises:
            NotApplicable: its factory refuses these arguments.
            NoOperands: this example is of another kind.
        """
        ops = self.operands
        if min_dims and (len(ops.shape) < min_dims or min(ops.shape) < 2):
            raise NoOperands("")
        refused = "the class cannot be built like this"
        if around != "{0}":
            refused = f"its constructor does not take {around.format('x')} for x"
        if like not in ops.gaps:
            raise NotApplicable(refused)
        self._do(f"{name} = {ops.line(like, around)}{'.requires_grad_()' * grad}", refused)
        x = self.names[name]
        if not isinstance(x, torch.Tensor):
            raise NotApplicable(f"its requires_grad_ gives a {type(x).__qualname__}")
        if (floating or grad) and not (x.is_floating_point() or x.is_complex()):
            raise NoOperands("")
        return x

    def larger(self, name: str, than: str = "x") -> None:
        """Bind an instance of other sizes, and as many of them."""
        try:
            self.wrapper(name, around="torch.cat([{0}, {0}])")
        except NotApplicable:  # not every class has instances of twice the size
            self.wrapper(name, "m")
        same = f"({than}.dim(), {than}.dtype) == ({name}.dim(), {name}.dtype)"
        if not self.value(f"{same} and {than}.shape != {name}.shape"):
            raise NoOperands("")

    def only_if(self, condition: str, otherwise: str) -> None:
        """Evaluate an expression that is not recorded; for what the class is, or another rule
        tests.

        Raises:
            NotApplicable: it is false, or raises.
        """
        try:
            holds = bool(self.value(condition))
        except Exception as error:
            raise NotApplicable(f"{otherwise} ({_said(error)})") from error
        if not holds:
            raise NotApplicable(otherwise)

    def dense(self, expression: str) -> str:
        """Source of the dense projection of a wrapper: a function P with P(op(x)) == op(P(x)) up to
        the tolerance.

        Raises:
            NotApplicable: the subject has none.
        """
        if self.subject.dense is None:
            raise NotApplicable(NO_PROJECTION)
        if expression == "x":  # made by the factory: there the projection has to work
            self.only_if(
                f"{self.subject.dense.format(expression)} is not None",
                "its projection to dense fails",
            )
            if self.subject.valid is not None:
                self.only_if(
                    f"bool({self.subject.valid.format(expression)}.all())",
                    "some of its elements mean nothing",
                )
        return self.subject.dense.format(expression)

    def project(self, name: str) -> str:
        """Source of the dense value of a result: its projection if it is of the class, and itself
        if it is not."""
        return self.dense(name) if isinstance(self.names[name], self.subject.cls) else name

    # ---- steps
    def run(
        self,
        line: str,
        because: str = "this must work",
        but: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> None:
        """Run a line that must not raise.

        Args:
            but: errors by which somebody else than the class says no.

        Raises:
            Failure: it raised.
            NotApplicable: it raised an error of ``but``.
        """
        self._safe(line)
        self.lines.append(line)
        try:
            self._exec(line)
        except but as error:
            raise NotApplicable(_said(error)) from error
        except Exception as error:
            raise self._failure(because, _said(error), "no exception") from error

    def do(self, *lines: str) -> None:
        """Run lines; raises what they raise."""
        for line in lines:
            self._exec(line)
            self.lines.append(line)

    def require(self, line: str, otherwise: str | None = None) -> None:
        """Run a line that the class may refuse.

        Raises:
            NotApplicable: it raised.
        """
        self._do(line, otherwise or f"it refuses `{line}`")

    def attempt(self, line: str) -> bool:
        """Run a line that the class may refuse; False (and the line is forgotten) if it raised."""
        try:
            self.require(line)
        except NotApplicable:
            return False
        return True

    def each(self, operations: Iterable[str], steps: Callable[[str], None], otherwise: str) -> None:
        """Take steps for each operation that the class does not refuse; a counterexample has those
        of the failing one only.

        Raises:
            NotApplicable: no check was made.
        """
        before, said = len(self.lines), otherwise
        for op in operations:
            try:
                steps(op)
            except NotApplicable as reason:
                said = f"{otherwise} ({reason})"
            del self.lines[before:]
        if not self.checks:
            raise NotApplicable(said)

    def only_if_near(self, got: str, expected: str, otherwise: str) -> None:
        """Go on if two expressions agree up to the tolerance: else another rule is broken."""
        rtol, atol = self.subject.tolerance
        self.require(f"assert same({got}, {expected}, {rtol}, {atol})", otherwise)

    def value(self, expression: str) -> Any:
        """The value of an expression, not recorded: for decisions. Raises what it raises."""
        self._safe(expression)
        return eval(compile(expression, "<rule>", "eval"), self.names)

    # ---- checks
    def expect(
        self, got: str, expected: str, because: str = "the two sides must be the same"
    ) -> None:
        """Compare two expressions: tensors with the subject's tolerance, everything else by ``==``.
        Counted.

        Raises:
            Failure: they differ, or one of them raised.
        """
        self.checks += 1
        sides = []
        for side, source in (("got", got), ("expected", expected)):
            self._safe(source)
            self.lines.append(f"{side} = {source}")
            try:
                self._exec(self.lines[-1])
            except Exception as error:
                wanted = f"a value of `{source}`"
                raise self._failure(because, _said(error), wanted) from error
            sides.append(self.names[side])
        rtol, atol = self.subject.tolerance
        compared = [self._values(side) for side in sides] if self.subject.random else sides
        if not probes.same(compared[0], compared[1], rtol=rtol, atol=atol):
            del self.lines[-2:]
            *both, last = shown(got, expected, (rtol, atol))
            self.lines += [*both, f"{last}, {because!r}"]
            raise self._failure(because, *both_sides(*sides))
        del self.lines[-2:]

    def passed(self) -> None:
        """Count a check that needs no comparison: a refusal that is a right answer."""
        self.checks += 1

    # ---- inside
    def _values(self, side: Any) -> Any:
        """Dense values of wrappers: where numbers are drawn, what is inside may differ."""
        if isinstance(side, (list, tuple)):
            return [self._values(v) for v in side]
        if not isinstance(side, self.subject.cls) or self.subject.dense is None:
            return side
        return eval(self.subject.dense.format("_side"), {**self.names, "_side": side})

    def _safe(self, source: str) -> None:
        """Only go on if a line takes no operation that hangs or crashes: the sweep has said so."""
        if bad := self.dangerous & named_operations(source):
            raise NotApplicable(f"{', '.join(sorted(bad))} hangs or crashes")

    def _do(self, line: str, otherwise: str) -> None:
        self._safe(line)
        try:
            self._exec(line)
        except Exception as error:
            raise NotApplicable(f"{otherwise} ({_said(error)})") from error
        # a precondition held, and the counterexample does not need it
        self.lines += [line] * (not line.startswith("assert "))

    def _exec(self, source: str) -> None:
        if self.subject.random:
            torch.default_generator.manual_seed(SPREAD)
        exec(_code(source), self.names)

    def _failure(self, what: str, got: str, expected: str) -> Failure:
        return Failure("", what, got, expected, tuple(self.lines), self.subject)


@functools.lru_cache(4096)
def _code(source: str) -> CodeType:
    # The name makes the source of functions defined in a line findable (Dynamo and inspect look
    # it up).
    name = f"<rule {hash(source):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")


def on(expression: str, op: str) -> str:
    """The source of an operation on ``x``, on another expression: ``on("d", "x.max(x)")`` is
    ``d.max(d)``."""
    return re.sub(r"\bx\b", expression, op)


def _said(error: BaseException) -> str:
    """The first line of a message, and the next one if the first only announces it (as Dynamo's
    do), or what Dynamo got."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    inside = re.search(r": got (\w+\(.*)", str(error))
    said = inside[1] if inside else " ".join(lines[:count])
    return f"{type(error).__name__}: {said[:300]}"
