"""What holds of instrumented code and clones; `python clone_checks.py` prints what does not (JSON).

Neither torch nor pytest is needed. A check is a function of the instrumenter; it raises
AssertionError.
"""

import dis
import importlib
import json
import threading
import traceback
import types
from collections.abc import Iterator
from typing import Any

#: modules of the standard library of which each code object is instrumented
_MODULES = """
abc argparse ast asyncio.tasks bdb calendar codecs collections configparser contextlib copy csv
ctypes dataclasses datetime _pydecimal difflib dis doctest email.message enum fractions
functools gettext heapq http.client inspect ipaddress json.decoder logging mailbox numbers
optparse os pathlib pdb pickle pickletools platform pprint pydoc queue random reprlib shutil
socket statistics string subprocess tarfile tempfile textwrap threading tokenize traceback types
typing unittest.case unittest.mock urllib.parse uuid weakref xml.dom.minidom zipfile
"""
MODULES = _MODULES.split()


#: JUMP_FORWARD behind the EXTENDED_ARG of a GET_ITER
_NAMES = ("JUMP_FORWARD", "EXTENDED_ARG", "GET_ITER")
_JUMP = bytes(byte for k, name in enumerate(_NAMES) for byte in (dis.opmap[name], int(k == 0)))


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """`code`, and all in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def a_clone_has_what_the_function_has(instrumenter: Any) -> None:
    def around() -> Any:
        free = 5

        def f(a: int, b: Any = (1,), *c: int, d: int = 2) -> Any:
            return free, a, b, d

        return f

    f = around()
    f.__name__, f.__qualname__ = "named", "Q.named"
    made = instrumenter.clone(f)
    assert made(1) == f(1) == (5, 1, (1,), 2)
    assert made.__globals__ is f.__globals__ and made.__closure__[0] is f.__closure__[0]
    assert made.__defaults__ is f.__defaults__ and made.__kwdefaults__ is f.__kwdefaults__
    assert (made.__name__, made.__qualname__) == ("named", "Q.named")
    f.__defaults__, f.__kwdefaults__ = ([3],), {"d": 4}
    assert instrumenter.clone(f)(1) == (5, 1, [3], 4)
    assert f.__code__ is not made.__code__ and f.__code__.co_name == made.__code__.co_name


def code_is_instrumented_once(instrumenter: Any) -> None:
    code = compile("lambda x: x.a", "<x>", "eval")
    made = instrumenter.instrument(code)
    assert instrumenter.instrument(code) is made and instrumenter.instrument(made) is made
    assert instrumenter.is_instrumented(made) and not instrumenter.is_instrumented(code)
    inner = list(codes_of(code))[1]
    assert inner in made.co_consts and not instrumenter.is_instrumented(inner)


def of_many_threads_each_gets_the_same(instrumenter: Any) -> None:
    text = "\n".join(f"def f{i}(x): return x.a + {i}" for i in range(200))
    codes = list(codes_of(compile(text, "<x>", "exec")))
    start = threading.Barrier(4)
    found: list[list[types.CodeType]] = []

    def work() -> None:
        start.wait()
        found.append([instrumenter.instrument(code) for code in codes])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for made in zip(*found, strict=True):
        assert all(code is made[0] for code in made)


def the_frame_that_asks_is_found(instrumenter: Any) -> None:
    frames = []

    class Noting:
        def __getattr__(self, name: str) -> int:
            frames.append(instrumenter.instrumented_frame())
            return 1

    def asks(o: Any) -> Any:
        here = 5
        return o.real + here

    assert instrumenter.clone(asks)(Noting()) == 6
    assert frames[0].f_code.co_name == "asks" and frames[0].f_locals["here"] == 5
    _raises(RuntimeError, instrumenter.instrumented_frame)


def what_is_not_known_is_refused(instrumenter: Any) -> None:
    code = compile("lambda x: x", "<x>", "eval").co_consts[0]
    number = dis.opmap.get("RESERVED", 255)
    strange = code.replace(co_code=bytes((number, 0)) + code.co_code)
    if strange.co_code[0] == number:  # 3.11 has no number of its own for what is none
        said = _raises(instrumenter.Uninstrumentable, lambda: instrumenter.instrument(strange))
        assert "an instruction that is not known" in said, said
    middle = code.replace(co_code=_JUMP + code.co_code)
    said = _raises(instrumenter.Uninstrumentable, lambda: instrumenter.instrument(middle))
    assert "a jump into the middle" in said, said
    star = compile("from os import *", "<x>", "exec")
    said = _raises(instrumenter.Uninstrumentable, lambda: instrumenter.instrument(star))
    assert "import *" in said
    operation = instrumenter.OPS.pop("get_len")
    matching = compile("match x:\n    case [1]: pass\n", "<x>", "exec")
    try:
        said = _raises(instrumenter.Uninstrumentable, lambda: instrumenter.instrument(matching))
        assert "get_len" in said or not operation
    finally:
        instrumenter.OPS["get_len"] = operation


def _raises(kind: type[BaseException], do: Any) -> str:
    try:
        do()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def the_standard_library_is_instrumented(instrumenter: Any) -> None:
    number = 0
    for name in MODULES:
        module = importlib.import_module(name)
        with open(module.__file__ or "", "rb") as file:
            top = compile(file.read(), module.__file__ or "", "exec", dont_inherit=True)
        for code in codes_of(top):
            try:
                made = instrumenter.instrument(code)
            except instrumenter.Uninstrumentable as error:
                assert "import *" in str(error), (name, code.co_name, error)
                continue
            number += 1
            _well_formed(code, made)
    assert number > 5000


def _well_formed(code: types.CodeType, made: types.CodeType) -> None:
    assert _lines(code) == _lines(made), code
    assert max((end for _, end, _ in made.co_lines()), default=0) <= len(made.co_code), code
    starts = {instruction.offset for instruction in dis.get_instructions(made)}
    targets = set(dis.findlabels(made.co_code))
    assert targets <= starts | _before_extended(made), code


def _lines(code: types.CodeType) -> list[int | None]:
    found = [line for start, end, line in code.co_lines() if start < end]
    return [line for k, line in enumerate(found) if k == 0 or line != found[k - 1]]


def _before_extended(code: types.CodeType) -> set[int]:
    extended = dis.opmap["EXTENDED_ARG"]
    return {at for at in range(0, len(code.co_code), 2) if code.co_code[at] == extended}


CHECKS = (
    a_clone_has_what_the_function_has,
    code_is_instrumented_once,
    of_many_threads_each_gets_the_same,
    the_frame_that_asks_is_found,
    what_is_not_known_is_refused,
    the_standard_library_is_instrumented,
)


def judge() -> dict[str, Any]:
    """By name of a check: None, or the traceback."""
    from plain_operations import Plain, load

    instrumenter = load()
    Plain(instrumenter)
    found: dict[str, Any] = {}
    for check in CHECKS:
        try:
            found[check.__name__] = check(instrumenter)
        except Exception:
            found[check.__name__] = traceback.format_exc()
    return found


if __name__ == "__main__":
    print(json.dumps(judge()))
