"""Quick calls of an operation: the cheapest callable that does exactly the same.

``torch.ops.aten.add.Tensor(x, y)`` spends more time in Python and in boxing than
``torch.add(x, y)`` does. But a Python function may issue other operations than its name says
(``torch.reshape`` issues ``view`` or ``clone``), fill in arguments from global state
(``torch.empty`` the default dtype), or issue nothing (``Tensor.contiguous``). So a C binding is
used only when it is proved, else the operation's raw C++ callable is. See Note [Proof of a
binding].

    >>> x = fx.Graph().placeholder("x")
    >>> x.meta["val"] = torch.ones(2, 3)
    >>> bind_call(torch.ops.aten.add.Tensor, (x, 1.0), {}).name
    'torch.add'
    >>> bind_call(torch.ops.aten.reshape.default, (x, [3, 2]), {}).name
    'aten.reshape.default'

Note [Proof of a binding]
~~~~~~~~~~~~~~~~~~~~~~~~~
A C binding is an argument parser, perhaps some handwritten code, and a call of the dispatcher. What
the dispatcher does then is the same for the binding and for the raw callable, so it is enough to
look at the calls that reach it. The
binding is called on *stand-ins*: strided tensors without data that require grad and have the
dispatch keys of real ones. A dispatch mode records what arrives and answers with stand-ins; nothing
runs. It must record one call: of this overload, with these very tensors and these very numbers.

The stand-ins are made from a *pattern* of the arguments: tensors as (rank, dtype, device), symbolic
sizes as "a number", constants as themselves. The proof reads the pattern and nothing else, so its
result is cached under the pattern's text. Rank, dtype and device stay in the pattern, because
argument parsers look at them: a tensor of rank 0 may be taken for a number.

One more call is allowed: factories (``torch.full``) turn what they made into a variable; with a
dispatch mode, which holds a second reference to it, that takes a ``detach`` of the answer. Without
a mode it takes nothing.

The state is that of compiled code at run time (`torch_api.modes.plain_dispatch`): no gradients, so
that composite operations are seen as what they issue; no inference mode, where they would be seen
as themselves; no autocast, no modes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx as fx

from ...subclass.values import same
from ...torch_api.dynamo import higher_order_name
from ...torch_api.kinds import is_dense
from ...torch_api.modes import DispatchMode, functorch_active, no_overrides, plain_dispatch
from ...torch_api.operators import (
    BINDING_HOLDERS,
    OpOverload,
    StandIn,
    op_name,
    op_schema,
    raw_callable,
)

_CONSTANTS = (
    int,
    bool,
    str,
    type(None),
    float,
    complex,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_INDEX = "_base_index"
_BINDING_TYPES = (type(torch.add), type(torch.Tensor.add))
_aten = torch.ops.aten


class Binding(NamedTuple):
    """What takes the arguments of an operation as they stand in the graph, and its name for
    people."""

    callable: Callable[..., Any]
    name: str


def bind_call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Binding:
    """The cheapest callable that does what ``op`` does, for arguments like these.

    Never fails: without an example value, or without a proof, the answer is the target's own
    callable. The first call for a pattern of arguments costs some tens of microseconds, later ones
    a few.

    Args:
        args, kwargs: may be nodes, which carry example values in ``meta["val"]``, fake or real, or
            numbers.
    """
    if not isinstance(op, OpOverload):
        if higher_order_name(op) == "auto_functionalized_v2" and _writes_whole_bases(
            args[0], kwargs
        ):
            return Binding(_write_to_copies, "write_to_copies")
        return Binding(op, str(getattr(op, "__name__", op)))
    if op in _SIZE_READS:
        return _SIZE_READS[op]
    given = _patterns(op, args, kwargs)
    if given is None:
        return _raw(op)
    key = op, repr(given)  # tells 1 from True and 1.0, and 0.0 from -0.0
    found = _cache.get(key)
    if found is None:
        # dispatch is not what it will be at run time: neither prove nor remember
        if functorch_active():
            return _raw(op)
        found = _search(op, *given)
        _cache[key] = found
    return found


def _patterns(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the proof for such arguments reads; None where there is none."""
    if op.namespace != "aten":
        return None
    try:
        # reading a fake tensor's dtype is an override to a user's function mode
        with no_overrides():
            return _pattern(tuple(args)), {k: _pattern(v) for k, v in kwargs.items()}
    except _NoPattern:
        return None


