"""What Python code asks of symbolic numbers beside arithmetic: their text, their hash, their class, methods of ``int``.

Torch's symbols have no good answers: the text of a size is ``"s73"``, it has no hash, it is no ``int``. While the user
function runs, the user's code gets those of the number that the symbol stands for (torch's own code gets torch's):

- the class is that of the number, so that ``isinstance(x.shape[0], int)`` is true, and the size stays a symbol
  (``type(n)``, which no class can answer otherwise, in code that the function reaches: `types_as_eager`);
- for all else the size has to be a number: the function is captured again with that size as one (`NeedsNumbers`), and
  guarded like any other number. In a backward, and where another tracer has made the symbols (Dynamo), the size is
  fixed where it is asked for;
- a number that depends on values inside tensors (``.item()``) has no answer before the call: a typed error
  (``math.sqrt`` of one is a symbol).

``print``, logs and debuggers show the symbol.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from .. import _torch
from ..errors import DataDependentError, UnsupportedError
from ..subclass.paths import Path
from ..subclass.protocol import Kind, kind_of
from ..subclass.spec import Spec, WrapperSpec, is_ragged
from ..subclass.visit import visit
from .inputs import TracedInput, TracedInputs
from .memory import TEXTS, refuse_text
from .number_steps import Steps
from .session import Session
from .user_code import TORCH_FILES, asking_frame, asking_line, user_line

Tensor = torch.Tensor
#: class of symbols -> class of what they stand for
_CLASSES: Mapping[Any, type] = dict(zip(_torch.SYM_TYPES, (int, float, bool), strict=True))
_ABSENT: Any = object()
#: these look for a hash, and do without if there is none
_DO_WITHOUT_HASH = ("einops",)
#: what C functions say that take numbers alone
_TAKES_NUMBERS = re.compile(r"\bSym(Int|Float|Bool)\b|not JSON serializable")
#: and operations in C++, and DTensor's rules for operations
_OF_NUMBERS = re.compile(
    "with symbolic sizes/strides|ArrayRef expected to contain only concrete integers|got <class 'torch.Sym(Int|Float)'>"
)
#: classes of results of ``math``, where they are no floats
_KINDS: dict[str, type] = {"isnan": bool, "isinf": bool, "isfinite": bool, "isclose": bool}
_KINDS |= dict.fromkeys(("gcd", "lcm", "isqrt", "factorial", "comb", "perm"), int)
#: functions that torch has no symbol for
_OTHER_MATH = (
    *_KINDS,
    *("exp", "expm1", "log", "log10", "log1p", "acosh", "asinh", "atanh", "atan2", "copysign", "degrees", "radians"),
    *("erf", "erfc", "fabs", "fmod", "gamma", "lgamma", "hypot", "ldexp", "pow", "remainder"),
)
_READ = object.__getattribute__
_as_float: Any = torch.sym_float

#: what of an input: "size" or "stride", and the dimension; or a "number" of the call
Place = tuple[Path, str, int]


def place_text(path: object, kind: str, dim: int) -> str:
    """What a place is called."""
    return str(path) if kind == "number" else f"{path}.{kind}({dim})"


class NeedsNumbers(UnsupportedError):
    """Python code needs sizes as numbers: capture again, with those that are symbols as numbers.

    Attributes:
        places: which ones.
        why: what is asked for, and where.
    """

    def __init__(self, places: Collection[Place], what: str, line: str | None) -> None:
        super().__init__(
            f"the region needs a size as a number: it asks for {what}",
            path=line,
            expected="arithmetic and comparisons, of which a graph for many sizes can be made",
            got=", ".join(sorted({place_text(*place) for place in places})),
            fix="compile it with dynamic=False and automatic_dynamic=False",
        )
        self.places = tuple(places)
        self.why = what if line is None else f"{what} at {line}"


def places_of(session: Session, inputs: Sequence[TracedInput], symbols: Collection[Any] | None) -> list[Place]:
    """The sizes and strides of inputs with one of these symbols (with any, where None), if they may be numbers."""
    found: list[Place] = []
    if not inputs or not session.may_run_again:
        return found

    def note(t: Tensor, path: Path) -> None:
        strides = t.stride() if t.layout is torch.strided else ()
        for kind, numbers in (("size", tuple(t.shape)), ("stride", strides)):
            for d, n in enumerate(numbers):
                if isinstance(n, torch.SymInt) and not is_ragged(n):
                    own = n.node.expr.free_symbols
                    made = _torch.constant_symbol(n)  # known by value, but C++ sees a symbol
                    known = made is not None and (symbols is None or made in symbols)
                    if known or (own and (symbols is None or own & set(symbols))):
                        found.append((path, kind, d))

    for place, n in session.arguments.items():
        own = n.node.expr.free_symbols if isinstance(n, _torch.SYM_TYPES) else set()
        if own and (symbols is None or own & set(symbols)):
            found.append((place.path, "number", 0))
    if found and symbols is None:  # a function that takes numbers alone was rather called with one of those
        return found
    for row in inputs:
        visit(
            row.traced,
            leaf=note,
            wrapper=lambda t, names, inners, context, path: note(t, path),
            opaque=lambda v, path: None,
            path=row.path,
        )
    return found


def needed_numbers(session: Session, inputs: Sequence[TracedInput]) -> NeedsNumbers | None:
    """What a region has to be captured again for: sizes of which it computes floats that something was assumed of."""
    behind = session.sizes_behind_branches()
    places = places_of(session, inputs, behind) if behind else []
    return NeedsNumbers(places, "a branch on a float that is computed of it", None) if places else None


class KeptNumber(UnsupportedError):
    """A wrapper keeps a symbolic number in its context, of which no call could tell the value to the last bit."""

    def __init__(self, number: Any, path: Path | None = None) -> None:
        super().__init__(
            "a wrapper keeps a number that is computed of others",
            path=path,
            expected="numbers that a call brings, or whole numbers that are computed of its sizes",
            got=number,
            fix="compute it outside of the region, or keep it in an inner tensor",
        )
        self.number = number


@contextlib.contextmanager
def kept_as_numbers(session: Session, inputs: Sequence[TracedInput]) -> Iterator[None]:
    """Around what meets the contexts that a region leaves behind.

    Raises:
        NeedsNumbers: a wrapper keeps a number that is computed of sizes, or of numbers of the call.
    """
    try:
        yield
    except KeptNumber as kept:
        places = places_of(session, inputs, session.read_of(kept.number))
        if not places:
            raise
        raise NeedsNumbers(places, "a number that a wrapper keeps", None) from kept


def needs_real_kernel(
    session: Session, inputs: Sequence[TracedInput], error: BaseException | None
) -> NeedsNumbers | None:
    """Is the error that an operation's kernel in C++ takes numbers alone, or that only its real one, which torch runs in the
    place of a fake one, is there?"""
    line = None if error is None else user_line(error)
    for cause in (error, getattr(error, "__cause__", None)):
        what = None
        if isinstance(cause, _torch.NO_FAKE_KERNEL):
            what = f"a kernel for fake tensors that {cause} does not have"
        elif isinstance(cause, RuntimeError) and _OF_NUMBERS.search(str(cause)):
            what = f"sizes in C++ ({str(cause).partition(chr(10))[0]})"
        places = places_of(session, inputs, None) if what else []
        if what and places:
            return NeedsNumbers(places, what, line)
    return None


class PythonNumbers:
    """A context for one run of the user function on ``inputs``, or for a backward: see the module's docstring."""

    def __init__(self, session: Session, inputs: TracedInputs | None = None) -> None:
        self.session, self.inputs = session, inputs
        self.needed: NeedsNumbers | None = None
        self.steps = Steps(session, self.covers, lambda n, what: self.number(n, what, self._line(n)))
        self._types = contextlib.ExitStack()
        self._before: list[tuple[Any, str, Any]] = []

    def class_of(self, traced: Tensor) -> type:
        """The class that the caller's tensor has, or a dense one that the region makes."""
        row = next((i for i in self.inputs.inputs if i.traced is traced), None) if self.inputs else None
        if row is not None and row.spec.cls is not Tensor:  # type: ignore[union-attr]
            return row.spec.cls  # type: ignore[union-attr]
        return torch.nn.Parameter if isinstance(traced, torch.nn.Parameter) else Tensor

    def __enter__(self) -> PythonNumbers:
        _active.watches.append(self)
        self._types.enter_context(types_as_eager(self._tables()))
        self._types.enter_context(_torch.products_of_sizes())
        for cls in _CLASSES:
            for name, hook in self._hooks(cls).items():
                self._set(cls, name, hook)
        self._set(_torch.SymNode, "guard_float", self._in_cpp(_torch.SymNode.guard_float))
        self._set(builtins, "print", _printing(builtins.print))
        if self.inputs is None:  # while the user function runs, `functions` knows more
            for name, hook in _texts().items():
                self._set(_torch.FAKE_TYPES[0], name, hook)
        for name in (*_torch.SYMBOLIC_MATH, *_OTHER_MATH):
            self._set(math, name, _math_function(name, getattr(math, name)))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        _active.watches.remove(self)
        self._types.close()
        while self._before:
            holder, name, before = self._before.pop()
            delattr(holder, name) if before is _ABSENT else setattr(holder, name, before)
        rows = () if self.inputs is None else self.inputs.inputs
        if error is None and (needed := needed_numbers(self.session, rows)) is not None:
            raise needed
        if self.needed is not None:
            raise self.needed from None  # the function may have caught it
        if isinstance(error, (TypeError, AttributeError)) and _TAKES_NUMBERS.search(str(error)):
            self._refused(error)
        if isinstance(error, RuntimeError) and (needed := needs_real_kernel(self.session, rows, error)) is not None:
            raise needed from error

    def _tables(self) -> Iterator[dict[str, Any]]:
        """The globals of the code of wrapper classes."""
        classes = set(self.session.recorder.classes)
        todo: list[Spec] = [] if self.inputs is None else [i.spec for i in self.inputs.inputs]
        for spec in todo:
            if isinstance(spec, WrapperSpec):
                classes.add(spec.cls)
                todo.extend(spec.inners)
        for name in {cls.__module__ for cls in classes}:
            if name in sys.modules and name.partition(".")[0] != "torch":
                yield vars(sys.modules[name])

    def _set(self, holder: Any, name: str, value: Any) -> None:
        self._before.append((holder, name, vars(holder).get(name, _ABSENT)))
        setattr(holder, name, value)

    # ---------------------------------------------------------------- answers
    def number(self, n: Any, what: str, line: str | None) -> Any:
        """The number that a symbol stands for.

        Raises:
            NeedsNumbers: it is a number only in another capture.
            DataDependentError: it depends on the values inside a tensor.
        """
        if not _torch.is_known(n):
            raise _depends_on_values(what, line, type(n))
        if isinstance(n, torch.SymBool):
            return bool(n)
        if isinstance(n, torch.SymFloat) and self.session.is_fixed(n):
            return float(n.node.hint)
        places = self._places(self.session.read_of(n))
        if places:
            self.needed = NeedsNumbers(places, what, line)
            raise self.needed
        return int(n) if isinstance(n, torch.SymInt) else n.node.guard_float("", 0)

    def _in_cpp(self, plain: Callable[..., float]) -> Callable[..., float]:
        def guard_float(node: Any, file: str, line: int) -> float:
            """Code in C++ says in which file it asks; Python, and what makes formulas, does not."""
            n: Any = torch.SymFloat(node)  # type: ignore[no-untyped-call]
            if not file or not self.covers(n) or not node.expr.free_symbols:
                return plain(node, file, line)
            return float(self.number(n, "a float in C++", self.session.recorder.user_line()))

        return guard_float

    def _places(self, symbols: Collection[Any] | None) -> list[Place]:
        return places_of(self.session, () if self.inputs is None else self.inputs.inputs, symbols)

    def _refused(self, error: BaseException) -> None:
        """Some function of Python takes nothing but numbers, and the user's code has called it with a symbol."""
        line = asking_line(error)
        if line is None:
            return
        what = f"what only a number has ({error})"
        places = self._places(None)
        if places:
            raise NeedsNumbers(places, what, line) from error
        if self.session.recorder.symbols.data_dependent:
            raise _depends_on_values(what, line, None) from error

    # ---------------------------------------------------------------- who asks
    def covers(self, n: Any) -> bool:
        """Is it a symbol of this capture, and no nested int?"""
        node = _READ(n, "node")
        return getattr(node, "shape_env", None) is self.session.shape_env and not node.is_nested_int()

    def _line(self, n: Any) -> str | None:
        """``file:line`` of the user's code that asks (two calls from here) about a symbol of this capture; else None."""
        if not self.covers(n):
            return None
        frame = asking_frame(sys._getframe(2))
        return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def _hooks(self, cls: Any) -> dict[str, Callable[..., Any]]:
        """The methods that answer for symbols of a class while inside; other symbols, and other code, get torch's."""
        number = _CLASSES[cls]
        plain_hash, plain_text, plain_format = cls.__hash__, cls.__repr__, cls.__format__
        read: Callable[[Any, str], Any] = cls.__getattribute__

        def hashed(n: Any) -> int:
            line = self._line(n)
            caller: Any = sys._getframe(1)
            if caller.f_code.co_name == "number_of":  # see `frontends.identities`
                caller = caller.f_back
            if line is None or caller.f_globals.get("__name__", "").partition(".")[0] in _DO_WITHOUT_HASH:
                return int(plain_hash(n))
            return hash(self.number(n, "the hash of a number (a key of a dict, a member of a set)", line))

        def text(n: Any) -> str:
            line = self._line(n)
            return str(plain_text(n) if line is None else repr(self.number(n, "the text of a number", line)))

        def formatted(n: Any, form: str) -> str:
            line = self._line(n)
            return str(
                plain_format(n, form) if line is None else format(self.number(n, "the text of a number", line), form)
            )

        def attribute(n: Any, name: str) -> Any:
            if name == "node":
                return _READ(n, name)
            if name == "__class__":
                if sys._getframe(1).f_code.co_filename.startswith(TORCH_FILES):  # the quick answer to most of them
                    return cls
                return cls if self._line(n) is None else number
            if name == "__reduce_ex__" and (line := self._line(n)) is not None:
                return self.number(n, "a copy of a number", line).__reduce_ex__
            try:
                return read(n, name)
            except AttributeError:
                line = self._line(n)
                if line is None or not (hasattr(number, name) or name == "__array__"):
                    raise
                known = self.number(n, f"{number.__name__}.{name}", line)
                return getattr(known, name) if name != "__array__" else _array_of(known)

        hooks: dict[str, Callable[..., Any]] = {
            "__hash__": hashed,
            "__repr__": text,
            "__format__": formatted,
            "__getattribute__": attribute,
        }
        hooks.update(self.steps.hooks(cls))
        return hooks


