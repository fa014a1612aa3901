"""What a region asks of its inputs beside their values: is it a leaf, a view, a Parameter, has it a gradient.

A traced stand-in would answer for itself. So `MetadataReads` answers for the input that it stands for, and notes what was
asked: that is guarded, and only that. It sees calls through `CapturedFunctions`; ``isinstance(x, nn.Parameter)`` is no
call, but looks at an attribute ``_is_param`` of the stand-in, which notes that it was looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .. import _torch
from ..errors import UnsupportedError
from .inputs import TracedInput, TracedInputs, has_gradient
from .questions import QUESTIONS
from .recorder import Recorder

Tensor = torch.Tensor
#: names of the calls that ask
ASKING = frozenset(
    {
        "__get__",
        "__set__",
        "__delete__",
        "storage_offset",
        "_is_view",
        "is_inference",
        "untyped_storage",
        "_typed_storage",
        "storage",
    }
)
#: properties of torch.Tensor, and methods, that are answered for the input
_PROPERTIES = {Tensor.output_nr: "output_nr", Tensor.retains_grad: "retains_grad"}
_METHODS = {"_is_view": "is_view", "is_inference": "is_inference"}
_STORAGES = ("untyped_storage", "_typed_storage")
#: the answer of a call that is none of ours
ASIDE = object()


@dataclass(frozen=True)
class AskedOf:
    """What was asked of one input; ``questions``: see `questions`."""

    is_leaf: bool = False
    is_parameter: bool = False
    gradient: bool = False
    questions: tuple[str, ...] = ()


class MetadataReads:
    """The questions of one run of a region's function."""

    def __init__(self, inputs: TracedInputs) -> None:
        self._rows: dict[int, tuple[int, TracedInput]] = {id(i.traced): (n, i) for n, i in enumerate(inputs.inputs)}
        self._leaves = inputs.leaf_values
        self._asked: set[tuple[int, str]] = set()
        self.offsets = False  # was a storage offset asked for?

    def asked_of(self, number: int) -> AskedOf:
        """What was asked of input ``number``."""
        questions = tuple(name for name in QUESTIONS if (number, name) in self._asked)
        is_leaf, is_parameter, gradient = ((number, n) in self._asked for n in ("is_leaf", "is_parameter", "gradient"))
        return AskedOf(is_leaf, is_parameter, gradient, questions)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, stand-ins of parameters are parameters; from then on nothing is kept of the inputs."""
        marked = []
        for number, row in self._rows.values():
            state = getattr(row.traced, "__dict__", None)
            if state is not None and "_is_param" not in state:
                state["_is_param"] = _IsParameter(self, number, row.is_parameter)
                marked.append(state)
        try:
            yield
        finally:
            for state in marked:
                state.pop("_is_param", None)
            self._rows, self._leaves = {}, ()

    def note(self, number: int, name: str) -> None:
        """``name`` of `AskedOf` was asked of an input."""
        self._asked.add((number, name))

    # ---------------------------------------------------------------- answers
    def answer(self, func: Any, x: Any, traced: Any, recorder: Recorder) -> Any:
        """The answer to a call, or `ASIDE`.

        Args:
            x: the first argument as the function has it; ``traced``: the stand-in for it, or itself.

        Raises:
            UnsupportedError: the region asks for, or drops, the gradient that an input has; or for something of which
                neither the answer nor a guard can be given.
        """
        method = func.__name__
        if not method.startswith("__"):
            return self._method(method, traced, recorder)
        owner, get = getattr(func, "__self__", None), func.__name__ == "__get__"
        number, row = self._rows.get(id(traced), (-1, None))
        if owner is Tensor.grad:
            return self._gradient(number, row, x, recorder)
        if not get:
            return ASIDE
        if owner is Tensor._base or owner is Tensor._version:
            return self._relation(owner is Tensor._base, x, traced, recorder)
        if owner is Tensor.nbytes:  # torch's own asks for numbers, where sizes are symbols
            return ASIDE if traced.layout is not torch.strided else traced.numel() * traced.element_size()
        if row is None:
            return ASIDE
        if owner in _PROPERTIES and (row.edge is None or row.traced.grad_fn is row.edge.node):
            return self._answer(number, row, _PROPERTIES[owner])
        if owner is Tensor.is_leaf or owner is Tensor.grad_fn:
            if row.edge is None or row.traced.grad_fn is not row.edge.node:
                return ASIDE  # no history, which is guarded anyway, or another one than it came with
            self.note(number, "is_leaf")
            if owner is Tensor.is_leaf:
                return row.is_leaf
            return None if row.is_leaf else ASIDE
        return ASIDE

    def _answer(self, number: int, row: TracedInput, question: str) -> Any:
        self.note(number, question)
        return row.answers[question]

    def _method(self, method: str, traced: Any, recorder: Recorder) -> Any:
        number, row = self._rows.get(id(traced), (-1, None))
        if method == "storage_offset":
            self._note_offset(traced)
            return ASIDE if row is None or _torch.is_fake(traced) else self._answer(number, row, "storage_offset")
        if method in _METHODS:
            if row is not None:
                return self._answer(number, row, _METHODS[method])
            base = traced._base if method == "_is_view" and isinstance(traced, Tensor) and traced._is_view() else None
            number, row = self._rows.get(id(base), (-1, None))
            return False if row is not None and self._answer(number, row, "is_inference") else ASIDE
        if method == "storage" and isinstance(traced, Tensor) and (row is not None or _torch.is_fake(traced)):
            raise _unanswerable("asks for the typed storage of a tensor", recorder.user_line(), "x.untyped_storage()")
        if method in _STORAGES and row is not None and traced.layout is torch.strided:
            mine = traced.untyped_storage().nbytes()
            hint = mine.node.hint if isinstance(mine, torch.SymInt) else mine
            if self._answer(number, row, "storage_bytes") != hint:
                raise _unanswerable("asks for the storage of a wrapper", row.path, "ask its inner tensors")
        return ASIDE

    def _relation(self, base: bool, x: Any, traced: Any, recorder: Recorder) -> Any:
        """``_base`` and ``_version`` of an input, and of what shares a base or a counter with one."""
        if not isinstance(traced, Tensor):
            return ASIDE
        root = traced._base if traced._is_view() else None
        number, row = self._rows.get(id(traced if root is None else root), (-1, None))
        if row is None:
            if base or not self._lies_in_input(traced):
                return ASIDE
        if not base:
            line = recorder.user_line() if row is None else row.path
            raise _unanswerable("asks for the version counter of an input, which differs in each call", line)
        assert row is not None
        if self._answer(number, row, "is_view"):
            raise _unanswerable(
                "asks for the base of an input that is a view", row.path, "pass the base as an argument"
            )
        inference = self._answer(number, row, "is_inference")  # then views have no base
        return ASIDE if root is not None and not inference else None

    def _lies_in_input(self, t: Tensor) -> bool:
        if not _torch.is_fake(t) or t.layout is not torch.strided:
            return False
        mine = _torch.storage_ref(t)
        return any(leaf.layout is torch.strided and _torch.storage_ref(leaf) == mine for leaf in self._leaves)

    def _gradient(self, number: int, row: TracedInput | None, x: Tensor, recorder: Recorder) -> Any:
        has = row.has_gradient if row is not None else not _torch.is_fake(x) and has_gradient(x)
        if has:
            raise UnsupportedError(
                "the region reads or resets .grad of a tensor that has a gradient",
                path=recorder.user_line() if row is None else row.path,
                expected=".grad is None on the inputs of a region that asks for it",
                got=f"a gradient of a tensor of shape {tuple(x.shape)}",
                fix="do it outside of the region (zero_grad, clip_grad_norm_), or pass x.grad as an argument of its own",
            )
        if row is None:
            return ASIDE
        self.note(number, "gradient")
        return None

    def _note_offset(self, t: Any) -> None:
        self.offsets = self.offsets or self._lies_in_input(t)


def _unanswerable(what: str, where: Any, fix: str = "ask outside of the region") -> UnsupportedError:
    return UnsupportedError(
        f"the region {what}",
        path=where,
        expected="questions whose answer is the same in each call that a specialization serves",
        got="a traced tensor, which does not know",
        fix=fix,
    )


class _IsParameter:
    """The ``_is_param`` of a stand-in: true or false as that of the input, and noted when it is asked."""

    def __init__(self, reads: MetadataReads, number: int, value: bool) -> None:
        self.reads, self.number, self.value = reads, number, value

    def __bool__(self) -> bool:
        self.reads.note(self.number, "is_parameter")
        return self.value
