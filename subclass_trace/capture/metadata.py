"""What a region asks of its inputs beside their values: is it a leaf, a Parameter, has it a gradient, where does it start.

A traced stand-in would answer for itself. So `MetadataReads` answers for the input that it stands for, and notes what was
asked: that is guarded, and only that. It sees calls through `CapturedFunctions`; ``isinstance(x, nn.Parameter)`` is no
call, but looks at an attribute ``_is_param`` of the stand-in, which notes that it was looked at. Python attributes that
the stand-in does not have are looked up on the input. What differs in each call is refused; all else the stand-in answers.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .. import _torch
from ..errors import AliasingError, UnsupportedError
from ..subclass.flatten import wrappers_inside
from ..subclass.spec import LeafSpec, Spec
from .facts import ABSENT, NAMES, SIMPLE, AskedOf, fact_of
from .inputs import TracedInput, TracedInputs
from .recorder import Recorder
from .user_code import code_of, is_user_code

Tensor = torch.Tensor
_STORAGES = ("storage", "_typed_storage", "untyped_storage")
#: names of the calls that ask
ASKING = frozenset({"__get__", "__set__", "__delete__", "retain_grad", "storage_offset", *_STORAGES}) | NAMES
#: the answer of a call that is none of ours
ASIDE = object()


class MetadataReads:
    """The questions of one run of a region's function."""

    def __init__(self, inputs: TracedInputs, facts: dict[tuple[int, str], Any]) -> None:
        """``facts``: (input, name) -> answer; others may add to them (`own_attributes`)."""
        self._rows: dict[int, tuple[int, TracedInput]] = {id(i.traced): (n, i) for n, i in enumerate(inputs.inputs)}
        self._inside = {
            id(t): (n, i, t, "".join(f"{name}." for name in names))
            for n, i in enumerate(inputs.inputs)
            for names, t in wrappers_inside(i.traced)
        }
        self._asked: set[tuple[int, str]] = set()
        self._facts = facts
        self.offsets = False  # was a storage offset asked for?

    def asked_of(self, number: int) -> AskedOf:
        """What was asked of input ``number``."""
        facts = tuple((name, answer) for (n, name), answer in self._facts.items() if n == number)
        is_leaf, is_parameter, gradient = ((number, n) in self._asked for n in ("is_leaf", "is_parameter", "gradient"))
        return AskedOf(is_leaf, is_parameter, gradient, facts)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, stand-ins of parameters are parameters; from then on nothing is kept of the inputs."""
        marked = []
        for number, row in self._rows.values():
            state = getattr(row.traced, "__dict__", None)
            if state is not None and "_is_param" not in state:
                state["_is_param"] = IsParameter(self, number, row.is_parameter)
                marked.append(state)
        inside = (type(t) for _, _, t, _ in self._inside.values())
        classes = dict.fromkeys([*(type(row.traced) for _, row in self._rows.values()), *inside])
        wrappers = [cls for cls in classes if cls not in _torch.FAKE_TYPES]
        try:
            with (
                _torch.missing_attributes(wrappers, self._attribute, self._deleted),
                _torch.addresses_of_storages(_refuse_address),
                _torch.parameter_classes(self._class_of),
            ):
                yield
        finally:
            for state in marked:
                state.pop("_is_param", None)
            self._rows, self._inside = {}, {}

    def _class_of(self, stand_in: Tensor) -> type:
        row = self.row_of(stand_in)
        return Tensor if row is None else row.spec.cls  # type: ignore[union-attr]

    def row_of(self, t: Tensor | None) -> TracedInput | None:
        """The input that this tensor stands for, if it is one."""
        return self._rows.get(id(t), (-1, None))[1]

    def number_of(self, t: Tensor) -> int | None:
        """The number of the input that this tensor stands for, if it is one."""
        return self._rows[id(t)][0] if id(t) in self._rows else None

    def rows(self) -> list[TracedInput]:
        """The inputs, in order."""
        return [row for _, row in self._rows.values()]

    def is_input(self, real: Tensor) -> bool:
        """Is this real tensor one of the inputs?"""
        return any(row.real() is real for _, row in self._rows.values())

    def fact(self, number: int, name: str) -> Any:
        """A fact of an input, on which the trace hangs from now on."""
        return self._fact(number, name, self.rows()[number])

    def note(self, number: int, name: str) -> None:
        """``name`` of `AskedOf` was asked of an input."""
        self._asked.add((number, name))

    def depends_on(self, name: str, inputs: TracedInputs, numbers: Iterable[int] | None = None) -> None:
        """The trace hangs on this fact of each input, or of some."""
        for number in range(len(inputs.inputs)) if numbers is None else numbers:
            self._fact(number, name, inputs.inputs[number])

    # ---------------------------------------------------------------- answers
    def answer(self, func: Any, x: Any, traced: Any, recorder: Recorder) -> Any:
        """The answer to a call, or `ASIDE`.

        Args:
            x: the first argument as the function has it; ``traced``: the stand-in for it, or itself.

        Raises:
            UnsupportedError: the region lets an input that is no leaf retain its gradient, or asks for what neither an
                answer nor a guard can be given.
        """
        owner, get = getattr(func, "__self__", None), func.__name__ == "__get__"
        number, row = self._rows.get(id(traced), (-1, None))
        name = func.__self__.__name__ if get else func.__name__
        if name == "storage_offset":
            self.offsets = True
            return ASIDE
        if owner is Tensor.nbytes:  # torch's own asks for numbers, where sizes are symbols
            return traced.numel() * traced.element_size() if get and traced.layout is torch.strided else ASIDE
        if name in ("_base", "_version", *_STORAGES) and is_user_code(sys._getframe(2).f_code):
            self._refuse(name, number, row, traced, recorder)
        if row is None:
            return ASIDE
        if name in NAMES:
            return self._fact(number, name, row)
        if func is Tensor.retain_grad:
            return self._retain_grad(number, row, recorder)
        moved = row.edge is None or row.traced.grad_fn is not row.edge.node  # another history than it came with, or none
        if get and not moved and owner in (Tensor.is_leaf, Tensor.grad_fn):
            self.note(number, "is_leaf")
            return row.is_leaf if owner is Tensor.is_leaf else None if row.is_leaf else ASIDE
        return ASIDE

    def _refuse(self, name: str, number: int, row: TracedInput | None, traced: Any, recorder: Recorder) -> None:
        """What an input, or a view of one, would answer otherwise in another call."""
        base = traced._base if isinstance(traced, Tensor) and traced._is_view() else None
        whole = self._rows.get(id(base), (-1, None))[1] if row is None and name == "_version" else row
        if whole is None or (name == "_base" and self._fact(number, "_is_view", whole) is False):
            return
        where = recorder.user_line() if row is None else row.path
        raise _unanswerable(f"asks for {name} of an input, which differs between calls", where)

    def _fact(self, number: int, name: str, row: TracedInput) -> Any:
        if (number, name) not in self._facts:
            real = row.real()
            if real is None:
                return ASIDE
            self._facts[number, name] = fact_of(real, name)
        return self._facts[number, name]

    def sets_requires_grad(self, traced: Any, value: bool) -> bool:
        """``requires_grad_(value)`` on a leaf that requires grad, whose stand-in is none. False: it is none of ours."""
        number, row = self._rows.get(id(traced), (-1, None))
        if row is None or row.edge is None or not row.is_leaf or row.traced.grad_fn is not row.edge.node:
            return False
        self.note(number, "is_leaf")
        if not value and not self._fact(number, "gradient by its base", row):
            row.traced.detach_()
        return True

    def refuse_to_detach(self, traced: Any) -> None:
        """``detach_()`` of an argument that is a view: so does eager, and the stand-in of a view is none.

        Raises:
            AliasingError: it is one.
        """
        number, row = self._rows.get(id(traced), (-1, None))
        if row is not None and self._fact(number, "_is_view", row) is True:
            raise AliasingError(
                "Can't detach views in-place. Use detach() instead; eager refuses it too.",
                path=row.path,
                expected="a tensor that is no view",
                got="a view",
                fix="use x = x.detach()",
            )

    def _attribute(self, stand_in: Tensor, name: str) -> Any:
        """A Python attribute that a stand-in does not have, when the user's code asks for it.

        Raises:
            AttributeError: the input does not have it either.
            UnsupportedError: it is neither a number nor a string, so that no guard could compare it.
        """
        number, row = self._rows.get(id(stand_in), (-1, None))
        prefix = ""
        if row is None and id(stand_in) in self._inside:
            number, row, _, prefix = self._inside[id(stand_in)]
        code = sys._getframe(3).f_code
        # What isinstance(x, nn.Buffer) looks at, it looks at in torch's code.
        asked = name == "_is_buffer" or (is_user_code(code) and not _torch.is_memo(name))
        value = self._fact(number, f".{prefix}{name}", row) if row is not None and asked else ASIDE
        if row is not None and value is ABSENT and (own := class_member(row.spec, name)) is not ABSENT:
            return own.__get__(stand_in, row.spec.cls)  # type: ignore[union-attr]
        if row is None or value is ABSENT or value is ASIDE:
            raise AttributeError(f"{type(stand_in).__name__!r} object has no attribute {name!r}")
        if type(value) in SIMPLE:
            return value
        if code in code_of(
            type(stand_in)
        ):  # what a class keeps on an instance beside its protocol is a cache of its own
            del self._facts[number, f".{prefix}{name}"]
            raise AttributeError(f"{type(stand_in).__name__!r} object has no attribute {name!r}")
        raise UnsupportedError(
            f"the region reads the attribute {name!r} that somebody has set on an input",
            path=f"{row.path}.{prefix}{name}",
            expected="a number, a string or None",
            got=f"an instance of {type(value).__name__}",
            fix="pass it as an argument of its own",
        )

    def _deleted(self, stand_in: Tensor, name: str) -> None:
        """The user's code deletes an attribute that a stand-in does not have.

        Raises:
            UnsupportedError: the input has it.
        """
        row = self.row_of(stand_in)
        real = None if row is None else row.real()
        if row is not None and real is not None and name in vars(real):
            raise UnsupportedError(
                f"the region deletes the attribute {name!r} that somebody has set on an input",
                path=f"{row.path}.{name}",
                expected="attributes that are read, or set",
                got=f"del of {name!r}",
                fix="set it to None, or delete it outside of the region",
            )

    def _retain_grad(self, number: int, row: TracedInput, recorder: Recorder) -> Any:
        if not row.is_leaf:
            raise UnsupportedError(
                "the region calls retain_grad() on an input that is no leaf",
                path=recorder.user_line(),
                expected="retain_grad() outside of the region",
                got=f"{row.path}, of shape {tuple(row.traced.shape)}",
                fix="call it on the argument before the region",
            )
        self.note(number, "is_leaf")
        return None  # a leaf has its gradient anyway


def class_member(spec: Spec, name: str) -> Any:
    """A method or a property that the class of a dense input adds to ``nn.Parameter``; `ABSENT` where there is none."""
    mro = spec.cls.__mro__ if isinstance(spec, LeafSpec) else ()
    found = next((vars(cls)[name] for cls in mro if name in vars(cls)), ABSENT)
    return found if hasattr(type(found), "__get__") else ABSENT


def _unanswerable(what: str, where: Any, fix: str = "ask outside of the region") -> UnsupportedError:
    return UnsupportedError(
        f"the region {what}",
        path=where,
        expected="questions whose answer is the same in each call that a specialization serves",
        got="a traced tensor, which does not know",
        fix=fix,
    )


def _refuse_address() -> None:
    """The address of a traced tensor's storage: torch's own code may have it."""
    frame: Any = sys._getframe(3)
    while frame.f_globals.get("__name__") == "torch.storage":  # TypedStorage asks its untyped one
        frame = frame.f_back
    if is_user_code(frame.f_code):
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        raise _unanswerable("asks for the address of a tensor's memory, which differs in each call", line)


class IsParameter:
    """The ``_is_param`` of a stand-in: true or false as that of the input, and noted when it is asked."""

    def __init__(self, reads: MetadataReads, number: int, value: bool) -> None:
        self.reads, self.number, self.value = reads, number, value

    def __bool__(self) -> bool:
        self.reads.note(self.number, "is_parameter")
        return self.value

    def __deepcopy__(self, memo: dict[int, Any]) -> bool:
        """A deep copy of the stand-in is none."""
        return bool(self)
