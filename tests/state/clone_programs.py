"""Programs that have to run as clones as they do otherwise, and what single statements ask.

A program is text with a function `run`; most are in `clone_programs.txt`. `python clone_programs.py`
judges all of them, with this Python, and prints what it finds as JSON; it needs neither torch nor
pytest.
"""

import pathlib
import sys
import warnings
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent

#: by name: the oldest Python that can compile it, and its text
PROGRAMS: dict[str, tuple[tuple[int, int], str]] = {}


def _program(name: str, text: str, since: tuple[int, int] = (3, 10)) -> None:
    PROGRAMS[name] = since, text


for _part in (HERE / "clone_programs.txt").read_text().split("==== ")[1:]:
    _head, _, _text = _part.partition("\n")
    _name, _, _minor = _head.removesuffix(")").partition(" (from 3.")
    _program(_name, _text, (3, int(_minor or 10)))

_program(
    "far jumps",
    "def run():\n    out = []\n    for i in range(3):\n        if i == 1:\n"
    + "            out.append(i + 2)\n" * 7000
    + "        elif i == 2:\n            continue\n        else: out.append('x')\n"
    + "        while len(out) < 3:\n"
    + "            out.append('y')\n" * 300
    + "    return len(out), out[-1], out[0]\n",
)
_program(
    "many names and constants",
    "class C: pass\n"
    + "".join(f"g{i} = {i}\n" for i in range(400))
    + "def run():\n    c = C()\n"
    + "".join(f"    c.a{i} = g{i} + {i + 1000}\n    l{i} = c.a{i}\n" for i in range(400))
    + "    def inner(): return "
    + " + ".join(f"l{i}" for i in range(300))
    + "\n    return inner(), sum(vars(c).values())\n",
)
_program(
    "many arguments",
    "def f(*a, **k): return sum(a) + len(k)\n"
    "def run():\n"
    "    n = 1\n"
    f"    a = f({', '.join('n' for _ in range(300))})\n"
    f"    b = f({', '.join(f'k{i}=n' for i in range(270))})\n"
    f"    return a, b, len({{{', '.join(f'n + {i}' for i in range(280))}}})\n",
)

HEAD = """
import types
class C: pass
GLOBAL, KINDS = 1, (KeyError,)
class Custom(Exception):
    def __init__(self): pass
def around():
    free, written = 1, 2
    def reads(): return free
    def writes():
        nonlocal written
        written = 3
    def drops():
        nonlocal written
        del written
    def body():
        class D: k = free
    return reads, writes, drops, body
reads, writes, drops, body = around()
"""
#: a statement of a function f(o), `o`, and what it must ask: operations and what they are told
ASKS: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
    "o.a": ("types.SimpleNamespace(a=1)", (("attr", "a"),)),
    "o.conjugate()": ("1", (("attr", "conjugate"), ("call", None))),
    "o.a = 1": ("C()", (("set_attr", "a"),)),
    "del o.a": ("types.SimpleNamespace(a=1)", (("del_attr", "a"),)),
    "GLOBAL": ("1", (("global", "GLOBAL"),)),
    "global W; W = 1; del W": ("1", (("write_global", "W"), ("write_global", "W"))),
    "reads()": ("1", (("cell", "free"),)),
    "writes()": ("1", (("write_cell", None),)),
    "drops()": ("1", (("write_cell", None),)),
    "body()": ("1", ()),
    "o[0]": ("[1]", (("item", None),)),
    "o[0] = 1": ("[1]", (("set_item", None),)),
    "del o[0]": ("[1]", (("del_item", None),)),
    "o[0] += 1": ("[1]", (("item", None), ("binary", "+="), ("set_item", None))),
    "o is GLOBAL": ("1", (("is", False),)),
    "return o is not GLOBAL": ("1", (("is", True),)),
    "1 in o": ("[1]", (("contains", False),)),
    "return 1 not in o": ("[1]", (("contains", True),)),
    "o < 1": ("1", (("compare", "lt"),)),
    "o != 1": ("1", (("compare", "ne"),)),
    "o - 1": ("1", (("binary", "-"),)),
    "o @= 1": ("type('M', (), {'__imatmul__': lambda s, o: 1})()", (("binary", "@="),)),
    "-o": ("1", (("unary", "neg"),)),
    "+o": ("1", (("unary", "pos"),)),
    "~o": ("1", (("unary", "invert"),)),
    "return not o": ("1", (("truth", None),)),
    "if o: pass": ("1", (("truth", None),)),
    "while o: o = 0": ("1", (("truth", None), ("truth", None))),
    "for _ in o: pass": ("[1]", (("iter", None),)),
    "a, b = o": ("[1, 2]", (("iter", None),)),
    "a, *b = o": ("[1, 2]", (("iter", None),)),
    "[*o]": ("[1]", (("iter", None),)),
    "{*o}": ("[1]", (("iter", None),)),
    "{**o}": ("{}", (("mapping_into", None),)),
    "dict(*(), **o)": ("{}", (("mapping_into", None), ("call_ex", None))),
    "print(*o)": ("()", (("call_ex", None),)),
    "o()": ("int", ()),
    "with o: pass": ("__import__('threading').Lock()", (("manager", None),)),
    "f'{o}'": ("1", (("format", None),)),
    "f'{o:>{o}}'": ("1", (("format", None), ("format", None))),
    "f'{o!r}'": ("1", (("call", None),)),
    "f'{o!s:>3}'": ("1", (("call", None),)),
    "{o}": ("(1,)", (("iter", None), ("keyed_in", None))),
    "{o: 1}": ("(1,)", (("keyed_in", None),)),
    "{i for i in o}": ("[(1,)]", (("keyed_in", None),)),
    "{i: 1 for i in o}": ("[(1,)]", (("keyed_in", None),)),
    "from math import pi": ("1", (("attr", "pi"),)),
    "raise Custom": ("1", (("global", "Custom"), ("call", None))),
    "raise Custom from None": ("1", (("global", "Custom"), ("call", None))),
    "try: {}['a']\n    except KINDS: pass": ("1", (("global", "KINDS"), ("iter", None))),
    "match o:\n        case [1]: pass": ("[1]", (("get_len", None),)),
    "match o:\n        case {'a': 1}: pass": ("{'a': 1}", (("match_keys", None),)),
    "match o:\n        case {'a': 1, **b}: pass": (
        "{'a': 1}",
        (("match_keys", None), ("mapping_into", None)),
    ),
    "match o:\n        case int(): pass": ("1", (("match_class", 0),)),
    "match o:\n        case C(a=1): pass": ("C()", (("match_class", 0),)),
}