class _Active(threading.local):
    """The captures that are running in this thread: what stands in for Python's functions does nothing in others."""

    def __init__(self) -> None:
        self.watches: list[PythonNumbers] = []


_active = _Active()


def is_unknown(n: Any) -> bool:
    """Is it a symbol of a running capture, for a number that depends on values inside tensors?"""
    return type(n) in _CLASSES and any(watch.covers(n) for watch in _active.watches) and not _torch.is_known(n)


def is_symbol(n: Any) -> bool:
    """Is it a symbol of a running capture?"""
    return type(n) in _CLASSES and any(watch.covers(n) for watch in _active.watches)


def as_number(n: Any) -> Any:
    """Python's functions take a truth for 1 or 0."""
    watch = next((w for w in _active.watches if w.covers(n)), None) if isinstance(n, torch.SymBool) else None
    return n if watch is None else watch.session.whole(n)


def covering(value: Any) -> PythonNumbers | None:
    """Who answers for a number from inside a tensor, or for the number in a dense tensor; None for all other values."""
    if isinstance(value, Tensor):
        plain = kind_of(type(value)) is Kind.LEAF and value.layout is torch.strided
        one = plain and all(type(n) is int and n == 1 for n in value.shape) and not value.dtype.is_complex
        return _active.watches[-1] if one and _active.watches else None
    return next((watch for watch in _active.watches if watch.covers(value)), None) if is_unknown(value) else None


