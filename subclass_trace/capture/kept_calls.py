"""Calls of user code that a backward graph makes as it runs: one operation each, which finds the function by its number.

The operation takes the dense leaves of the tensors that the code sees and the symbolic numbers, puts the arguments
together from them (`Template`), calls the user's own function, and gives the leaves of what it returns. It has an effect: a
graph runs it once, in order, whoever reads its results.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from .. import _torch
from ..errors import TangentError, UnsupportedError
from ..subclass.context import map_sizes
from ..subclass.flatten import flatten
from ..subclass.spec import LeafSpec, Spec, WrapperSpec, leaf_count, same_spec, spec_leaves
from ..subclass.visit import map_spec, rebuild
from .facts import holds_traced

Tensor = torch.Tensor
#: makes a value of the leaves and numbers of a call
Maker: TypeAlias = Callable[[Sequence[Tensor], Sequence[int]], Any]
#: from sizes of the trace to those of a call; and how to get that from the numbers of a call
Sizes: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
SizesOfCall: TypeAlias = Callable[[Sequence[int]], Sizes]


#: what a piece of code is to autograd
Role: TypeAlias = Literal["hook", "unpack", "function"]


class SavedContext:
    """What the backward of a custom function sees as its ``ctx``: saved tensors, and attributes that the forward has set."""

    def __init__(self, saved: tuple[Any, ...], needs: tuple[bool, ...], attributes: dict[str, Any]) -> None:
        self.saved_tensors, self.needs_input_grad = saved, needs
        vars(self).update(attributes)


class Template:
    """How to make values anew that hold traced tensors and symbolic numbers; ``leaves`` and ``numbers`` are those."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.leaves: list[Tensor] = []
        self.numbers: list[Any] = []

    def maker(self, value: Any) -> Maker:
        """What makes ``value`` in a call.

        Raises:
            UnsupportedError: it holds traced tensors in a way that cannot be made anew.
        """
        if isinstance(value, torch.SymInt):
            self.numbers.append(value)
            number = len(self.numbers) - 1
            return lambda leaves, numbers: numbers[number]
        if not is_traced(value):
            return lambda leaves, numbers: value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, SavedContext):
            rows = {k: self.maker(v) for k, v in vars(value).items()}
            return lambda *given: _context({k: make(*given) for k, make in rows.items()})
        if type(value) in (tuple, list, torch.Size):
            items = list(map(self.maker, value))
            return lambda *given: type(value)(make(*given) for make in items)
        if type(value) is dict:
            table = {k: self.maker(v) for k, v in value.items()}
            return lambda *given: {k: make(*given) for k, make in table.items()}
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) is functools.partial:
            whole = self.maker((value.func, value.args, value.keywords))
            return lambda *given: _partial(*whole(*given))
        if isinstance(value, types.MethodType):
            method = self.maker((value.__func__, value.__self__))
            return lambda *given: types.MethodType(*method(*given))
        raise self._refused(f"a {type(value).__qualname__} that holds traced tensors or numbers")

    def _tensor(self, value: Tensor) -> Maker:
        leaves, spec = flatten(value)
        if value.is_nested:
            raise self._refused("a nested tensor")
        sizes = self.sizes(spec)
        places = range(len(self.leaves), len(self.leaves) + len(leaves))
        self.leaves += leaves
        tracked = value.requires_grad and value.is_floating_point()

        def make(given: Sequence[Tensor], numbers: Sequence[int]) -> Any:
            own = [given[k] for k in places]
            fresh = not isinstance(spec, LeafSpec)  # and a class need not have a ``detach`` that gives its own kind
            made = rebuild(spec, iter(own), sizes(numbers)) if fresh else own[0]
            if tracked and not made.requires_grad:
                made = (made if fresh else made.detach()).requires_grad_()
            return made

        return make

    def sizes(self, spec: Spec) -> SizesOfCall:
        """From the numbers of a call to what gives the sizes in ``spec``."""
        places: dict[Any, int] = {}

        def note(size: Any) -> Any:
            if isinstance(size, torch.SymInt) and size.node.expr not in places:
                places[size.node.expr] = len(self.numbers)
                self.numbers.append(size)
            return size

        def of(numbers: Sequence[int]) -> Sizes:
            return lambda sizes: [numbers[places[n.node.expr]] if isinstance(n, torch.SymInt) else n for n in sizes]

        map_spec(spec, lambda sizes: [*map(note, sizes)], lambda context: map_sizes(context, note))
        return of

    def _function(self, function: types.FunctionType) -> Maker:
        """A closure over traced tensors: its cells are made anew, those of everything else stay."""
        traced = [(cell, _is_traced_cell(cell)) for cell in function.__closure__ or ()]
        rows: list[tuple[Any, bool]] = [(self.maker(c.cell_contents) if inside else c, inside) for c, inside in traced]
        defaults, keywords = self.maker(function.__defaults__), function.__kwdefaults__
        rest = function.__code__, function.__globals__, function.__name__  # not the function: it holds fakes

        def make(*given: Any) -> Any:
            cells = tuple(types.CellType(one(*given)) if inside else one for one, inside in rows)
            now = types.FunctionType(*rest, defaults(*given), cells)
            now.__kwdefaults__ = keywords
            return now

        return make

    def _refused(self, got: str) -> UnsupportedError:
        return UnsupportedError(
            "user code that runs in the backward, with effects on Python state, cannot be given what it sees of the region",
            path=self.where,
            expected="tensors, numbers, and tuples, lists, dicts, functions and partials that hold them",
            got=got,
            fix="hand over tensors, or let this code do without effects",
        )


