"""Generated programs that read Python's state, and torch's.

    python -m tests.state.generate --number 3000               # counts by part, what is not right
    python -m tests.state.generate --seed 17 --show            # one program, judged
    python -m tests.state.generate --number 500 --how stack    # torch.compile instead of ours

A program is a holder of a value, a way to read it, a place in the region and a change; or it is one
of other kinds (`KINDS`). `program(seed)` is the same on each machine. `judging.py` judges it.
"""

from __future__ import annotations

import argparse
import random
import string
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import generated_parts as parts

_T = TypeVar("_T")
_CALLS = ("call", "call", "change 0", "call", "call")
_PUT_AFTER = "inner = fn\ndef fn(x):\n    y = inner(x)\n    put()\n    return y"
_PUT_FIRST = "inner = fn\ndef fn(x):\n    put()\n    return inner(x)"
_PUT_AND_BACK = "inner = fn\ndef fn(x):\n    put()\n    y = inner(x)\n    put_back()\n    return y"
_BY_A_THREAD = "def change(n):\n    t = threading.Thread(target=put)\n    t.start()\n    t.join()"


@dataclass(frozen=True, eq=False)
class Program:
    """A module as text, with a region ``fn``, and what is done with it.

    Attributes:
        names: what it is put together of, by kind of part.
        source: defines ``fn`` (or ``regions``, two of them), ``change(n)`` and ``restore()``, and
            ``inputs``, where a call takes no dense tensor as it is.
        steps: "call", "change" (with a number), "between": a call, changed before its backward.
        grad: the inputs require grad.
        is_unread: nothing that ``fn`` reads is changed: one specialization serves all calls.
    """

    seed: int
    names: dict[str, str]
    source: str
    steps: tuple[str, ...]
    grad: bool = False
    is_unread: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{kind}: {name}" for kind, name in self.names.items())


def program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    return _weighted(rng, KINDS)(seed, rng)


def _filled(text: str, **words: str) -> str:
    return string.Template(text).safe_substitute(words)


def _weighted(rng: random.Random, rows: Sequence[tuple[_T, int]]) -> _T:
    return rng.choices([row for row, _ in rows], [weight for _, weight in rows])[0]


def _function(name: str, body: str) -> str:
    return f"def {name}():\n{textwrap.indent(body, '    ')}"


def _names(holder: str, reader: str, value: str, place: str, change: str) -> dict[str, str]:
    return {"holder": holder, "reader": reader, "value": value, "place": place, "change": change}


def _steps(change: str) -> tuple[str, ...]:
    if change == "before the backward":
        return ("call", "call", "between", "call", "call")
    return (*_CALLS, "change 1", "call") if change == "back and forth" else _CALLS


def _place(rng: random.Random, change: str) -> parts.Place:
    needs_grad = change == "before the backward"
    places = [place for place in parts.PLACES if place.grad or not needs_grad]
    return _weighted(rng, [(place, int(place.weight)) for place in places])


# -------------------------------------------------------------------------------- holders
def _of_holder(seed: int, rng: random.Random) -> Program:
    change = _weighted(rng, parts.CHANGES)
    is_counted = change == "counted by the region"
    values = [v for v in parts.VALUES if v.inside or "inside" not in change]
    value = rng.choice([v for v in values if "number" in v.tags or not is_counted])
    needs_default = change in ("removed", "appears")
    holders = [h for h in parts.HOLDERS if h.form or not needs_default]
    holder = rng.choice([h for h in holders if not (is_counted and "lambda" in h.write)])
    reader = _reader(rng, holder, value, needs_default)
    place = _place(rng, change)
    words = {"v": value.first, "w": value.second, "o": holder.root, "e": holder.read}
    words |= {name: rng.choice(texts) for name, texts in parts.ASKS.items()}
    held = _filled(reader.text, **words)
    if "'$e'" in reader.text and "'" in holder.read:
        held = _filled(reader.text.replace("'", '"'), **words)
    blocks = (
        _filled(holder.setup, **words),
        _filled(reader.setup, **words),
        _filled(place.setup, n=_filled(value.number, e=f"({held})")),
        *_changes(change, holder, value, words),
        _function("restore", holder.restore or "pass"),
    )
    names = _names(holder.name, reader.name, value.name, place.name, change)
    is_unread = change == "unread" and not reader.reads_all
    source = parts.whole("\n".join(blocks))
    return Program(seed, names, source, _steps(change), bool(place.grad), is_unread)


