"""Fast ways to call an operation: an fx node goes in, the cheapest callable that does exactly the same comes out.

``torch.ops.aten.add.Tensor(x, y)`` spends more time in Python and in boxing than ``torch.add(x, y)`` does. But a Python
function may issue other operations than its name says (``torch.reshape`` issues ``view`` or ``clone``), fill in
arguments from global state (``torch.empty`` the default dtype), or issue nothing (``Tensor.contiguous``). So a C
binding is used only when it is proved, else the operation's raw C++ callable is. See Note [Proof of a binding].

    >>> import operator
    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> x.meta["val"] = torch.ones(2, 3)
    >>> bind(graph.call_function(torch.ops.aten.add.Tensor, (x, 1.0)))
    Binding(torch.add, kind='binding')
    >>> bind(graph.call_function(torch.ops.aten.reshape.default, (x, [3, 2])))
    Binding(aten.reshape.default, kind='op')

Note [Proof of a binding]
~~~~~~~~~~~~~~~~~~~~~~~~~
A C binding is an argument parser, perhaps some handwritten code, and a call of the dispatcher. What the dispatcher does
then is the same for the binding and for the raw callable, so it is enough to look at the calls that reach it. The
binding is called on *stand-ins*: tensors without data that have the dispatch keys of real ones. A dispatch mode records
what arrives and answers with stand-ins; nothing runs, so no data, no random state, no version counter and no size
symbol is touched. It must record one call: of this overload, with these very tensors and these very numbers.

The stand-ins are made from a *pattern* of the node's arguments: strided tensors as (rank, dtype, device), symbolic
sizes as "a number", constants as themselves. The proof reads the pattern and nothing else, which is why its result may
be cached under the pattern's text. What the pattern leaves out is varied instead: the proof is made in two worlds, one with
sizes and numbers of 1, contiguous, without requires_grad; one with larger ones, strided, with requires_grad. A binding
that looks at any of these issues something else in one of them. Rank, dtype and device stay in the pattern,
because argument parsers look at them: a tensor of rank 0 may be taken for a number.

One more call is allowed: factories (``torch.full``) turn what they made into a variable; with a dispatch mode, which
holds a second reference to it, that takes a ``detach`` of the answer. Without a mode it takes nothing.

The state is that of compiled code at run time (`torch_api.plain_dispatch`): no gradients, so that composite operations are
seen as what they issue; no inference mode, where they would be seen as themselves; no autocast, no modes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.fx as fx

from ... import torch_api

_CACHE_LIMIT = 8192
_CONSTANTS = (int, bool, str, type(None), float, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
_BINDING_TYPES = (type(torch.add), type(torch.Tensor.add))


@dataclass(frozen=True, slots=True, repr=False)
class Binding:
    """How to call the target of a node.

    Attributes:
        callable: takes the arguments of the node as they stand in the graph.
        kind: ``"binding"`` is a Python-level C binding that was proved; ``"op"`` the target's own callable.
        name: for people.
    """

    callable: Callable[..., Any]
    kind: Literal["binding", "op"]
    name: str

    def __repr__(self) -> str:
        return f"Binding({self.name}, kind={self.kind!r})"


def bind(node: fx.Node) -> Binding:
    """The cheapest callable that does what ``node`` does, for arguments like those in ``node.meta["val"]``.

    Never fails for a ``call_function`` node: without an example value, or without a proof, the answer is the target's
    own callable. The first call for a pattern of arguments costs some tens of microseconds, later ones a few.

    Args:
        node: a ``call_function`` node. Its inputs carry example values in ``meta["val"]``, fake or real, or numbers.
    """
    return bind_call(node.target, node.args, node.kwargs)


def bind_call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Binding:
    """`bind` for a call that is no node; its arguments may be nodes."""
    if not isinstance(op, torch_api.OpOverload):
        return Binding(op, "op", str(getattr(op, "__name__", op)))
    if op.namespace != "aten":
        return _raw(op)
    if op in _SIZE_READS:
        return _SIZE_READS[op]
    try:
        with torch_api.no_overrides():  # reading a fake tensor's dtype is an override to a user's function mode
            given = _pattern(tuple(args)), {k: _pattern(v) for k, v in kwargs.items()}
            key = op, repr(given)  # tells 1 from True and 1.0, and 0.0 from -0.0
    except _NoPattern:
        return _raw(op)
    found = _cache.get(key)
    if found is None:
        if torch_api.functorch_active():  # dispatch is not what it will be at run time: neither prove nor remember
            return _raw(op)
        found = _search(op, *given)
        if len(_cache) >= _CACHE_LIMIT:
            _cache.clear()
        _cache[key] = found
    return found


def _raw(op: torch_api.OpOverload) -> Binding:
    # Subclasses of OpOverload (TorchBind objects) do work of their own in __call__.
    return Binding(torch_api.raw_callable(op) if type(op) is torch_api.OpOverload else op, "op", str(op))


def _check_scalar(condition: Any, text: str) -> None:
    """``_assert_scalar``, with the type of error that eager has where an index is out of range."""
    if not condition:
        raise (IndexError if "out of range for dimension" in text else RuntimeError)(text)


_aten = torch.ops.aten
# Metadata reads reach no dispatcher on plain tensors. These say the same by definition.
_SIZE_READS: dict[Any, Binding] = {
    _aten._assert_scalar.default: Binding(_check_scalar, "op", "check_scalar"),
    torch.ops.aten.sym_size.int: Binding(torch.Tensor.size, "binding", "torch.Tensor.size"),
    torch.ops.aten.sym_stride.int: Binding(torch.Tensor.stride, "binding", "torch.Tensor.stride"),
    torch.ops.aten.sym_numel.default: Binding(torch.Tensor.numel, "binding", "torch.Tensor.numel"),
    torch.ops.aten.sym_storage_offset.default: Binding(
        torch.Tensor.storage_offset, "binding", "torch.Tensor.storage_offset"
    ),
}
_cache: dict[Any, Binding] = {}


# ---------------------------------------------------------------------------------------------- patterns
class _NoPattern(Exception):
    """An argument cannot be described by a pattern."""


class _Tensor(NamedTuple):
    rank: int
    dtype: torch.dtype
    device: torch.device


class _Number(NamedTuple):
    """A number that is known only at run time."""

    type: type


_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool, int: int, float: float, bool: bool}


def _pattern(arg: Any) -> Any:
    """An argument with patterns in the place of nodes."""
    if isinstance(arg, fx.Node):
        return _value_pattern(_example(arg))
    if isinstance(arg, (list, tuple)):
        return [*map(_pattern, arg)] if isinstance(arg, list) else tuple(map(_pattern, arg))
    if type(arg) in _CONSTANTS:
        return arg
    raise _NoPattern


def _value_pattern(val: Any) -> Any:
    if isinstance(val, torch.Tensor) and val.layout is torch.strided:  # stand-ins have strides
        return _Tensor(val.dim(), val.dtype, val.device)
    if type(val) in _NUMBERS:
        return _Number(_NUMBERS[type(val)])
    if isinstance(val, (list, tuple)):
        return [*map(_value_pattern, val)] if isinstance(val, list) else tuple(map(_value_pattern, val))
    raise _NoPattern


def _example(node: fx.Node) -> Any:
    if "val" in node.meta:
        return node.meta["val"]
    if node.op == "get_attr" and node.graph.owning_module is not None:
        return operator.attrgetter(str(node.target))(node.graph.owning_module)
    raise _NoPattern


# ---------------------------------------------------------------------------------------------- proofs
def _search(op: torch_api.OpOverload, args: Any, kwargs: Any) -> Binding:
    name = torch_api.op_name(op)
    with torch_api.plain_dispatch():
        for holder_name, holder in torch_api.BINDING_HOLDERS:
            function: Any = getattr(holder, name, None)
            if type(function) in _BINDING_TYPES and all(_issues_only(function, op, args, kwargs, w) for w in (0, 1)):
                return Binding(function, "binding", f"{holder_name}.{name}")
    return _raw(op)


def _issues_only(function: Any, op: torch_api.OpOverload, args: Any, kwargs: Any, world: int) -> bool:
    """In this world, does ``function`` issue ``op`` with these arguments, nothing else, and return its result?"""
    numbers = iter(itertools.count(5) if world else itertools.repeat(1))
    values = _realize(args, world, numbers)
    options = {k: _realize(v, world, numbers) for k, v in kwargs.items()}
    try:
        with _Recorder(op) as recorder:
            result = function(*values, **options)
    except Exception:  # whatever it is, this function is not this operation
        return False
    if not recorder.calls:
        return False
    return _same_call(op, (values, options), recorder.calls[0]) and _same_result(result, recorder.answer)


def _realize(pattern: Any, world: int, numbers: Iterator[int]) -> Any:
    """A value of this pattern: new stand-ins for tensors, so that no two of them are the same object."""
    if isinstance(pattern, _Tensor):
        return _stand_in(pattern, world, bool(world) and (pattern.dtype.is_floating_point or pattern.dtype.is_complex))
    if isinstance(pattern, _Number):
        number = next(numbers)
        return bool(world) if pattern.type is bool else pattern.type(number)
    if isinstance(pattern, (list, tuple)):
        return type(pattern)([_realize(item, world, numbers) for item in pattern])
    return pattern


def _stand_in(pattern: _Tensor, world: int, requires_grad: bool) -> torch.Tensor:
    size = tuple(range(2, 2 + pattern.rank)) if world else (1,) * pattern.rank
    stride = tuple(3 * math.prod(size[:d]) for d in range(pattern.rank)) if world else (1,) * pattern.rank
    return torch_api.StandIn.make(size, stride, pattern.dtype, pattern.device, torch.strided, requires_grad)


class _Recorder(torch_api.DispatchMode):  # type: ignore[misc]
    """Records what reaches the dispatcher, and answers in the form that ``op`` answers in. Runs nothing."""

    def __init__(self, op: torch_api.OpOverload) -> None:
        super().__init__()
        self.op = op
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.answer: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.calls and func is torch.ops.aten.detach.default and args[0] is self.answer:
            return self.answer  # see Note [Proof of a binding]
        if func is not self.op or self.calls:
            raise _Unexpected(func)
        self.calls.append((args, kwargs or {}))
        returns = torch_api.op_schema(func).returns
        answers = [_answer(func, ret, args, kwargs or {}) for ret in returns]
        self.answer = None if not answers else answers[0] if len(answers) == 1 else tuple(answers)
        return self.answer


class _Unexpected(Exception):
    """Something else than the wanted operation, or more than it, was issued."""


_RESULT = _Tensor(1, torch.float32, torch.device("cpu"))
_SIMPLE_RESULTS: dict[str, Any] = {"int": 1, "SymInt": 1, "float": 1.0, "number": 1.0, "bool": True}


def _answer(op: Any, ret: Any, args: Any, kwargs: Any) -> Any:
    if ret.alias_info is not None and ret.alias_info.is_write:  # an in-place or out= operation returns its argument
        given = _by_parameter(op, args, kwargs)
        wanted = ret.alias_info.before_set
        parameters = torch_api.op_schema(op).arguments
        return next(
            v for p, v in zip(parameters, given, strict=True) if p.alias_info and p.alias_info.before_set == wanted
        )
    kind = str(ret.type)
    if kind == "Tensor":
        return _stand_in(_RESULT, 0, False)
    if kind == "List[Tensor]":
        return [_stand_in(_RESULT, 0, False), _stand_in(_RESULT, 0, False)]
    return _SIMPLE_RESULTS[kind]


# ---------------------------------------------------------------------------------------------- comparisons
def _by_parameter(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the schema, defaults filled in."""
    parameters = torch_api.op_schema(op).arguments
    rest = [kwargs.get(p.name, p.default_value) for p in parameters[len(args) :]]
    return [*args, *rest]


