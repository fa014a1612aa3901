"""How CPython writes code, from 3.10 to 3.14: instructions as bytes, jumps, lines, handlers.

`co_code` is bare: no specialised instructions, and caches are zero. What stands in it is replaced
in *pieces*; an old offset is moved by the growth of the pieces before it. Offsets and lengths are
in bytes.
"""

from __future__ import annotations

import dis
import opcode
import operator
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from types import CodeType
from typing import Any

VERSION = sys.version_info[:2]
NUMBER = {name: number for name, number in dis.opmap.items() if number < 256}
EXTENDED_ARG = NUMBER["EXTENDED_ARG"]


class Uninstrumentable(Exception):
    """A version of Python, an instruction or a form of code is not known: it can't be recorded."""


def _bytes_of_caches() -> list[int]:
    """By number of instruction: how long the caches behind it are."""
    entries: Any = getattr(opcode, "_inline_cache_entries", {})
    if isinstance(entries, dict):
        return [2 * entries.get(name, 0) for name in dis.opname[:256]]
    return [2 * number for number in entries]


def _directions() -> list[int]:
    """By number of instruction: a jump's 1 (forwards), -1 (back), 2 (to an offset), else 0."""
    backward: Callable[[int], bool] = getattr(dis, "_is_backward_jump", lambda number: False)
    relative = [(-1 if backward(n) else 1) if n in dis.hasjrel else 0 for n in range(256)]
    return [2 if n in dis.hasjabs else direction for n, direction in enumerate(relative)]


CACHES = _bytes_of_caches()
JUMPS = _directions()
ABSOLUTE = 2


def unit(number: int, argument: int) -> bytes:
    """The instruction after as many EXTENDED_ARGs as it needs; without caches."""
    if argument < 256:
        return bytes((number, argument))
    return unit(EXTENDED_ARG, argument >> 8) + bytes((number, argument & 255))


def instruction(name: str, argument: int = 0) -> bytes:
    """The instruction with its caches."""
    number = NUMBER[name]
    return unit(number, argument) + bytes(CACHES[number])


@dataclass
class Jump:
    """A piece that ends with a jump.

    Attributes:
        piece: its index.
        number: the instruction's.
        before: what stands in the piece before the jump.
        target: the old offset to which it goes.
    """

    piece: int
    number: int
    before: bytes
    target: int


