"""What the calls of the sweep are made on: how each operand is written down, and fresh instances of
them.

    x = MyTensor(torch.randn((2, 3), generator=torch.Generator().manual_seed(1)))
    y = MyTensor(torch.rand((2, 3), generator=torch.Generator().manual_seed(2)).mul(1.5).add(0.5),
    scale=2.0)

``y`` is positive, and has another context where the factory has a number that can be another one.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from types import CodeType
from typing import Any, NamedTuple

import torch

from .probes import copied, leaves, meta, near, same_metadata
from .subject import Subject

#: what calls may name besides operands
MODULES = {
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "nn": "from torch import nn",
    "copy": "import copy",
    "io": "import io",
    "pickle": "import pickle",
}
#: a seed of numbers whose largest and smallest do not stand first in each row and column
SPREAD = 241
LAYOUTS = ("contiguous", "transposed", "sliced")
#: small sizes, and one that not only small loops reach
SMALL = (
    (), (2,), (3,), (4,), (2, 2), (2, 3), (2, 4), (3, 2), (4, 2), (4, 4), (2, 2, 2),
    (2, 3, 4), (1, 4), (0,), (0, 2),
)  # fmt: skip
LARGE = (9, 8)
_GENERATOR = "generator=torch.Generator().manual_seed({})"


class NoOperands(Exception):
    """There are no instances of this kind; the argument says why."""


def all_shapes() -> Iterator[tuple[int, ...]]:
    """Every shape of up to three sides of up to 4, one of odd sides, and some of four sides."""
    for dims in range(4):
        yield from product((2, 3, 4, 1, 0), repeat=dims)
    yield from ((3, 5), (2, 2, 2, 2), (2, 3, 2, 4), (1, 2, 3, 3))


def gap(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    positive: bool = False,
    layout: str = "contiguous",
) -> str:
    """The source of a dense tensor: numbers of both signs (those of the first seeds are larger), or
    from 0.5 to 2; contiguous, with strides reversed, or with a storage offset."""
    if layout == "transposed" and len(shape) == 2:
        return f"{gap(shape[::-1], dtype, seed, positive)}.t()"
    if layout == "sliced" and shape:
        return f"{gap((shape[0] + 1, *shape[1:]), dtype, seed, positive)}[1:]"
    if dtype.is_floating_point or dtype.is_complex:
        kind = "rand" if positive else "randn"
        wanted = f", dtype={dtype}" if dtype in (torch.float64, torch.complex64) else ""
        text = f"torch.{kind}({shape}, {_GENERATOR.format(seed)}{wanted})"
        text += ".mul(1.5).add(0.5)" if positive else ".mul(4)" if seed % 10 < 5 else ""
        return text if wanted or dtype is torch.float32 else f"{text}.to({dtype})"
    start = 1 if positive else -2
    numbers = f"torch.arange({start}, {start + math.prod(shape)}).reshape({shape})"
    if dtype is torch.bool:
        return f"({numbers} % {2 + positive} == 0)"
    return numbers if dtype is torch.int64 else f"{numbers}.to({dtype})"


class Variant(NamedTuple):
    """An instance of a factory with another constant.

    Attributes:
        line: its source.
        value: the instance.
        make: the factory.
        number: the constant is a number.
    """

    line: str
    value: Any
    make: str
    number: bool

    @staticmethod
    def makes(variants: Iterable[Variant]) -> tuple[str, ...]:
        """Factories whose instances go with those of the subject: they have another number."""
        return tuple(v.make for v in variants if v.number)


class Operands:
    """The operands of one size, dtype and layout.

    Attributes:
        lines: name -> the source of it.
        wrappers: the names that stand for wrappers.
        shared: name -> an instance that calls use which write nothing.
        dense: name of a wrapper -> its dense value.
        judged: are values compared: is there a projection to dense?
        fits: the dense value of a fresh wrapper has its sizes.
        agree: it has its dtype.
        first: names and context of ``x``, before other instances were made.
        told: a context is equal to its copy: else that is ST106, and none are compared.
        variants: instances like ``y`` with another constant of the factory.
        unlike: such instances of other sizes or names.
        infinite: there are infinities in ``x``.
        same_context: the source of ``y`` with the context of ``x``, if the factory has another one.
    """

    def __init__(
        self,
        subject: Subject,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        layout: str = "contiguous",
    ) -> None:
        self.subject, self.layout, self.shape, self.dtype = subject, layout, shape, dtype
        self.gaps: dict[str, list[str]] = {}
        self.base = {**subject.namespace}
        for line in MODULES.values():
            exec(line, self.base)
        self.lines: dict[str, str] = {}
        self.shared: dict[str, Any] = {}
        self.same_context: str | None = None
        self.variants: list[Variant] = []
        self.unlike: list[Variant] = []
        self._codes: dict[str, CodeType] = {}
        projection = (subject.dense or "None").format("_x")
        self._projection = compile(projection, "<to_dense>", "eval")
        self.judged = subject.dense is not None
        self._wrapper("x", shape, dtype, SPREAD)
        self.fits = self._fits("x")
        x = self.shared["x"]
        self.first = (_names(x), copied(_context(x)))
        self.told = bool(same_metadata(_context(x), self.first[1], type(x)))
        self._wrapper("y", shape, dtype, 2)
        for name, size in (("m", shape[::-1]), ("a", (2, *shape))):
            try:
                self._wrapper(name, size, dtype, 3)
            except NoOperands:  # calls with it are not tried
                continue
            if self.fits and not self._fits(name):
                for names in (self.lines, self.shared, self._codes):
                    del names[name]
        self.wrappers = frozenset(self.lines)
        self._vary()
        self._plain(self.shared["x"])
        self.agree = self.judged and self.project(self.shared["x"]).dtype == self.shared["x"].dtype
        self.dense = {name: self._dense_of(name) for name in self.wrappers}
        self.infinite = bool(self.dense["x"].isinf().any())

    # ---- how they are written
    def _wrapper(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> None:
        positive = name == "y" and self.subject.valid is None
        self.gaps[name] = [
            gap(shape, dtype, seed + 10 * k, positive, self.layout)
            for k in range(self.subject.arity)
        ]
        self._define(name, self.line(name), self.subject.cls)

    def line(self, name: str, around: str = "{0}") -> str:
        """The source of a wrapper of the context of ``x``, with something around each dense
        argument."""
        return self.subject.make.format(*map(around.format, self.gaps[name]))

    def _define(self, name: str, line: str, kind: type = torch.Tensor) -> None:
        try:
            code = compile(line, f"<{name}>", "eval")
            value = self._made(code)
            if not isinstance(value, kind):
                raise TypeError(f"it is a {type(value).__qualname__}")
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise NoOperands(f"the class cannot be built like this ({said})") from error
        self.lines[name], self.shared[name], self._codes[name] = line, value, code

    def _vary(self) -> None:
        """Give ``y`` another context, if the factory has a number for it.

        Names, flags and tuples may be such that two instances do not fit together: they make
        variants alone.
        """
        plain, before, chosen = self.lines["y"], self.shared["y"], self.lines["y"]
        for make, number in varied(self.subject.make, self.base):
            try:
                self._define("y", make.format(*self.gaps["y"]))
                other = self.shared["y"]
                if meta(other) != meta(before) or _names(other) != _names(before):
                    self.unlike.append(Variant(self.lines["y"], other, make, False))
                    continue
                equal = same_metadata(_context(other), _context(before), type(other))
                within = equal and not all(map(near, leaves(other), leaves(before)))
            except Exception:  # this one has another meaning
                continue
            self.variants.append(Variant(self.lines["y"], other, make, number))
            if number and (within or not equal) and chosen == plain:
                chosen = self.lines["y"]
                self.same_context = None if equal else plain
        self._define("y", chosen)

    def _plain(self, x: torch.Tensor) -> None:
        shape, dtype = tuple(x.shape), x.dtype
        lines = {
            "p": gap(shape, dtype, 5),
            "q": gap(shape[::-1], dtype, 6),
            "s": f"torch.tensor(1.5).to({dtype})",
        }
        if shape:
            rows, columns, count = shape[0], shape[-1], math.prod(shape)
            lines |= {
                "u": gap((2, *shape), dtype, 9),
                "r": gap((columns,), dtype, 7),
                "l": gap((rows,), dtype, 8),
                "c": f"torch.arange({count}).reshape({shape}) % 2 == 0",
                "i": f"torch.arange({rows}).flip(0) % {max(1, min(rows, columns))}",
                "j": f"(torch.arange({count}).reshape({shape}) % {columns}).flip(-1)",
            }
        for name, line in lines.items():
            self._define(name, line)

    def _fits(self, name: str) -> bool:
        x = self.shared[name]
        try:
            return not self.judged or self.project(x).shape == x.shape
        except Exception:  # sizes that the factory takes, and the class does not have
            return False

    def _dense_of(self, name: str) -> torch.Tensor:
        x = self.shared[name]
        if not self.judged:
            text = gap(tuple(x.shape), x.dtype, ord(name), name == "y")
            made: torch.Tensor = eval(text, {"torch": torch})
            return made
        return self.project(x).to(x.dtype)

    # ---- using them
    def unchanged(self, x: Any, names: list[str], context: Any) -> bool:
        """Has a wrapper these names and this context?"""
        now, context_now = x.__tensor_flatten__()
        told = self.told and not same_metadata(context_now, context, type(x))
        return list(now) == names and not told

    def fresh(self, names: Iterator[str] | frozenset[str]) -> dict[str, Any]:
        """New instances of these operands."""
        return {name: self._made(self._codes[name]) for name in names}

    def _made(self, code: CodeType) -> Any:
        if self.subject.random:
            torch.default_generator.manual_seed(SPREAD)
        return eval(code, self.base)

    @contextlib.contextmanager
    def instead(self, name: str, line: str) -> Iterator[None]:
        """Another instance stands under this name."""
        tables: tuple[dict[str, Any], ...] = (self.lines, self.shared, self._codes, self.dense)
        kept = [table[name] for table in tables]
        try:
            self._define(name, line)
            self.dense[name] = self._dense_of(name)
            yield
        finally:
            for table, value in zip(tables, kept, strict=True):
                table[name] = value

    def made(self, line: str) -> Any:
        """An instance from a line of source."""
        return self._made(compile(line, "<operand>", "eval"))

    def copies(self, names: frozenset[str]) -> dict[str, Any]:
        """The operands of the dense program."""
        return {n: (self.dense[n] if n in self.wrappers else self.shared[n]).clone() for n in names}

    def project(self, x: Any) -> torch.Tensor:
        """The dense value of a wrapper, apart from the wrapper. Raises what the projection
        raises."""
        assert self.subject.dense is not None
        with torch.no_grad():
            value: torch.Tensor = eval(self._projection, {**self.base, "_x": x})
            return value.detach().clone()


def operands_of(subject: Subject) -> Operands:
    """Operands of the smallest size that shows most: a matrix of odd sides that is not square,
    floating point.

    Raises:
        NoOperands: nothing can be built.
    """
    dtype = (*subject.floating, *subject.dtypes)[0]
    plain = sorted(subject.sizes, key=_plainness) or [(3, 5), (2, 3), (4, 4), (4,), ()]
    said: Exception | None = None
    found: Operands | None = None
    for shape in plain[:8]:
        try:
            found = Operands(subject, shape, dtype)
        except Exception as error:  # whatever the class does when it is built or projected
            said = said or error
            continue
        if found.fits:
            break
    if found is None:
        raise NoOperands(f"{type(said).__name__}: {said}".splitlines()[0]) from said
    return found


def _plainness(shape: tuple[int, ...]) -> tuple[Any, ...]:
    square = len(set(shape)) != len(shape)
    even = sum(n % 2 == 0 for n in shape)
    return (min(shape, default=1) < 2, len(shape) != 2, square, even, math.prod(shape), shape)


def case(subject: Subject, number: int, makes: tuple[str, ...] = ()) -> Operands:
    """The operands of one example: the plainest first, then other sizes, dtypes, layouts and, every
    other time, contexts. Those of a number are the same in each run.

    Args:
        makes: factories of instances with other contexts.

    Raises:
        NoOperands: the class has no such instances.
    """
    if number not in subject.known:
        try:
            subject.known[number] = _case(subject, number, makes)
        except Exception as error:  # sizes, dtypes or layouts that the class does not have
            subject.known[number] = f"{type(error).__name__}: {error}".splitlines()[0]
    found: Operands | str = subject.known[number]
    if isinstance(found, str):
        raise NoOperands(found.removeprefix("NoOperands: "))
    return found


def _case(subject: Subject, number: int, makes: tuple[str, ...]) -> Operands:
    if not number:
        return operands_of(subject)
    made = replace(subject, make=(subject.make, *makes)[(number - 1) % (1 + len(makes))])
    return Operands(made, *size_of(subject, number - 1), LAYOUTS[(number - 1) % len(LAYOUTS)])


def size_of(subject: Subject, number: int) -> tuple[tuple[int, ...], torch.dtype]:
    """Size and dtype of an example: each dtype comes, and larger sizes as often as small ones; a
    square first, which goes with its transpose."""
    shapes = sorted(subject.sizes or (*SMALL, LARGE), key=lambda shape: (len(shape), shape))
    squares = [s for s in shapes if len(s) == 2 and s[0] == s[1] > 1]
    large = sorted(shapes, key=lambda shape: (len(shape) == 2, math.prod(shape)))[-4:]
    shape = large[number // 2 % len(large)] if number % 2 else random.Random(number).choice(shapes)
    dtype = subject.dtypes[(number + 1) % len(subject.dtypes)]
    return (squares[-1] if squares and not number else shape), dtype


def varied(make: str, names: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Factories with one other constant each, and whether it is a number: of those that the
    expression has, then of those that its signature has.
    """
    tree = ast.parse(_named(make), mode="eval")
    call = tree.body
    if not isinstance(call, ast.Call):
        return
    slots: list[Any] = [(vars(k), "value") for k in call.keywords]
    slots += [(call.args, k) for k in range(len(call.args))]
    for holder, key in slots:
        kept = holder[key]
        for other in _others(kept):
            holder[key] = other
            yield _gapped(ast.unparse(tree)), _is_number(kept)
        holder[key] = kept
    try:
        callee = eval(compile(ast.Expression(call.func), "<factory>", "eval"), names)
        parameters = inspect.signature(callee).parameters
    except Exception:  # of C, or no name
        return
    given = {k.arg for k in call.keywords} | set(list(parameters)[: len(call.args)])
    for name, p in parameters.items():
        if name in given or type(p.default) not in _KINDS:
            continue
        kept = ast.parse(repr(p.default), mode="eval").body
        for other in _others(kept):
            call.keywords.append(ast.keyword(name, other))
            yield _gapped(ast.unparse(tree)), _is_number(kept)
            call.keywords.pop()


