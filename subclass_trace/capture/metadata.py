"""What a region asks of its inputs beside their values: is it a leaf, a Parameter, has it a gradient, where does it start.

A traced stand-in would answer for itself. So `MetadataReads` answers for the input that it stands for, and notes what was
asked: that is guarded, and only that. It sees calls through `CapturedFunctions`; ``isinstance(x, nn.Parameter)`` is no
call, but looks at an attribute ``_is_param`` of the stand-in, which notes that it was looked at. Python attributes that
the stand-in does not have are looked up on the input.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .. import _torch
from ..errors import AliasingError, UnsupportedError
from ..subclass.flatten import wrappers_inside
from ..subclass.paths import Path
from ..subclass.spec import LeafSpec, Spec
from .facts import ABSENT, NAMES, SIMPLE, AskedOf, fact_of
from .history import ShownNodes, accumulate_grad
from .inputs import TracedInput, TracedInputs
from .recorder import Recorder
from .tape import nodes_behind
from .user_code import code_of, is_user_code

Tensor = torch.Tensor
#: names of the calls that ask
ASKING = frozenset({"__get__", "__set__", "__delete__", "retain_grad", "storage", "_typed_storage"}) | NAMES
_STORAGES = ("storage", "_typed_storage", "untyped_storage")
#: facts of the history that an input came with
_OF_HISTORY = ("output_nr", "retains_grad")
#: the answer of a call that is none of ours
ASIDE = object()


class MetadataReads:
    """The questions of one run of a region's function."""

    def __init__(self, inputs: TracedInputs, facts: dict[tuple[int, str], Any]) -> None:
        """``facts``: (input, name) -> answer; others may add to them (`own_attributes`)."""
        self._rows: dict[int, tuple[int, TracedInput]] = {id(i.traced): (n, i) for n, i in enumerate(inputs.inputs)}
        self._nodes = ShownNodes(self._node_of_input)
        self._inside = {
            id(t): (n, i, t, "".join(f"{name}." for name in names))
            for n, i in enumerate(inputs.inputs)
            for names, t in wrappers_inside(i.traced)
        }
        self._leaves = inputs.leaf_values
        self._asked: set[tuple[int, str]] = set()
        self._facts = facts
        self.offsets = False  # was a storage offset asked for?
        self.storages = False  # was a storage asked for?
        self._came = [tuple(i.traced.shape) for i in inputs.inputs]
        self._shapes: dict[int, list[tuple[int, Sequence[Any]]]] = {}  # of leaves: see `has_shape`

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
            self._rows, self._inside, self._leaves = {}, {}, ()

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

    def has_shape(self, traced: Tensor) -> None:
        """An input has the shape that it has from the next autograd node on."""
        number, row = self._rows.get(id(traced), (-1, None))
        if row is not None and row.edge is not None and row.is_leaf:
            self._shapes.setdefault(number, []).append((_torch.autograd_sequence_number(), tuple(traced.shape)))

    def check_shapes(self, inputs: Sequence[TracedInput], roots: Iterable[Any]) -> None:
        """Autograd takes the shape of a leaf when it is used first: in eager, after it was changed; of a stand-in, and of
        the input of a call, before.

        Raises:
            UnsupportedError: the nodes ``roots`` lead to a leaf that was used when it had got another shape.
        """
        changed = {}
        for n, row in enumerate(inputs):
            came = self._came[n] if n < len(self._came) else row.spec.size  # type: ignore[union-attr]
            known = [(time, list(map(str, shape))) for time, shape in self._shapes.get(n, [])]
            before, now = (
                list(map(str, came)),
                list(map(str, row.traced.shape)),
            )  # by what symbols are known to be by now
            if row.edge is not None and row.is_leaf and (known or now != before):
                unseen = (known[-1][1] if known else before) != now  # by `set_`, which no function mode sees
                changed[row.edge.node] = row, [(-1, before), *known, *([(-1, now)] if unseen else ())]
        for node in nodes_behind(roots, []) if changed else ():
            made = _torch.node_sequence_number(node)
            for row, shapes in [changed[m] for m, _ in node.next_functions if m in changed]:
                now = next(shape for time, shape in reversed(shapes) if time < made)
                if now != shapes[0][1]:
                    raise UnsupportedError(
                        "the region differentiates what it computes of a leaf whose shape it has changed in place",
                        path=row.path,
                        expected=f"the shape {shapes[0][1]} that gradients of it have",
                        got=f"the shape {now}",
                        fix="change the shape outside of the region, or out of place: y = x.t()",
                    )

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
            self.offsets = self.offsets or self._lies_in_input(traced)
            return ASIDE if row is None or _torch.is_fake(traced) else self._fact(number, name, row)
        if name in _STORAGES:
            return self._storage(number, row, traced)
        if name in ("_base", "_version") and isinstance(traced, Tensor):
            return self._relation(name == "_base", traced, recorder)
        if owner is Tensor.nbytes:  # torch's own asks for numbers, where sizes are symbols
            return traced.numel() * traced.element_size() if get and traced.layout is torch.strided else ASIDE
        if owner is Tensor.grad_fn and get and isinstance(traced, Tensor) and is_user_code(sys._getframe(2).f_code):
            node = traced.grad_fn
            if node is not None and (row is None or row.edge is None or node is not row.edge.node):
                return self._nodes.of(node)
        if row is None:
            return self._view_of_inference(traced) if name == "_is_view" else ASIDE
        if owner is Tensor.is_leaf or owner is Tensor.grad_fn or name in _OF_HISTORY:
            if row.edge is not None and row.traced.grad_fn is not row.edge.node:
                return ASIDE  # another history than it came with
        if owner is Tensor.grad_fn:
            return self._history(number, row) if get and row.edge is not None else ASIDE
        if name in NAMES:
            return self._fact(number, name, row)
        if func is Tensor.retain_grad:
            return self._retain_grad(number, row, recorder)
        if get and row.edge is not None and owner is Tensor.is_leaf:
            self.note(number, "is_leaf")
            return row.is_leaf
        return ASIDE  # no history, which is guarded anyway

    def _fact(self, number: int, name: str, row: TracedInput) -> Any:
        if (number, name) not in self._facts:
            real = row.real()
            if real is None:
                return ASIDE
            self._facts[number, name] = fact_of(real, name)
        return self._facts[number, name]

    def _storage(self, number: int, row: TracedInput | None, traced: Any) -> Any:
        """A fake storage ends where the tensor does; that of an input gets the size that the real one has."""
        self.storages = True
        if row is None or traced.layout is not torch.strided:
            return ASIDE
        size, storage = self._fact(number, "untyped_storage", row), traced.untyped_storage()
        now = storage.nbytes()
        if _torch.is_fake(traced):
            if size is not ASIDE and type(now) is int and now < size:
                storage.resize_(size)
        elif size is not ASIDE and size != (now.node.hint if isinstance(now, torch.SymInt) else now):
            raise _unanswerable("asks for the storage of a wrapper", row.path, "ask its inner tensors")
        return ASIDE

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

    def _history(self, number: int, row: TracedInput) -> Any:
        """The ``grad_fn`` that an input came with. Torch's own code gets that of the stand-in: it differentiates."""
        self.note(number, "is_leaf")
        if row.is_leaf:
            return None
        known = self._fact(number, "grad_fn", row) if is_user_code(sys._getframe(3).f_code) else ASIDE
        return _history(known[0], known[1], row.path) if isinstance(known, tuple) else ASIDE

    def _node_of_input(self, node: Any) -> Any:
        """What the user's code gets for the node that an input came with; None for another node."""
        for number, row in self._rows.values():
            if row.edge is not None and row.edge.node is node:
                self.note(number, "is_leaf")
                if row.is_leaf:
                    return accumulate_grad(row.traced)
                known = self._fact(number, "grad_fn", row)
                return _history(known[0], known[1], row.path) if isinstance(known, tuple) else None
        if type(node).__name__ == "Error":
            raise _unanswerable("walks the autograd graph to a tensor that it closes over", None)
        return None

    def _view_of_inference(self, traced: Any) -> Any:
        """A view of an input made in inference mode does not know that it is one."""
        base = traced._base if isinstance(traced, Tensor) and traced._is_view() else None
        number, row = self._rows.get(id(base), (-1, None))
        return False if row is not None and self._fact(number, "is_inference", row) is True else ASIDE

    def _relation(self, base: bool, traced: Tensor, recorder: Recorder) -> Any:
        """``_base`` and ``_version`` of an input, and of what shares a base or a counter with one."""
        root = traced._base if traced._is_view() else None
        number, row = self._rows.get(id(traced if root is None else root), (-1, None))
        if row is None and (base or not self._lies_in_input(traced)):
            return ASIDE
        if not base:
            line = recorder.user_line() if row is None else row.path
            raise _unanswerable("asks for the version counter of an input, which differs in each call", line)
        assert row is not None
        if self._fact(number, "_is_view", row) is True:
            fix = "pass the base as an argument"
            raise _unanswerable("asks for the base of an input that is a view", row.path, fix)
        inference = self._fact(number, "is_inference", row) is True  # then views have no base
        return ASIDE if root is not None and not inference else None

    def _lies_in_input(self, t: Any) -> bool:
        if not _torch.is_fake(t) or t.layout is not torch.strided:
            return False
        mine = _torch.storage_ref(t)
        return any(leaf.layout is torch.strided and _torch.storage_ref(leaf) == mine for leaf in self._leaves)

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


def _history(kind: str, name: str, path: Path) -> Any:
    """A stand-in for the node behind an input: it knows what it is called, and refuses everything else."""

    def other(self: Any, attribute: str) -> Any:
        raise _unanswerable(f"asks for .grad_fn.{attribute} of an input", path)

    return type(kind, (), {"name": lambda self: name, "__getattr__": other, "__repr__": lambda self: f"<{kind}>"})()


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