def _same_call(op: Any, passed: tuple[Any, Any], seen: tuple[Any, Any]) -> bool:
    parameters = torch_api.op_schema(op).arguments
    if not {p.name for p in parameters}.issuperset(passed[1]):
        return False
    rows = zip(_by_parameter(op, *passed), _by_parameter(op, *seen), parameters, strict=True)
    return all(_same_argument(a, b, str(p.type)) for a, b, p in rows)


def _same_argument(passed: Any, seen: Any, kind: str) -> bool:
    if isinstance(passed, torch.Tensor) or isinstance(seen, torch.Tensor):
        return passed is seen
    if isinstance(passed, (list, tuple)) and isinstance(seen, (list, tuple)):
        return len(passed) == len(seen) and all(_same_argument(a, b, "") for a, b in zip(passed, seen, strict=True))
    if "float" in kind and type(passed) is int:  # the raw callable converts as well
        passed = float(passed)
    return type(passed) is type(seen) and bool(passed == seen or (passed != passed and seen != seen))


def _same_result(result: Any, answer: Any) -> bool:
    if isinstance(answer, (list, tuple)):
        return isinstance(result, (list, tuple)) and [*map(id, result)] == [*map(id, answer)]
    return result is answer or (not isinstance(answer, torch.Tensor) and bool(result == answer))