#: constants of which there is another one
_KINDS = (int, float, bool, str, tuple, list)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _others(node: ast.expr) -> list[ast.expr]:
    """The source of other constants of the kind; none where there is no constant."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return []
    if type(value) not in _KINDS or (other := other_constant(value)) == value:
        return []
    others = [other, other + 1] if type(value) is int else [other]
    return [ast.parse(repr(o), mode="eval").body for o in others]


def other_constant(value: Any) -> Any:
    """Another number, flag or text; a list or tuple in another order, or with another last item."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 2 + (value == 0)
    if isinstance(value, str):
        return f"{value}_"
    if not isinstance(value, (tuple, list)) or not value:
        return value
    if value[::-1] != value:
        return value[::-1]
    return type(value)([*value[:-1], other_constant(value[-1])])


def shifted(make: str, by: int) -> str:
    """A factory whose gaps are others: ``f({0})`` as ``f({1})``."""
    return _gapped(make.format(*(f"_gap{k + by}_" for k in range(by))))


def _named(make: str) -> str:
    return make.format(*(f"_gap{k}_" for k in range(8)))


def _gapped(text: str) -> str:
    text = text.replace("{", "{{").replace("}", "}}")
    for k in range(8):
        text = text.replace(f"_gap{k}_", f"{{{k}}}")
    return text


def _names(x: Any) -> list[str]:
    return list(x.__tensor_flatten__()[0])


def _context(x: Any) -> Any:
    return x.__tensor_flatten__()[1]