def _reader(
    rng: random.Random,
    holder: parts.Holder,
    value: parts.Value,
    needs_default: bool,
) -> parts.Reader:
    tags = {holder.form, *holder.tags.split(), *value.tags.split()}
    fits = [r for r in parts.READERS if set(r.needs.split()) <= tags]
    if needs_default:
        return rng.choice([r for r in fits if r.has_default])
    own = [r for r in fits if holder.form and holder.form in r.needs.split()]
    return rng.choice(own if own and rng.random() < 0.7 else fits)


def _changes(
    change: str,
    holder: parts.Holder,
    value: parts.Value,
    words: dict[str, str],
) -> tuple[str, ...]:
    """Defines ``change``; a region that changes itself is put around ``fn``."""
    at = "$o.$name" if holder.form == "attribute" else "$o['$name']"
    remove = _filled(f"del {at}", o=holder.root, name="k")
    unread = _filled(f"{at} = [1]", o=holder.root, name="unread")
    write = _filled(holder.write, **words)
    back = _filled(holder.write, **{**words, "w": value.first})
    inside = _filled(value.inside, e=holder.read)
    made_anew = _filled(holder.setup, **{**words, "v": value.second})
    does = {
        "inside": inside,
        "by the region inside": inside,
        "counted by the region": _filled(holder.write, **{**words, "w": f"({holder.read} + 1)"}),
        "made anew": f"exec({made_anew!r}, globals())",
        "equal": back,
        "appears": back,
        "unread": unread if holder.form else "globals()['unread'] = [1]",
        "removed": remove,
    }.get(change, write)
    if change == "by the region at first":  # what is there already, until another value stands there
        other = _function("other", write)
        return _function("put", back), other, _PUT_FIRST, "def change(n): other()"
    put = _function("put", does), _function("put_back", back)
    if change == "by a thread":
        return (*put, _BY_A_THREAD)
    if "by the region" in change:
        return (*put, _PUT_AFTER, "def change(n): put_back()")
    return (
        *put,
        "def change(n): put_back() if n else put()",
        remove if change == "appears" else "",
    )


def _of_alias(seed: int, rng: random.Random) -> Program:
    """A value with two names: asked whether it is one, or written by one, read by the other."""
    value = rng.choice([v for v in parts.VALUES if v.inside])
    holder = rng.choice(parts.HOLDERS)
    is_written, is_one = rng.random() < 0.6, rng.random() < 0.5
    words = {"v": value.first, "w": value.first, "o": holder.root, "e": holder.read}
    place = _place(rng, "")
    number = _filled(value.number, e=f"({holder.read})")
    if not is_written:
        number = f"(2.0 if {holder.read} is ALIAS else 3.0)"
    blocks = [
        _filled(holder.setup, **words),
        f"ALIAS = {holder.read if is_one else value.first}",
        _filled(place.setup, n=number),
        _function("put", _filled(value.inside, e="ALIAS")),
        _PUT_AFTER if is_written else "",
        _function("part", _filled(holder.write, **words)),
        _function("join", _filled(holder.write, **{**words, "w": "ALIAS"})),
        f"def change(n): {'part()' if is_one else 'join()'}",
        _function("restore", holder.restore or "pass"),
    ]
    change = f"{'parted' if is_one else 'joined'}, {'written' if is_written else 'asked'}"
    names = _names(holder.name, "an alias", value.name, place.name, change)
    return Program(seed, names, parts.whole("\n".join(blocks)), _CALLS, bool(place.grad))


# -------------------------------------------------------------------------------- others
def _of_flag(seed: int, rng: random.Random) -> Program:
    flag = rng.choice(parts.FLAGS)
    outside = ("replaced", "back and forth", "by a thread", "before the backward")
    change = rng.choice((*outside, "by the region", "in the region"))
    place = _place(rng, change)
    put, back = (_filled(flag.put, w=value) for value in (flag.second, flag.first))
    number = f"(2.0 if {flag.read} == {flag.first} else 3.0)"
    by_region = {"by the region": _PUT_AFTER, "in the region": _PUT_AND_BACK}.get(change, "")
    does = "def change(n): put_back()" if by_region else "def change(n): put_back() if n else put()"
    blocks = (
        *("FIRST_LIMIT = sys.getrecursionlimit()", back),
        *(_filled(place.setup, n=number), _function("put", put), _function("put_back", back)),
        *(by_region, _BY_A_THREAD if change == "by a thread" else does, _function("restore", back)),
    )
    names = _names(f"torch: {flag.name}", "a flag", "a flag", place.name, change)
    return Program(seed, names, parts.whole("\n".join(blocks)), _steps(change), bool(place.grad))


