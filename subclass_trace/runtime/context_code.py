"""Emits the comparison of a context with what guards keep of it: `same_context`, as straight lines where that is faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..subclass.components import source_at, unread_of
from ..subclass.context import KeptPlain, Unread, same_context
from ..subclass.wholes import Wholes
from .source import Source

#: of these the same object is the same value
IDENTITY = (bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, type)


def plain_of(context: Any) -> KeptPlain | None:
    """What is kept of a container of nothing but numbers and strings; None for anything else."""
    return context if isinstance(context, KeptPlain) else KeptPlain.of(context)


def same_code(source: Source, now: str, known: Any) -> str:
    """The condition that the value ``now`` is the same as the known one, as source."""
    constant = source.constant(known, "context")
    if isinstance(known, IDENTITY):
        return f"{now} is {constant}"
    if type(known) in (int, str, bytes):
        return f"type({now}) is {type(known).__name__} and {now} == {constant}"
    plain = plain_of(known)
    if plain is not None:
        return f"{source.constant(plain.holds, 'is_context')}({now})"
    same = f"{source.bind('same_context', same_context)}({constant}, {now})"
    return same if type(known) is tuple else f"({now} is {constant} or {same})"


def keeps_code(source: Source, wholes: Wholes, variable: str, unread: Mapping[Unread, str]) -> str:
    """The condition that an input keeps the rest of its context; ``unread``: the local names of values in contexts."""
    rows = {m.steps: local for m, local in unread.items() if (m.input, m.names) == (wholes.input, wholes.names)}
    keeps = f"{source.constant(wholes.holds, 'keeps')}({variable})"
    if not rows.keys() >= set(wholes.steps):
        return keeps
    known = zip(wholes.steps, wholes.traced, strict=True)
    return f"(({' and '.join(same_code(source, rows[steps], value) for steps, value in known)}) or {keeps})"


class ContextCheck:
    """The checks of one context.

    Attributes:
        context: the expression of the call's context; ``miss``: the statement for one that differs.
        unread: the values that are not compared, by local name.
    """

    def __init__(self, source: Source, context: str, miss: str) -> None:
        self.source, self.context, self.miss = source, context, miss
        self.unread: list[tuple[Unread, str]] = []

    def check(self, known: Any) -> None:
        """Emit it."""
        self._check(self.context, known)

    def _check(self, now: str, known: Any) -> None:
        marks = unread_of(known)
        if isinstance(known, Unread):
            local = self._local(now)
            self._unless(f"type({local}) is {self.source.constant(known.kind, 'kind')}")
            self.unread.append((known, local))
        elif marks and type(known) is dict:
            local = self._local(now)
            self._unless(f"type({local}) is dict and (*{local},) == {self.source.constant(tuple(known), 'keys')}")
            for key, value in known.items():
                self._check(f"{local}[{self.source.constant(key, 'key')}]", value)
        elif marks and type(known) in (list, tuple):
            local = self._local(now)
            self._unless(f"type({local}) is {type(known).__name__} and len({local}) == {len(known)}")
            for number, value in enumerate(known):
                self._check(f"{local}[{number}]", value)
        else:
            self._unless(self._same(now, known))
            for mark in marks:
                self.unread.append((mark, self._local(source_at(mark.steps, self.context, self.source.constant))))

    def _same(self, now: str, known: Any) -> str:
        return same_code(self.source, now, known)

    def _local(self, now: str) -> str:
        local = self.source.name("k")
        self.source.line(f"{local} = {now}")
        return local

    def _unless(self, holds: str) -> None:
        self.source.line(f"if not ({holds}): {self.miss}")