def judge() -> dict[str, Any]:
    """By name of a program or statement: None, or what went wrong."""
    from plain_operations import Plain, load

    warnings.simplefilter("ignore")  # of the compiler, about what the programs try
    instrumenter = load()
    plain = Plain(instrumenter)
    found: dict[str, Any] = {}
    for name, (since, text) in PROGRAMS.items():
        if sys.version_info[:2] >= since:
            found[name] = _difference(instrumenter, name, text)
    for statement, (argument, asks) in ASKS.items():
        found[statement] = _not_asked(plain, statement, argument, asks)
    found["what the code of a module asks"] = _of_module(plain)
    found["unseen"] = sorted(_unseen())
    return found


def _outcome(run: Any, file: str) -> tuple[Any, ...]:
    """What it returns or raises, with the lines of the program that a traceback shows."""
    try:
        return "gives", repr(run())
    except Exception as error:
        lines, at = [], error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == file:
                lines.append((at.tb_frame.f_code.co_name, at.tb_lineno))
            at = at.tb_next
        return "raises", repr(error), lines


def _difference(instrumenter: Any, name: str, text: str) -> Any:
    file = f"<{name}>"
    code = compile(text, file, "exec")
    outcomes = []
    for prepare in (lambda f: f, instrumenter.clone):
        space: dict[str, Any] = {"__name__": "program"}
        exec(code, space)
        outcomes.append(_outcome(prepare(space["run"]), file))
    return None if outcomes[0] == outcomes[1] else outcomes


def _not_asked(plain: Any, statement: str, argument: str, asks: tuple[Any, ...]) -> Any:
    space: dict[str, Any] = {"__name__": "program"}
    exec(compile(f"{HEAD}def f(o):\n    {statement}\n", "<statement>", "exec"), space)
    operand = eval(argument, space)
    plain.asked.clear()
    outcome = _outcome(lambda: plain.instrumenter.clone(space["f"])(operand), "<statement>")
    left = list(plain.asked)
    for ask in asks:
        if ask not in left:
            return f"{ask} of {plain.asked}; {outcome}"
        left.remove(ask)
    if outcome[0] == "raises" and not statement.startswith("raise"):
        return outcome
    return None


def _of_module(plain: Any) -> Any:
    code = compile("x = y\ndel y\nx += 1\n", "<module>", "exec")
    plain.asked.clear()
    exec(plain.instrumenter.instrument(code), {"y": 1})
    writes = ("write_global", "x"), ("write_global", "y"), ("write_global", "x")
    reads = ("name", "y"), ("name", "x")
    asked = [[ask for ask in plain.asked if ask in of] for of in (writes, reads)]
    return None if asked == [list(writes), list(reads)] else plain.asked


def _unseen() -> set[str]:
    """Instructions that are replaced and stand in no program."""
    import dis

    from subclass_trace.state import opcodes

    seen: set[str] = set()

    def look(code: Any) -> None:
        seen.update(instruction.opname for instruction in dis.get_instructions(code))
        for constant in code.co_consts:
            if isinstance(constant, type(code)):
                look(constant)

    for since, text in PROGRAMS.values():
        if sys.version_info[:2] >= since:
            look(compile(text, "<program>", "exec"))
    names = {name for name in opcodes.REPLACED if dis.opmap.get(name, 256) < 256}
    return {name for name in names if not name.startswith("INSTRUMENTED_")} - seen - {"IMPORT_STAR"}


if __name__ == "__main__":
    import json

    print(json.dumps(judge()))