def number_of(t: Tensor) -> Any:
    """``t.item()`` as an int or a float, or a symbol for one: a bool is 0 or 1."""
    t = t.detach()
    return (t.to(torch.int64) if t.dtype is torch.bool else t).item()


class _AskedForTypes(type):
    """The class of what stands for ``type``, and does what ``type`` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not _TYPE:  # a metaclass that was made of it
            return super().__call__(*args, **kwargs)
        found = type(*args, **kwargs)
        if found in _torch.FAKE_TYPES and _active.watches:
            return _active.watches[-1].class_of(args[0])
        if len(args) != 1 or found not in _CLASSES or not any(watch.covers(args[0]) for watch in _active.watches):
            return cls if found is type else found
        return _CLASSES[found]

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type) if cls is _TYPE else super().__instancecheck__(value)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, type) if cls is _TYPE else super().__subclasscheck__(other)


_TYPE: Any = None
_TYPE = _AskedForTypes("type", (type,), {})


@contextlib.contextmanager
def types_as_eager(tables: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Inside, in code with these globals, ``type(n)`` of a symbol is the class of the number, and that of a dense traced
    tensor is what the caller has: ``torch.Tensor``, or ``nn.Parameter``."""
    free = [table for table in tables if "type" not in table]
    for table in free:
        table["type"] = _TYPE
    try:
        yield
    finally:
        for table in free:
            table.pop("type", None)


