"""A list of sizes: calls of other sizes are padded to the next one.

In: the graph of a program without a backward, of which each row is computed by itself (`rows`).
What stands in the padding is what an earlier call has left there: no row of the call depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from ...capture.graphs import output_args, placeholders
from ...torch_api.kinds import SYM_TYPES
from ...torch_api.memory import address
from ...torch_api.symbols import shape_conditions
from .buffers import fresh
from .recording import Recording, Unfit
from .rows import MixesRows, check, rows_of, size_at

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Padding:
    """How a program is padded.

    Attributes:
        symbol: the only one; None: there are several.
        inputs: of each that depends on it, its value in the graph.
        outputs: values in the graph, or numbers of inputs, which are handed on.
        why: why it cannot be padded, so that the sizes themselves alone are recorded.
    """

    symbol: Any
    inputs: dict[int, Any]
    outputs: tuple[Any, ...]
    why: str | None

    @classmethod
    def of(cls, gm: fx.GraphModule, plain: bool) -> Padding:
        """``plain``: there is no backward, and nothing is written."""
        inputs = placeholders(gm.graph)
        values = {k: n.meta.get("val") for k, n in enumerate(inputs)}
        symbols = {s for v in values.values() for s in _symbols(v)}
        sized = {k: v for k, v in values.items() if _symbols(v)}
        number = {n: k for k, n in enumerate(inputs)}
        outputs = tuple([number.get(n, _val(n)) for n in output_args(gm.graph)])
        if len(symbols) != 1:
            return cls(None, sized, outputs, "several of its sizes change")
        (symbol,) = symbols
        if not plain:
            return cls(symbol, sized, outputs, "it has a backward, or writes to its inputs")
        try:
            check(gm.graph, symbol)
            for v in (*values.values(), *outputs):
                rows_of(v, symbol)
            if any(isinstance(_val(n), SYM_TYPES) for n in output_args(gm.graph)):
                raise MixesRows("a size is a result")
        except MixesRows as why:
            return cls(symbol, sized, outputs, str(why))
        return cls(symbol, sized, outputs, None)

    def size_of(self, values: Sequence[Any]) -> int | None:
        """The size of a call."""
        for k, v in self.inputs.items():
            if isinstance(v, Tensor):
                for n, known in zip(values[k].shape, v.shape, strict=True):
                    if isinstance(known, torch.SymInt) and known.node.expr == self.symbol:
                        return int(n)
            elif v.node.expr == self.symbol:
                return int(values[k])
        return None

    def padded(self, values: Sequence[Any], size: int) -> list[Any]:
        """The values of a call of that size."""
        made = list(values)
        for k, v in self.inputs.items():
            made[k] = size_at(v, self.symbol, size) if not isinstance(v, Tensor) else None
            if made[k] is None:
                made[k] = zeros = self._empty(v, values[k], size).zero_()
                self.part(zeros, v, values[k]).copy_(values[k])
        return made

    def allows(self, size: int) -> bool:
        """Does what the trace assumed of the symbol hold of that size?"""
        for v in self.inputs.values():
            numbers = v.shape if isinstance(v, Tensor) else (v,)
            for n in numbers:
                if isinstance(n, torch.SymInt):
                    known = shape_conditions(n.node.shape_env, frozenset({self.symbol}))
                    return all(bool(c.subs(self.symbol, size)) for c in known)
        return False

    def _empty(self, known: Tensor, like: Tensor, size: int) -> Tensor:
        shape, stride = (
            [size_at(n, self.symbol, size) for n in numbers]
            for numbers in (known.shape, known.stride())
        )
        return torch.empty_strided(shape, stride, dtype=like.dtype, device=like.device)

    def part(self, whole: Tensor, known: Tensor, like: Tensor) -> Tensor:
        """What of padded memory is that of the call."""
        d = rows_of(known, self.symbol)
        return whole if d is None else whole.narrow(d, 0, like.shape[d])

    def result(self, out: Any, number: int, size: int) -> Any:
        """A result of a call of that size, of the padded one."""
        known = self.outputs[number]
        d = rows_of(known, self.symbol)
        if d is None:
            return fresh(out) if isinstance(out, Tensor) else out
        rows = size_at(known.shape[d], self.symbol, size)
        return self._empty(known, out, size).copy_(out.narrow(d, 0, rows))


class Padded:
    """Serves calls of one size with the recording of another one."""

    def __init__(self, recording: Recording, padding: Padding, values: Sequence[Any]) -> None:
        self.recording, self.padding = recording, padding
        size = padding.size_of(values)
        assert size is not None
        self.size = size
        self._copied = list(recording.buffers)
        known = padding.inputs
        self._to = [
            padding.part(b, known[k], values[k]) if k in known else b
            for k, b in recording.buffers.items()
        ]
        inside = {address(t) for t in recording.buffers.values()}
        for out, what in zip(recording.results, padding.outputs, strict=True):
            if isinstance(out, Tensor) and not isinstance(what, int):
                if out.numel() and address(out) in inside:
                    raise Unfit("a result is a view of an input, which is padded")
            elif out is None and not isinstance(what, int):
                raise Unfit("a result is a view of an input that stays where it is")

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Serve a call."""
        recording, padding = self.recording, self.padding
        recording.pool.recorder.copy(self._to, [values[k] for k in self._copied])
        recording.replay()
        return [
            values[what]
            if isinstance(what := padding.outputs[number], int)
            else padding.result(recording.results[number], number, self.size)
            for number, _ in recording.face.gives
        ]


def _symbols(value: Any) -> set[Any]:
    numbers = value.shape if isinstance(value, Tensor) else (value,)
    return {s for n in numbers if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols}


def _val(arg: Any) -> Any:
    return arg.meta.get("val") if isinstance(arg, fx.Node) else None
