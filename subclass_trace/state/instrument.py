"""A Python function as an instrumented clone, which asks for what it reads and writes.

    clone(f)(*args)    # runs the code of f, with instructions replaced (`opcodes.py`)

What reads or writes beyond the function's own locals asks an operation of `OPS`. Only the code that
is given is replaced, not the codes of functions, lambdas, classes and comprehensions in it:
MAKE_FUNCTION makes them with their own code, and whoever is asked to call them ("call", "call0")
clones them then, as any other function. A comprehension that the compiler has inlined (3.12 and
later) is a part of the code around it, and is replaced with it. Lines are kept, so that tracebacks
show the user's; columns are not.

Pure bytes: about 1 us an instruction, once per code object of a process.
"""

from __future__ import annotations

import re
from types import CodeType, FunctionType

from subclass_trace.state.bytecode import (
    CACHES,
    EXTENDED_ARG,
    JUMPS,
    NUMBER,
    VERSION,
    Pieces,
    Uninstrumentable,
)
from subclass_trace.state.opcodes import KEPT, PUSHES, REPLACED, Does, Sheet
from subclass_trace.state.readers import (
    OPS,
    instrumented_frame,
    is_instrumented,
    note_instrumented,
)

__all__ = [  # what a recorder needs
    "OPS",
    "Uninstrumentable",
    "clone",
    "instrument",
    "instrumented_frame",
    "is_instrumented",
]

OLDEST, NEWEST = (3, 10), (3, 14)

_BY_NUMBER: dict[int, Does] = {NUMBER[name]: REPLACED[name] for name in REPLACED if name in NUMBER}
_KEPT = {NUMBER[name] for name in KEPT if name in NUMBER} - set(_BY_NUMBER)
#: EXTENDED_ARG, or kept, or to be looked at; found are the last ones, with what extends them
_CLASSES = bytes(1 if n == EXTENDED_ARG else 0 if n in _KEPT else 2 for n in range(256))
_LOOKED_AT = re.compile(b"\1*\2")

_instrumented: dict[int, tuple[CodeType, CodeType]] = {}


def instrument(code: CodeType) -> CodeType:
    """`code`, instrumented: made once, and kept for the process.

    Raises:
        Uninstrumentable: this version of Python, an instruction or a form of the code is not known.
    """
    found = _instrumented.get(id(code))
    if found is not None:
        return found[1]
    if is_instrumented(code):
        return code
    made = _rewritten(code)
    note_instrumented(made)
    return _instrumented.setdefault(id(code), (code, made))[1]  # of two threads: the first one's


def clone(function: FunctionType) -> FunctionType:
    """`function` with instrumented code; it shares globals, defaults and cells.

    It is made anew (0.4 us): to see whether an earlier one still has all of that takes longer.

    Raises:
        Uninstrumentable: see `instrument`.
    """
    made = FunctionType(
        instrument(function.__code__),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    if function.__kwdefaults__:
        made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _rewritten(code: CodeType) -> CodeType:
    if not OLDEST <= VERSION <= NEWEST:
        raise Uninstrumentable(f"Python {VERSION[0]}.{VERSION[1]}")
    sheet = Sheet(code)
    units = sheet.units
    pieces = Pieces()
    for found in _LOOKED_AT.finditer(units[::2].translate(_CLASSES)):
        start, end = 2 * found.start(), 2 * found.end()
        number, argument = units[end - 2], units[end - 1]
        if end - start > 2:
            argument = int.from_bytes(units[start + 1 : end : 2], "big")
        does = _BY_NUMBER.get(number)
        if does is None:
            raise Uninstrumentable(f"an instruction that is not known: {_name(number)}")
        sheet.end = end = end + CACHES[number]
        text = does(sheet, argument, units[start:end])
        if text is None:
            continue
        if JUMPS[number]:
            pieces.add_jump(start, end, number, text, argument)
        else:
            pieces.add(start, end, text)
    pieces.place_jumps()
    return code.replace(
        co_code=pieces.replaced(units),
        co_consts=(*code.co_consts, *sheet.constants),
        co_stacksize=code.co_stacksize + PUSHES,
        **pieces.tables(code),  # type: ignore[arg-type]
    )


def _name(number: int) -> str:
    return next((name for name, n in NUMBER.items() if n == number), str(number))