def _context(attributes: dict[str, Any]) -> SavedContext:
    own = dict(attributes)
    return SavedContext(own.pop("saved_tensors"), own.pop("needs_input_grad"), own)


def _partial(function: Any, args: Any, keywords: Any) -> Any:
    return functools.partial(function, *args, **keywords)


def is_traced(value: Any, depth: int = 4) -> bool:
    """Does it hold traced tensors or symbolic numbers, also in the cells of a closure?"""
    if isinstance(value, SavedContext) or holds_traced(value):
        return True
    if depth == 0:
        return False
    if isinstance(value, types.FunctionType):
        return any(_is_traced_cell(c, depth - 1) for c in value.__closure__ or ()) or is_traced(
            value.__defaults__, depth - 1
        )
    if type(value) is functools.partial:
        return any(is_traced(v, depth - 1) for v in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.MethodType):
        return is_traced(value.__self__, depth - 1)
    if type(value) in (tuple, list):
        return any(is_traced(v, depth - 1) for v in value)
    return False


def _is_traced_cell(cell: types.CellType, depth: int = 4) -> bool:
    try:
        return is_traced(cell.cell_contents, depth)
    except ValueError:  # empty
        return False


def _at(spec: Spec, sizes: Sizes) -> Spec:
    if not isinstance(spec, WrapperSpec):
        return spec
    return map_spec(spec, sizes, lambda context: map_sizes(context, lambda n: sizes((n,))[0]))