def proved(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """What was proved for a call, to be learnt elsewhere: the pattern, and where the function was
    found.

    None where nothing is to be proved.
    """
    if not isinstance(op, OpOverload) or op in _SIZE_READS:
        return None
    given = _patterns(op, args, kwargs)
    binding = None if given is None else _cache.get((op, repr(given)))
    if binding is None:
        return None
    holder = binding.name.removesuffix(f".{op_name(op)}")
    known = any(name == holder for name, _ in BINDING_HOLDERS)
    return repr(given), holder if known else "other" if binding is _OTHER_NAMES.get(op) else "raw"


def learn(op: OpOverload, pattern: str, where: str) -> None:
    """What another process has proved: the function follows from the operation, whatever is said.

    Raises:
        KeyError: no such place.
    """
    holders = dict(BINDING_HOLDERS)
    if where == "raw":
        found = _raw(op)
    elif where == "other":
        found = _OTHER_NAMES[op]
    else:
        name = op_name(op)
        function: Any = getattr(holders[where], name, None)
        if type(function) not in _BINDING_TYPES:
            raise KeyError(name)
        found = Binding(function, f"{where}.{name}")
    _cache.setdefault((op, pattern), found)


def _raw(op: OpOverload) -> Binding:
    # Subclasses of OpOverload (TorchBind objects) do work of their own in __call__.
    return Binding(raw_callable(op) if type(op) is OpOverload else op, str(op))


def _writes_whole_bases(op: Any, given: Mapping[str, Any]) -> bool:
    """Does a custom operation that writes to arguments write to no views: does
    `auto_functionalized_v2` say nothing of any?"""
    names = {p.name for p in op_schema(op).arguments} if isinstance(op, OpOverload) else set()
    indices = {f"_{n}{_INDEX}" for n in names if type(given.get(f"_{n}{_INDEX}")) is int}
    if not given.keys() <= {*names, *indices, "_all_bases"} or any(
        n.endswith(_INDEX) for n in names
    ):
        return False
    return bool(indices) and all(is_dense(b.meta["val"]) for b in given["_all_bases"])


def _write_to_copies(
    op: Any, /, _all_bases: Sequence[torch.Tensor], **given: Any
) -> tuple[Any, ...]:
    """What `auto_functionalized_v2` does then, in a tenth of the time."""
    copies = [b.clone() for b in _all_bases]
    for key in [key for key in given if key.endswith(_INDEX)]:
        given[key[1 : -len(_INDEX)]] = copies[given.pop(key)]
    found = op(**given)
    return (*(found if isinstance(found, tuple) else (found,)), *copies)


def _index(x: Any, indices: Sequence[Any]) -> Any:
    return x[(*indices,)]


def _check_scalar(condition: Any, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


# Metadata reads reach no dispatcher on plain tensors. These say the same by definition.
_SIZE_READS: dict[Any, Binding] = {
    _aten._assert_scalar.default: Binding(_check_scalar, "check_scalar"),
    _aten.sym_size.int: Binding(torch.Tensor.size, "torch.Tensor.size"),
    _aten.sym_stride.int: Binding(torch.Tensor.stride, "torch.Tensor.stride"),
    _aten.sym_numel.default: Binding(torch.Tensor.numel, "torch.Tensor.numel"),
    _aten.sym_storage_offset.default: Binding(
        torch.Tensor.storage_offset, "torch.Tensor.storage_offset"
    ),
}
# What Python calls otherwise than the operation is called; proved like the others.
_OTHER_NAMES: dict[Any, Binding] = {
    _aten.index.Tensor: Binding(_index, "index"),
    _aten._to_copy.default: Binding(torch.Tensor.to, "torch.Tensor.to"),
}
_cache: dict[Any, Binding] = {}


# ---- patterns
class _NoPattern(Exception):
    """An argument cannot be described by a pattern."""


class _Tensor(NamedTuple):
    rank: int
    dtype: torch.dtype
    device: torch.device


class _Number(NamedTuple):
    """A number that is known only at run time."""

    type: type


_NUMBERS = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
    int: int,
    float: float,
    bool: bool,
}


def _pattern(arg: Any) -> Any:
    """An argument with patterns in the place of nodes."""
    if isinstance(arg, fx.Node):
        return _value_pattern(arg.meta.get("val"))
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
    raise _NoPattern


# ---- proofs
def _search(op: OpOverload, args: Any, kwargs: Any) -> Binding:
    name = op_name(op)
    with plain_dispatch():
        for holder_name, holder in BINDING_HOLDERS:
            function: Any = getattr(holder, name, None)
            if type(function) in _BINDING_TYPES and _issues_only(function, op, args, kwargs):
                return Binding(function, f"{holder_name}.{name}")
        if op in _OTHER_NAMES and _issues_only(_OTHER_NAMES[op].callable, op, args, kwargs):
            return _OTHER_NAMES[op]
    return _raw(op)


def _issues_only(function: Any, op: OpOverload, args: Any, kwargs: Any) -> bool:
    """Does ``function`` issue ``op`` with these arguments, nothing else, and return its result?"""
    numbers = itertools.count(5)
    values = _realize(args, numbers)
    options = {k: _realize(v, numbers) for k, v in kwargs.items()}
    try:
        with _Recorder(op) as recorder:
            result = function(*values, **options)
    except Exception:  # whatever it is, this function is not this operation
        return False
    return (
        recorder.call is not None
        and _same_call(op, (values, options), recorder.call)
        and recorder.gave(result)
    )


def _realize(pattern: Any, numbers: Iterator[int]) -> Any:
    """A value of this pattern: new stand-ins for tensors, so that no two of them are the same
    object."""
    if isinstance(pattern, _Tensor):
        return _stand_in(pattern, pattern.dtype.is_floating_point or pattern.dtype.is_complex)
    if isinstance(pattern, _Number):
        return pattern.type(next(numbers))
    return (
        type(pattern)([_realize(p, numbers) for p in pattern])
        if isinstance(pattern, (list, tuple))
        else pattern
    )


def _stand_in(pattern: _Tensor, requires_grad: bool = False) -> torch.Tensor:
    size = tuple(range(2, 2 + pattern.rank))
    stride = tuple(3 * math.prod(size[:d]) for d in range(pattern.rank))
    return StandIn.make(size, stride, pattern.dtype, pattern.device, torch.strided, requires_grad)


class _Recorder(DispatchMode):  # type: ignore[misc]
    """Records what reaches the dispatcher, and answers in the form that ``op`` answers in. Runs
    nothing."""

    def __init__(self, op: OpOverload) -> None:
        super().__init__()
        self.op = op
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.answer: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.call is not None and func is _aten.detach.default and args[0] is self.answer:
            return self.answer  # see Note [Proof of a binding]
        if func is not self.op or self.call is not None:
            raise _Unexpected(func)
        self.call = args, kwargs or {}
        answers = [_answer(func, ret, args, kwargs or {}) for ret in op_schema(func).returns]
        self.answer = None if not answers else answers[0] if len(answers) == 1 else tuple(answers)
        return self.answer

    def gave(self, result: Any) -> bool:
        """Is this the answer?"""
        if isinstance(self.answer, (list, tuple)):
            return isinstance(result, (list, tuple)) and [*map(id, result)] == [
                *map(id, self.answer)
            ]
        return result is self.answer


class _Unexpected(Exception):
    """Something else than the wanted operation, or more than it, was issued; or it gives no
    tensors."""


_RESULT = _Tensor(1, torch.float32, torch.device("cpu"))


def _answer(op: Any, ret: Any, args: Any, kwargs: Any) -> Any:
    # an in-place or out= operation returns its argument
    if ret.alias_info is not None and ret.alias_info.is_write:
        wanted, rows = (
            ret.alias_info.before_set,
            zip(op._schema.arguments, _by_parameter(op, args, kwargs), strict=True),
        )
        return next(v for p, v in rows if p.alias_info and p.alias_info.before_set == wanted)
    if str(ret.type) == "List[Tensor]":
        return [_stand_in(_RESULT), _stand_in(_RESULT)]
    if str(ret.type) != "Tensor":
        raise _Unexpected(op)
    return _stand_in(_RESULT)


# ---- comparisons
def _by_parameter(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the schema, defaults filled in."""
    return [
        *args,
        *(kwargs.get(p.name, p.default_value) for p in op._schema.arguments[len(args) :]),
    ]


def _same_call(op: Any, passed: tuple[Any, Any], seen: tuple[Any, Any]) -> bool:
    parameters = op._schema.arguments
    if not {p.name for p in parameters}.issuperset(passed[1]):
        return False
    rows = zip(_by_parameter(op, *passed), _by_parameter(op, *seen), parameters, strict=True)
    return all(
        _same_argument(a, b, str(p.type)) or (p.name, a, b) == ("pin_memory", None, False)
        for a, b, p in rows
    )


def _same_argument(passed: Any, seen: Any, kind: str) -> bool:
    if isinstance(passed, torch.Tensor) or isinstance(seen, torch.Tensor):
        return passed is seen
    if isinstance(passed, (list, tuple)) and isinstance(seen, (list, tuple)):
        return len(passed) == len(seen) and all(
            _same_argument(a, b, "") for a, b in zip(passed, seen, strict=True)
        )
    if "float" in kind and type(passed) is int:  # the raw callable converts as well
        passed = float(passed)
    return same(passed, seen)