@dataclass
class Pieces:
    """What replaces instructions of a code object, in their order."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    #: by how much the code before the nth piece has grown
    growth: list[int] = field(default_factory=list)

    def add(self, start: int, end: int, text: bytes) -> None:
        """`text` stands in place of what was from `start` to `end`."""
        self.starts.append(start)
        self.ends.append(end)
        self.texts.append(text)

    def add_jump(self, start: int, end: int, number: int, before: bytes, argument: int) -> None:
        """The jump that was from `start` to `end` comes after `before`; `place_jumps` writes it."""
        direction = JUMPS[number]
        target = 2 * argument if direction == ABSOLUTE else end + 2 * argument * direction
        self.jumps.append(Jump(len(self.texts), number, before, target))
        self.add(start, end, before + bytes(2 + CACHES[number]))

    def moved(self, offset: int) -> int:
        """Where what began at the old `offset` begins now."""
        return offset + self.growth[bisect_left(self.starts, offset)]

    def place_jumps(self) -> None:
        """Writes the jumps: a longer way can need a longer jump, so again until none grows.

        Raises:
            Uninstrumentable: a jump goes into the middle of an instruction.
        """
        for jump in self.jumps:
            k = bisect_left(self.starts, jump.target) - 1
            if k >= 0 and jump.target < self.ends[k]:
                raise Uninstrumentable("a jump into the middle of an instruction")
        grew = True
        while grew:
            grew = False
            lengths = map(len, self.texts)
            more = map(operator.sub, map(operator.add, lengths, self.starts), self.ends)
            self.growth = [0, *accumulate(more)]
            for jump in self.jumps:
                text = jump.before + self._jump(jump)
                grew = grew or len(text) != len(self.texts[jump.piece])
                self.texts[jump.piece] = text

    def _jump(self, jump: Jump) -> bytes:
        direction, k = JUMPS[jump.number], jump.piece
        to = self.moved(jump.target)
        way = to if direction == ABSOLUTE else (to - self.ends[k] - self.growth[k + 1]) * direction
        return unit(jump.number, way // 2) + bytes(CACHES[jump.number])

    def replaced(self, code: bytes) -> bytes:
        """`code` with the pieces."""
        out: list[bytes] = []
        at = 0
        for start, end, text in zip(self.starts, self.ends, self.texts, strict=True):
            out.append(code[at:start])
            out.append(text)
            at = end
        out.append(code[at:])
        return b"".join(out)

    def tables(self, code: CodeType) -> dict[str, bytes]:
        """Tables of lines and handlers for what `replaced` gives, by names of `code.replace`."""
        if VERSION < (3, 11):
            return {"co_linetable": b"".join(self._lines_of_310(code))}
        handlers = b"".join(self._handlers(getattr(code, "co_exceptiontable", b"")))
        return {"co_linetable": b"".join(self._lines(code)), "co_exceptiontable": handlers}

    def _lengths(self, code: CodeType) -> Iterable[tuple[int, int | None]]:
        for start, end, line in code.co_lines():
            length = self.moved(end) - self.moved(start)
            if length:
                yield length, line

    def _lines_of_310(self, code: CodeType) -> Iterable[bytes]:
        """Pairs of bytes: a length, at most 254; how much higher the line is, or -128: no line."""
        now = code.co_firstlineno
        for length, line in self._lengths(code):
            higher = 0 if line is None else line - now
            now += higher
            while abs(higher) > 127:
                step = 127 if higher > 0 else -127
                higher -= step
                yield bytes((0, step & 255))
            for k, part in enumerate(_parts(length, 254)):
                yield bytes((part, 128 if line is None else 0 if k else higher & 255))

    def _lines(self, code: CodeType) -> Iterable[bytes]:
        """A byte: 1, four bits of a kind, three of a number of units, less one; then the line."""
        now = code.co_firstlineno
        for length, line in self._lengths(code):
            for part in _parts(length // 2, 8):
                if line is None:
                    yield bytes((0x80 | _NO_LINE << 3 | part - 1,))
                    continue
                higher, now = line - now, line
                yield bytes((0x80 | _LINE_ALONE << 3 | part - 1,)) + _signed(higher)

    def _handlers(self, table: bytes) -> Iterable[bytes]:
        """Entries of four numbers: start, length and target in units; the depth and a flag.

        Depths stay: what a piece holds on the stack stands above what the instruction had.
        """
        for start, length, target, depth in zip(*[iter(_numbers(table))] * 4, strict=True):
            begin, end = self.moved(2 * start), self.moved(2 * (start + length))
            entry = (begin // 2, (end - begin) // 2, self.moved(2 * target) // 2, depth)
            first, *rest = b"".join(map(_number, entry))
            yield bytes((first | 128, *rest))


_LINE_ALONE, _NO_LINE = 13, 15  # kinds of entries: no columns; neither a line


def _parts(length: int, most: int) -> list[int]:
    full, rest = divmod(length, most)
    return [most] * full + ([rest] if rest else [])


def _signed(value: int) -> bytes:
    """The sign is the lowest bit; six bits a byte, the lowest first, 64: more follow."""
    value = -value << 1 | 1 if value < 0 else value << 1
    out = []
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    return bytes((*out, value))


def _number(value: int) -> bytes:
    """Six bits a byte, the highest first, 64: more follow."""
    out = [value & 63]
    while value > 63:
        value >>= 6
        out.append(value & 63 | 64)
    return bytes(reversed(out))


def _numbers(table: bytes) -> Iterable[int]:
    number = 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            yield number
            number = 0