# ---------------------------------------------------------------------------------------------- calls
@dataclass(eq=False)
class KeptCall:
    """One call.

    Attributes:
        function, arguments: make the user's function and its arguments.
        results: spec of each result of the trace, and how to get its sizes; None where there is none.
        role: of what a "hook" does not return, the incoming gradient stands; it is argument ``gradients``, and ``results``
            are as that. An "unpack" hook returns one tensor. The backward of a custom "function" returns gradients.
        copies: the back end may use the memory of its tensors again, so the code gets copies, and what it gives is copied.
    """

    function: Maker
    arguments: Sequence[Maker]
    results: Sequence[tuple[Spec, SizesOfCall] | None]
    role: Role
    gradients: int
    copies: bool
    where: str

    def run(self, inputs: Sequence[Tensor], numbers: Sequence[int], layout: Sequence[int]) -> list[Tensor]:
        """The leaves of the results, laid out as ``layout`` says (see `layout_of`)."""
        given = [t.clone() for t in inputs] if self.copies else inputs
        arguments = [make(given, numbers) for make in self.arguments]
        result = self.function(given, numbers)(*arguments)
        if self.role == "hook":
            result = arguments[self.gradients] if result is None else result
        found = list(result) if isinstance(result, (tuple, list)) and self.role != "unpack" else [result]
        if self.role == "function":  # a custom function may return more than it has arguments, if they are None
            found = found[: len(self.results)]
        if len(found) != len(self.results):
            raise self._other(f"{len(self.results)} gradients", f"{len(found)}")
        leaves: list[Tensor] = []
        shapes = _shapes(layout)
        for value, row in zip(found, self.results, strict=True):
            if row is None:
                if value is not None:
                    raise self._other("no gradient, as when it was traced", f"a {type(value).__qualname__}")
                continue
            spec = _at(row[0], row[1](numbers))
            rows = list(itertools.islice(shapes, leaf_count(spec)))
            if value is None and self.role != "unpack":
                kinds = zip(rows, spec_leaves(spec), strict=True)
                leaves += [torch.zeros(size, dtype=s.dtype, device=s.device) for (size, _), s in kinds]
                continue
            leaves += self._leaves(value, spec, rows)
        return leaves

    def _leaves(self, value: Any, spec: Spec, rows: Sequence[tuple[list[int], list[int]]]) -> Iterator[Tensor]:
        if not isinstance(value, Tensor):
            raise self._other("a tensor", f"a {type(value).__qualname__}")
        own, now = flatten(value)
        if isinstance(spec, WrapperSpec) and not same_spec(now, spec, strides=False):
            raise self._other(str(spec), str(now))
        if not isinstance(spec, WrapperSpec) and isinstance(now, WrapperSpec):
            raise self._other("a dense tensor", f"a {now.cls.__qualname__}")
        for leaf, (size, stride), wanted in zip(own, rows, spec_leaves(spec), strict=True):
            if tuple(leaf.shape) != tuple(size):  # autograd sums over what was expanded
                if isinstance(spec, WrapperSpec) or self.role != "function":
                    raise self._other(f"size {tuple(size)}", f"size {tuple(leaf.shape)}")
                leaf = leaf.sum_to_size(size)
            if leaf.dtype != wanted.dtype:
                if self.role == "unpack":
                    raise self._other(str(wanted.dtype), str(leaf.dtype))
                leaf = leaf.to(wanted.dtype)
            yield _laid_out(leaf.detach() if leaf.requires_grad else leaf, stride, self.copies)

    def _other(self, expected: str, got: str) -> TangentError:
        return TangentError(
            "user code in the backward returns something else than its trace has",
            path=self.where,
            expected=expected,
            got=got,
            fix="let it return the same kind of tensors in each call, or move this part out of the region",
        )


def _laid_out(t: Tensor, stride: Sequence[int], copy: bool) -> Tensor:
    if not copy and tuple(t.stride()) == tuple(stride):
        return t
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)


def layout_of(leaves: Sequence[Tensor]) -> list[Any]:
    """Dimension, sizes and strides of each, one after the other."""
    return [n for t in leaves for n in (t.dim(), *t.shape, *t.stride())]


def _shapes(layout: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    place = 0
    while place < len(layout):
        dim = int(layout[place])
        yield [*layout[place + 1 : place + 1 + dim]], [*layout[place + 1 + dim : place + 1 + 2 * dim]]
        place += 1 + 2 * dim


# ---------------------------------------------------------------------------------------------- the operation
_calls = weakref.WeakValueDictionary[int, KeptCall]()
_numbers = itertools.count()
_library: list[Any] = []  # what is registered lasts as long as this object


def number_of(call: KeptCall) -> int:
    """The number by which the operation finds a call, for as long as somebody holds that."""
    number = next(_numbers)
    _calls[number] = call
    return number


@functools.cache
def operation() -> Any:
    """``user_code``, registered on the first call."""
    library: Any = torch.library.Library("subclass_trace", "FRAGMENT")  # type: ignore[no-untyped-call]
    _library.append(library)
    library.define("user_code(int call, Tensor[] leaves, SymInt[] numbers, SymInt[] layout) -> Tensor[]")
    library.impl("user_code", _run, "CompositeExplicitAutograd")
    library.impl(
        "user_code", _run, "Batched"
    )  # in a vmapped backward (``is_grads_batched``) the code sees batched tensors
    torch.library.register_fake("subclass_trace::user_code", _fake, lib=library)
    _library.append(_torch.register_effect(torch.ops.subclass_trace.user_code.default))
    return torch.ops.subclass_trace.user_code.default


def _run(call: int, leaves: Sequence[Tensor], numbers: Sequence[int], layout: Sequence[int]) -> list[Tensor]:
    return _calls[call].run(leaves, numbers, layout)


def _fake(call: int, leaves: Sequence[Tensor], numbers: Sequence[Any], layout: Sequence[Any]) -> list[Tensor]:
    specs = [s for row in _calls[call].results if row is not None for s in spec_leaves(row[0])]
    rows = zip(specs, _shapes(layout), strict=True)
    return [torch.empty_strided(size, stride, dtype=s.dtype, device=s.device) for s, (size, stride) in rows]
