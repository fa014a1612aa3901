"""What an operation's schema says about memory: which results are arguments, and which are views of arguments.

`finisher` makes the function that puts a rule's results right accordingly. It does what torch's
``return_and_correct_aliasing`` does, with everything decided once per operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_api
from ..errors import ProtocolError
from ..torch_api import authors as _authors

Finish = Callable[[tuple[Any, ...], dict[str, Any], Any], Any]
aten = torch.ops.aten

#: Views that look at the same bytes as something else: they mean nothing on an inner tensor that is no plain value.
BIT_VIEWS = frozenset({aten.view.dtype, aten.view_as_real.default, aten.view_as_complex.default})


@dataclass(frozen=True, slots=True)
class Argument:
    """Where an operation takes an argument: by position or, if it is not given there, by name."""

    position: int
    name: str

    def of(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The argument of this call."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


@dataclass(frozen=True, slots=True)
class Effects:
    """What an operation does to memory.

    Attributes:
        writes: the arguments that it writes to.
        results: for each result the argument that it is, or is a view of, else None.
        replaced: for each result: is it the argument itself?
        metadata: it changes sizes or strides of an argument in place.
    """

    writes: tuple[Argument, ...]
    results: tuple[Argument | None, ...]
    replaced: tuple[bool, ...]
    metadata: bool

    def written(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """The tensors that this call writes to."""
        for argument in self.writes:
            value = argument.of(args, kwargs)
            for t in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(t, torch.Tensor):
                    yield t

    @property
    def returns_arguments(self) -> bool:
        """Is every result an argument (or is there none)?"""
        return all(self.replaced)


@functools.cache
def effects_of(func: Any) -> Effects:
    """The effects that the schema of an operation declares."""
    schema = torch_api.op_schema(func)
    writes, sources = [], {}
    for position, a in enumerate(schema.arguments):
        if a.alias_info is not None:
            argument = Argument(position, a.name)
            sources.update({(s, a.alias_info.is_write): argument for s in a.alias_info.before_set})
            if a.alias_info.is_write:
                writes.append(argument)
    results: list[Argument | None] = []
    for r in schema.returns:
        results.append(None if r.alias_info is None else _source(r.alias_info, sources))
    replaced = tuple(r.alias_info is not None and r.alias_info.is_write for r in schema.returns)
    return Effects(tuple(writes), tuple(results), replaced, torch.Tag.inplace_view in func.tags)


def _source(alias: Any, sources: dict[tuple[str, bool], Argument]) -> Argument | None:
    names: set[str] = alias.before_set
    if not names:  # a list of views: torch's parser drops the name, and there is one argument that it can be
        return next((argument for (_, write), argument in sources.items() if write == alias.is_write), None)
    return next((sources.get((name, alias.is_write)) for name in names), None)


def is_view(func: Any) -> bool:
    """Does the operation return views of its first argument?"""
    return bool(func.is_view)


@functools.cache
def finisher(func: Any) -> Finish | None:
    """The function (args, kwargs, out) -> out that makes the results of a rule right; None if nothing is to be done.

    In-place and out= operations return the very argument; views claim the storage of their base.
    """
    effects = effects_of(func)
    if all(r is None for r in effects.results) and not effects.metadata:
        return None
    if effects.metadata or len(effects.results) > 1:  # torch also brings the sizes of the outer tensor up to date
        return functools.partial(torch_api.return_and_correct_aliasing, func)
    (source,), (itself,) = effects.results, effects.replaced
    assert source is not None
    return (lambda a, k, out: source.of(a, k)) if itself else (lambda a, k, out: _view(func, source.of(a, k), out))


def _view(func: Any, base: Any, out: Any) -> Any:
    """``out``, one view of ``base`` or a list of them, claiming its storage."""
    for t in out if isinstance(out, (list, tuple)) else [out]:
        if type(t) is not type(base):
            cls = type(base).__name__
            raise ProtocolError(
                f"the rule of {cls} for {func} returned something else than a view",
                path=cls,
                expected=f"{cls} over views of the inner tensors, since writes to a view must reach its base",
                got=type(t).__qualname__,
                fix=f"return {cls}, or raise an error where there is no such view",
            )
        if t is not base:
            _authors.alias_storage(t, base)
    return out