def needs_number(n: Any, what: str) -> None:
    """A symbol of the running capture stands where only a number can: see `PythonNumbers.number`."""
    for watch in _active.watches:
        if watch.covers(n):
            watch.number(n, what, None)


def _array_of(number: Any) -> Callable[..., Any]:
    import numpy

    return lambda dtype=None, copy=None: numpy.asarray(number, dtype)


# What stands in for functions of Python knows no capture: a module that is imported meanwhile may keep it.
@functools.cache
def _printing(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``print`` from this package's code: what it shows is for people."""

    @functools.wraps(plain)
    def show(*values: Any, **options: Any) -> None:
        plain(*values, **options)

    return show


@functools.cache
def _math_function(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """``math.sqrt`` and its siblings, which of a number that depends on values inside tensors are symbols."""
    symbolic = _torch.SYMBOLIC_MATH.get(name)

    @functools.wraps(plain)
    def call(*args: Any) -> Any:
        args = tuple(map(as_number, args))
        watch = next((w for n in args if (w := covering(n)) is not None), None)
        if watch is None:
            sizes = next((w for n in args if type(n) in _CLASSES for w in _active.watches if w.covers(n)), None)
            if sizes is None or name in _KINDS or not sizes.session.takes_steps:
                return plain(*args)
            return sizes.session.computed(plain, *args)
        known = (number_of(n) if isinstance(n, Tensor) and covering(n) is not None else n for n in args)
        args = tuple(map(as_number, known))
        if not any(map(is_unknown, args)):
            return plain(*args)
        if watch.session.takes_steps:
            return watch.session.step(plain, args, _KINDS.get(name, float))
        n = args[0]
        if symbolic is not None and len(args) == 1:
            return symbolic(_as_float(n))
        asks = asking_frame(sys._getframe(1))
        line = None if asks is None else f"{asks.f_code.co_filename}:{asks.f_lineno}"
        raise _depends_on_values(f"math.{name}() of a number", line, type(n), f"x.{name}().item() of the tensor")

    return call


def _texts() -> dict[str, Callable[..., str]]:
    """Methods of traced tensors that refuse user code."""

    def made(plain: Callable[..., str]) -> Callable[..., str]:
        def text(t: Tensor, *rest: Any) -> str:
            asks = asking_frame(sys._getframe(1)) if _active.watches else None
            if asks is not None:
                raise refuse_text(t, f"{asks.f_code.co_filename}:{asks.f_lineno}")
            return plain(t, *rest)

        return text

    return {name: made(getattr(Tensor, name)) for name in TEXTS}


def _depends_on_values(what: str, line: str | None, cls: Any, instead: str | None = None) -> DataDependentError:
    of = "" if cls is None else f" as {_CLASSES[cls].__name__}"
    return DataDependentError(
        f"the region asks for {what}, which depends on the values inside a tensor",
        path=line,
        expected="arithmetic with it: the graph is made once, for all values",
        got=f"a number from .item() or .tolist(){of}",
        fix=instead or "return the number, or a tensor, and do this outside of the region; print(n) shows its symbol",
    )
