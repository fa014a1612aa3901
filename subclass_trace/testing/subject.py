"""What is checked: a class, and how to write down fresh instances of it.

A subject is text: an expression with a gap for each dense argument (``"TwoTensor({0}, {1})"``), the
imports and set-up lines that it needs, and, where there is one, an expression for the projection to
dense (``"{0}.dequantize()"``). So the lines that make an instance are the same in the check and in
the counterexample that it prints.
"""

from __future__ import annotations

import ast
import inspect
import string
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import OptionError
from .calls import NEEDED, OPERANDS

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


@dataclass(frozen=True, eq=False)
class Subject:
    """A class under test.

    Attributes:
        cls: the class.
        make: expression with ``{0}``, ``{1}`` ... for the dense arguments.
        arity: the number of dense arguments.
        dense: expression with ``{0}`` for a wrapper that gives a dense tensor, or None. It must
            commute with the
            operations of the class up to ``tolerance``: ``x.a`` is one for a pair of tensors.
        imports, setup: lines in front of a program.
        namespace: what these lines and ``make`` need, ready to be used by ``exec``.
        sizes: all shapes of the dense arguments; empty for any.
        dtypes: dtypes of the dense arguments, the plainest first.
        tolerance: rtol and atol wherever numbers are compared.
        notes: comments in front of a program, such as why it cannot run on its own.
        derived: ``make`` was found by trying constructors: nobody has named it.
        programs: calls that must work, beside those of the table: expressions over ``x`` and ``y``.
        random: it draws random numbers by design: each call is seeded.
        valid: expression with ``{0}`` for a wrapper: the mask of the elements that mean something.
        use: ``weight``, ``parameter``, ``activation``, ``input``, or nothing: inferred.
        known: what has been found out about it: number of an example -> operands.
    """

    cls: type
    make: str
    arity: int = 1
    dense: str | None = None
    imports: tuple[str, ...] = ()
    setup: str = ""
    namespace: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[torch.dtype, ...] = DTYPES
    tolerance: tuple[float, float] = (1e-5, 1e-6)
    notes: tuple[str, ...] = ()
    derived: bool = False
    programs: tuple[str, ...] = ()
    random: bool = False
    valid: str | None = None
    use: str = ""
    known: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        """``module.Class``."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def floating(self) -> tuple[torch.dtype, ...]:
        """The dtypes that can require grad."""
        return tuple(d for d in self.dtypes if d.is_floating_point)

    @property
    def made_by(self) -> str:
        """How instances are made, in words."""
        how = " (found by trying constructors; factory= names another)" if self.derived else ""
        return f"made by {self.make}{how}"


@dataclass(frozen=True, eq=False)
class Options:
    """What an author says about a class.

    Attributes:
        factory: ``TwoTensor``, ``Float8Tensor.from_hp`` or ``"TwoTensor({0}, {0} * 2)"``; the class
            itself by default. Expressions may use ``torch``, what ``imports`` and ``setup`` define,
            and the names of the module of the class.
        to_dense: the projection to dense, callable or expression.
        sizes, dtypes: of the dense arguments.
        tolerance: rtol and atol.
        imports, setup: lines to run once in front of everything (a device mesh).
        programs: calls that must work and give the dense value: functions of ``x, y`` (two
            wrappers; ``p`` is a dense tensor like them, see `calls`), or expressions over these
            names.
        random: operations draw random numbers by design: each is seeded, and its numbers are
            compared up to the tolerance.
        valid: the mask of the elements of a wrapper that mean something, callable or expression;
            others are not compared.
        use: what a model does with it: ``weight``, ``parameter``, ``activation`` or ``input``; what
            that cannot do without must work.

    Raises:
        OptionError: the tolerance is no pair of numbers >= 0, or there is no such use.
    """

    factory: str | Callable[..., torch.Tensor] | None = None
    to_dense: str | Callable[[Any], torch.Tensor] | None = None
    sizes: Sequence[tuple[int, ...]] = ()
    dtypes: Sequence[torch.dtype] = DTYPES
    tolerance: tuple[float, float] = (1e-5, 1e-6)
    imports: Sequence[str] = ()
    setup: str = ""
    programs: Sequence[str | Callable[..., Any]] = ()
    random: bool = False
    valid: str | Callable[[Any], torch.Tensor] | None = None
    use: str = ""

    def __post_init__(self) -> None:
        if self.use and self.use not in NEEDED:
            raise OptionError(
                f"{self.use!r} is no use of a wrapper",
                expected=", ".join(NEEDED),
                fix="leave it out: it is inferred",
            )
        for name, kind, text in (
            ("dtypes", torch.dtype, "dtypes, such as [torch.float32]"),
            ("sizes", (tuple, list), "sizes, such as [(3, 4)]"),
        ):
            given = getattr(self, name)
            if not isinstance(given, (tuple, list)) or not all(isinstance(v, kind) for v in given):
                raise OptionError(
                    f"{name}= cannot be used", expected=f"a list of {text}", got=given
                )
        if len(self.tolerance) != 2 or not all(0 <= t < float("inf") for t in self.tolerance):
            what, got = "(rtol, atol), numbers >= 0", self.tolerance
            raise OptionError("tolerance cannot be used", expected=what, got=got)


def subject_of(
    cls: type, factory: str | Callable[..., torch.Tensor] | None = None, **options: Any
) -> Subject:
    """A subject from a factory, given as a callable or as an expression with gaps.

    Args:
        options: see `Options`.

    Raises:
        OptionError: the number of arguments cannot be found, an expression is none, or an option
            cannot be used.
    """
    said = Options(factory, **options)
    source = _Source(said.imports, said.setup)
    source.name_of(cls)
    make_ = cls if factory is None else factory
    make, count = source.factory(make_)
    dense = source.of_wrapper(said.to_dense, "to_dense", "'{0}.dequantize()'")
    mask = source.of_wrapper(said.valid, "valid", "'{0}.mask'")
    texts = tuple(map(source.program, said.programs))
    gaps = [f"_{k}" for k in range(count or 1)]
    homes = (getattr(v, "__module__", None) for v in (cls, make_) if v is not torch.Tensor)
    for home in dict.fromkeys(homes):
        for text in (*(t.format(*gaps) for t in (make, dense, mask) if t is not None), *texts):
            source.names_of_module(text, home)
    return Subject(
        cls, make, count, dense, tuple(dict.fromkeys(source.lines)), said.setup, source.names,
        tuple(map(tuple, said.sizes)), tuple(said.dtypes), said.tolerance, tuple(source.notes),
        programs=texts, random=said.random, valid=mask, use=said.use,
    )  # fmt: skip


class _Source:
    """The lines in front of a program, and what they define.

    Attributes:
        names: what the lines define.
        lines: imports.
        notes: comments.
    """

    def __init__(self, imports: Sequence[str], setup: str) -> None:
        self.names: dict[str, Any] = {"torch": torch}
        self.lines, self.notes = list(imports), list[str]()
        for line in (*imports, setup):
            exec(line, self.names)

    def factory(self, make: str | Callable[..., Any]) -> tuple[str, int]:
        """The expression that makes an instance, and how many dense tensors it takes."""
        if isinstance(make, str):
            return make, _gaps(make, "factory")
        count = _arguments(make)
        return f"{self.name_of(make)}({', '.join(f'{{{k}}}' for k in range(count))})", count

    def of_wrapper(
        self, value: str | Callable[..., Any] | None, option: str, example: str
    ) -> str | None:
        """An expression with one gap, for a wrapper.

        Raises:
            OptionError: it has others.
        """
        text = f"{self.name_of(value, option)}({{0}})" if callable(value) else value
        if text is not None and _gaps(text, option) != 1:
            what = f"{option} must have one gap, {{0}} for the wrapper"
            raise OptionError(what, got=text, fix=example)
        return text

    def program(self, program: str | Callable[..., Any]) -> str:
        """The source of a call that the author has handed in.

        Raises:
            OptionError: it is no Python.
        """
        if callable(program):
            parameters = list(inspect.signature(program).parameters)
            known = set(parameters) <= OPERANDS.keys()
            given = parameters if known else list(OPERANDS)[: len(parameters)]
            return f"{self.name_of(program, 'program')}({', '.join(given)})"
        try:
            ast.parse(program)
        except SyntaxError as error:
            raise OptionError(
                f"the program {program!r} is no Python",
                got=error,
                fix="write a call over x, y and p",
            ) from error
        return program

    def name_of(self, value: Any, unnamed: str = "factory") -> str:
        """The text that stands for a class or function in a program; adds its import, or a note
        that it has none.

        Args:
            unnamed: what a lambda is called.
        """
        if inspect.ismethod(value) and isinstance(value.__self__, type):
            return f"{self.name_of(value.__self__)}.{value.__name__}"
        module, qualname = (
            getattr(value, "__module__", None),
            getattr(value, "__qualname__", unnamed),
        )
        found: Any = sys.modules.get(module or "")
        for part in qualname.split("."):
            found = getattr(found, part, None)
        head = qualname.split(".")[0]
        if found is value and module != "__main__":
            self.lines.append(f"from {module} import {head}")
            self.names[head] = getattr(sys.modules[module or ""], head)
            return str(qualname)
        name = unnamed if "lambda" in qualname else qualname.split(".")[-1]
        while name in self.names and self.names[name] is not value:
            name += "_"
        self.names[name] = value
        self.notes.append(_NOT_IMPORTED.format(name))
        return name

    def names_of_module(self, text: str, home: str | None) -> None:
        """Make known what an expression takes of the module ``home``; adds the imports."""
        module = vars(sys.modules[home]) if home in sys.modules else {}
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        for name in sorted(name for name in used if name not in self.names and name in module):
            self.names[name] = module[name]
            if home == "__main__":
                self.notes.append(_NOT_IMPORTED.format(name))
            else:
                self.lines.append(f"from {home} import {name}")


_NOT_IMPORTED = "{} cannot be imported: put its definition in front to run this"


def _gaps(text: str, option: str) -> int:
    """How many gaps an expression has.

    Raises:
        OptionError: its gaps are not {0}, {1} ..., or it is no Python.
    """
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text.format(*(f"_{k}" for k in range(len(fields)))), f"<{option}>", "eval")
    except (ValueError, IndexError, KeyError, SyntaxError) as error:
        raise OptionError(
            f"the {option} {text!r} is no Python expression with gaps",
            got=error,
            fix="write {0}, {1} ... for the dense tensors (to_dense: {0} for the wrapper), and "
            "{{ }} for braces",
        ) from error
    return len(fields)


def _arguments(factory: Callable[..., Any]) -> int:
    """How many dense tensors a factory takes: its parameters without defaults, without ``cls`` and
    ``self``."""
    target: Any = factory
    if isinstance(factory, type):
        target = factory.__init__  # type: ignore[misc]
        target = target if inspect.isfunction(target) else factory.__new__
    try:
        parameters = list(inspect.signature(target).parameters.values())[
            isinstance(factory, type) :
        ]
    except (TypeError, ValueError):
        parameters = []
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if not needed:
        raise OptionError(
            f"cannot see how many dense tensors {factory!r} takes",
            fix="give an expression such as 'Cls({0})'",
        )
    return len(needed)