def _of_twins(seed: int, rng: random.Random) -> Program:
    """Two modules of a class, each a region of its own."""
    twin, value = rng.choice(parts.TWINS), rng.choice(parts.VALUES)
    grad = rng.random() < 0.2
    change = rng.choice(("none", "replaced"))
    source = f"""
class Net(nn.Module):
    def __init__(s, v):
        super().__init__()
        s.h = {twin.make}
    def forward(s, x): return x * {_filled(value.number, e=f"({twin.use})")}
regions = [Net({value.first}), Net({value.second})]
def change(n): regions[0].h, regions[1].h = regions[1].h, regions[0].h
def restore(): pass
"""
    calls = ("call", "call 1", "call", "call 1")
    steps = (*calls, "change 0", *calls) if change == "replaced" else calls
    names = _names(f"twins: {twin.name}", "a twin", value.name, "two modules", change)
    return Program(seed, names, parts.whole(source), steps, grad)


def _of_fact(seed: int, rng: random.Random) -> Program:
    """What is asked of an input."""
    fact = rng.choice(parts.FACTS)
    texts = ("def fn(x): return x * 1, torch.ones(2) * $n", "def fn(x): return torch.ones(2) * $n")
    read = _filled(rng.choice(texts), n=f"(2.0 if {fact.read} else 3.0)")
    source = f"""
OTHER = False
{read}
def inputs(x): return {fact.other} if OTHER else x
def change(n):
    global OTHER
    OTHER = not n
def restore(): pass
"""
    names = _names(f"a tensor: {fact.name}", "a fact", "a fact", "forward", "another input")
    return Program(seed, names, parts.whole(source), (*_CALLS, "change 1", "call"))


def _of_module(seed: int, rng: random.Random) -> Program:
    """What changes what a module does."""
    part = rng.choice(parts.MODULES)
    how = rng.choice(("a module", "a function of it", "a part of another"))
    text = {
        "a module": "fn = M",
        "a function of it": "def fn(x): return M(x) * 2",
        "a part of another": "class Whole(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.part = M\n"
        "    def forward(self, x): return self.part(x).tanh()\nfn = Whole()",
    }[how]
    change = rng.choice(("replaced", "by a thread", "before the backward"))
    blocks = (
        *(part.setup, text, _function("put", part.change)),
        _BY_A_THREAD if change == "by a thread" else "def change(n): put()",
        _function("restore", part.restore),
    )
    names = _names(f"a module: {part.name}", "a module", "a module", how, change)
    grad = bool(part.grad) or change == "before the backward"
    return Program(seed, names, parts.whole("\n".join(blocks)), _steps(change), grad)


#: how a program is made, and how often
KINDS: Sequence[tuple[Callable[[int, random.Random], Program], int]] = (
    *(
        (_of_holder, 70),
        (_of_alias, 7),
        (_of_flag, 8),
        (_of_twins, 6),
        (_of_fact, 3),
        (_of_module, 6),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    from . import judging

    parser = argparse.ArgumentParser(prog="python -m tests.state.generate")
    parser.add_argument("--number", type=int, default=200, help="how many programs")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, nargs="*", help="these seeds alone")
    parser.add_argument("--how", choices=judging.WAYS, default="trace", help="what compiles them")
    parser.add_argument("--stack", action="store_true", help="faults also by torch.compile")
    parser.add_argument("--show", action="store_true", help="each program as text")
    parser.add_argument("--only", default="", help="programs with this text in their names")
    given = parser.parse_args(arguments)
    seeds: Any = given.seed or range(given.start, given.start + given.number)
    chosen = [p for p in map(program, seeds) if given.only in str(p)]
    return judging.report(chosen, given.how, given.stack, given.show)


if __name__ == "__main__":
    raise SystemExit(main())
