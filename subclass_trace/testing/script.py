"""`Script`: what a rule's check writes its steps into. What ran is the counterexample.

A check never computes with torch by itself; it hands lines of Python to the script, which runs them
one by one in a namespace that holds ``torch``, the class, and the helpers of `probes`. When a check
fails, the lines that ran, with imports and the sources of the helpers that they use in front, are a
program that anyone can run.

    t.wrapper("x")                       x = TwoTensor(torch.arange(6.0).reshape(2, 3), ...)
                                         drawn by hypothesis
    t.run("y = x.detach()")              must work: an exception fails the rule
    t.require("z = x.add_(1)")           may be refused: an exception means that this example does
                                         not apply
    t.expect("z is x", "True")           compares two expressions; counted
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from hypothesis import assume
from hypothesis import strategies as s

from . import probes
from .render import HELPERS, both_sides, named_operations, program
from .strategies import Dense, dense_specs

if TYPE_CHECKING:
    from .subject import Subject

T = TypeVar("T")
#: why rules about numbers do not apply
NO_PROJECTION = "no projection to dense is known: give to_dense="


class NotApplicable(Exception):
    """This example says nothing about the rule; the argument says why."""


class NotBuilt(NotApplicable):
    """The class refuses these sizes, dtypes or strides; others may do."""


@dataclass
class Failure(Exception):
    """A rule does not hold.

    Attributes:
        what: what should hold, in words.
        got, expected: the two sides as text.
        lines: the lines that ran, from making the instance to the failure.
        subject: what was checked.
        operations: names of the operations that it takes, where that is known.
        call: the call of the sweep that shows it.
    """

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


@dataclass(frozen=True)
class _Made:
    """How an instance was made: its dense arguments, and the line."""

    specs: tuple[Dense, ...] = ()
    line: str = ""
    make: str = ""


class Script:
    """The lines of one example of one rule, their namespace, and the checks made so far."""

    def __init__(
        self,
        subject: Subject,
        draw: Callable[[s.SearchStrategy[Any]], Any],
        makes: tuple[str, ...] = (),
        dangerous: frozenset[str] = frozenset(),
    ) -> None:
        self.subject, self.makes, self.dangerous = subject, makes, dangerous
        self.names: dict[str, Any] = {**HELPERS, **subject.namespace, "torch": torch}
        self.lines: list[str] = []
        self.checks = 0
        self._draw = draw
        self._made: dict[str, _Made] = {}

    # ---- examples
    def draw(self, strategy: s.SearchStrategy[T]) -> T:
        """A value from any hypothesis strategy (an operation, a size); smaller ones come first in a
        counterexample."""
        value: T = self._draw(strategy)
        return value

    def choose(self, *options: T) -> T:
        """One of the options; counterexamples shrink to the first."""
        return self.draw(s.sampled_from(options))

    def assume(self, condition: object) -> None:
        """Drop this example unless the condition holds; hypothesis draws another. For what differs
        between examples."""
        assume(bool(condition))

    def only_if(self, condition: str, otherwise: str) -> None:
        """Evaluate an expression that is not recorded; for what the class is, or another rule
        tests.

        Raises:
            NotApplicable: it is false, or raises.
        """
        try:
            holds = bool(self.value(condition))
        except Exception as error:
            raise NotApplicable(
                f"{otherwise} ({type(error).__name__}: {_first_line(error)})"
            ) from error
        if not holds:
            raise NotApplicable(otherwise)

    def wrapper(
        self,
        name: str = "x",
        *,
        shaped: str | None = None,
        same: str | None = None,
        grad: bool = False,
        floating: bool = False,
        min_dims: int = 0,
        min_side: int = 0,
        around: str = "{0}",
    ) -> Any:
        """Draw an instance of the subject, bind it to ``name``, and return it.

        Args:
            shaped: the name of an earlier wrapper: same sizes, strides and dtype, other numbers.
            same: the name of an earlier wrapper: a fresh instance with the same numbers.
            grad: call ``requires_grad_()`` on it; implies floating. Refused by the class: the
                example does not apply.
            floating: only floating point dtypes.
            min_dims, min_side: at least so many dimensions, each of them at least so long (in the
                dense arguments).
            around: put around each dense argument of the factory, for nesting:
                ``"Pair({0}, {0}.clone())"``.

        Raises:
            NotApplicable: the subject has no such instances.
            NotBuilt: its factory refuses these arguments.
        """
        suffix = ".requires_grad_()" if grad else ""
        made = self._made.get(same or shaped or "")
        if made is None:
            make = self.choose(self.subject.make, *self.makes) if self.makes else self.subject.make
            made = _Made(self._specs(floating or grad, min_dims, min_side), make=make)
        elif shaped is not None:
            made = replace(made, specs=tuple(spec.other() for spec in made.specs))
        refused = "the class cannot be built like this"
        if around != "{0}":
            refused = f"its constructor does not take {around.format('x')} for x"
        for last in (False, True):
            made = replace(
                made, line=made.make.format(*[around.format(spec.code) for spec in made.specs])
            )
            self._made[name] = made
            try:
                self._do(f"{name} = {made.line}{suffix}", refused)
                break
            except NotApplicable as reason:
                plain = tuple(replace(spec, layout="contiguous") for spec in made.specs)
                if last or plain == made.specs:
                    raise NotBuilt(str(reason)) from reason
                made = replace(made, specs=plain)  # many classes take contiguous tensors only
        x = self.names[name]
        if not issubclass(type(x), self.subject.cls):
            raise NotBuilt(
                f"{made.line} gave a {type(x).__qualname__}, not a {self.subject.cls.__qualname__}"
            )
        if (floating or grad) and not (x.is_floating_point() or x.is_complex()):
            raise NotApplicable(f"its dtype is {x.dtype}")
        return x

    def _specs(self, floating: bool, min_dims: int, min_side: int) -> tuple[Dense, ...]:
        subject = self.subject
        if floating and not subject.floating:
            raise NotApplicable("it has no instances of a floating point dtype")
        shapes = subject.shapes(min_dims, min_side)
        if shapes.is_empty:
            what = f"{min_dims} dimensions" + (
                f" with sides of at least {min_side}" if min_side else ""
            )
            raise NotApplicable(f"it is not made of tensors of at least {what}")
        kinds = s.sampled_from(subject.floating if floating else subject.dtypes)
        specs: tuple[Dense, ...] = self.draw(dense_specs(subject.arity, shapes, kinds))
        return specs

    def dense(self, expression: str) -> str:
        """Source of the dense projection of a wrapper: a function P with P(op(x)) == op(P(x)) up to
        the tolerance.

        Raises:
            NotApplicable: the subject has none.
        """
        if self.subject.dense is None:
            raise NotApplicable(NO_PROJECTION)
        if expression in self._made:  # made by the factory: there the projection has to work
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
            raise NotApplicable(f"{type(error).__name__}: {_first_line(error)}") from error
        except Exception as error:
            raise self._failure(
                because, f"{type(error).__name__}: {_first_line(error)}", "no exception"
            ) from error

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
                text = f"{type(error).__name__}: {_first_line(error)}"
                raise self._failure(because, text, f"a value of `{source}`") from error
            sides.append(self.names[side])
        rtol, atol = self.subject.tolerance
        compared = [self._values(side) for side in sides] if self.subject.random else sides
        if not probes.same(compared[0], compared[1], rtol=rtol, atol=atol):
            self.lines += [
                'print("got:     ", got)',
                'print("expected:", expected)',
                f"assert same(got, expected, rtol={rtol}, atol={atol}), {because!r}",
            ]
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
            raise NotApplicable(
                f"{otherwise} ({type(error).__name__}: {_first_line(error)})"
            ) from error
        if not line.startswith(
            "assert "
        ):  # a precondition: it held, and the counterexample does not need it
            self.lines.append(line)

    def _exec(self, source: str) -> None:
        # The name makes the source of functions defined in a line findable (Dynamo and inspect look
        # it up).
        name = f"<rule {hash(source):x}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        if self.subject.random:
            torch.default_generator.manual_seed(0)
        exec(compile(source, name, "exec"), self.names)

    def _failure(self, what: str, got: str, expected: str) -> Failure:
        return Failure(what, got, expected, tuple(self.lines), self.subject)


def on(expression: str, op: str) -> str:
    """The source of an operation on ``x``, on another expression: ``on("d", "x.max(x)")`` is
    ``d.max(d)``."""
    return re.sub(r"\bx\b", expression, op)


def _first_line(error: BaseException) -> str:
    """The first line of a message, and the next one if the first only announces it (as Dynamo's
    do)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:count])[:300]
