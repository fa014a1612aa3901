"""Generated programs that read Python's state: a holder, a way to read it, a kind of value, a place in the region, a change.

    python -m tests.state.generate --number 3000               # counts by part, what is not right
    python -m tests.state.generate --seed 17 --show            # one program, judged
    python -m tests.state.generate --number 500 --how stack    # torch.compile instead of ours

`program(seed)` is the same program on each machine. `judging.py` judges it.
"""

from __future__ import annotations

import argparse
import random
import string
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import generated_parts as parts

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Program:
    """A module as text, with a region ``fn``, and what is done with it.

    Attributes:
        names: what it is put together of, by kind of part.
        source: defines ``fn`` (or ``regions``, two of them), ``inputs``, ``change(n)`` and ``restore()``.
        steps: "call", "change" (with a number), or "between": a call with a change before its backward.
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
    kind = rng.choices(("held", "flag", "twin"), (86, 8, 6))[0]
    if kind == "flag":
        return _of_flag(seed, rng)
    return _of_twins(seed, rng) if kind == "twin" else _of_holder(seed, rng)


def _filled(text: str, **words: str) -> str:
    return string.Template(text).safe_substitute(words)


def _weighted(rng: random.Random, rows: Sequence[tuple[_T, int]]) -> _T:
    return rng.choices([row for row, _ in rows], [weight for _, weight in rows])[0]


def _place(rng: random.Random, grad: bool | None = None) -> parts.Place:
    rows = [(place, place.weight) for place in parts.PLACES if grad is None or place.grad == grad]
    return _weighted(rng, rows)


def _of_holder(seed: int, rng: random.Random) -> Program:
    change = _weighted(rng, parts.CHANGES)
    value = rng.choice([v for v in parts.VALUES if v.inside or "inside" not in change])
    forms = ("attribute", "item") if change in ("removed", "appears") else ("", "attribute", "item")
    holder = rng.choice([h for h in parts.HOLDERS if h.form in forms])
    tags = {holder.form, *holder.tags.split(), *value.tags.split()}
    fits = [r for r in parts.READERS if set(r.needs.split()) <= tags]
    if change in ("removed", "appears"):
        fits = [r for r in fits if r.has_default]
    elif rng.random() < 0.7:  # the many that fit everywhere are drawn less often
        fits = [r for r in fits if holder.form and holder.form in r.needs.split()] or fits
    reader = rng.choice(fits)
    place = _place(rng, True if change == "before the backward" else None)
    names = dict(holder=holder.name, reader=reader.name, value=value.name, place=place.name, change=change)
    words = dict(v=value.first, w=value.second, o=holder.root, e=holder.read)
    held = _filled(reader.text, **words)
    if "'" in holder.read and "'$e'" in reader.text:
        held = _filled(reader.text.replace("'", '"'), **words)
    number = _filled(value.number, e=f"({held})")
    blocks = [parts.HEAD, _filled(holder.setup, **words), _filled(reader.setup, **words)]
    blocks.append(_filled(place.text, n=number))
    blocks.append(_changes(change, holder, value, words))
    return Program(seed, names, "\n".join(blocks), _steps(change), place.grad, change == "unread")


def _steps(change: str) -> tuple[str, ...]:
    if change == "before the backward":
        return ("call", "call", "between", "call", "call")
    steps = ("call", "call", "change 0", "call", "call")
    return (*steps, "change 1", "call") if change == "back and forth" else steps


def _changes(change: str, holder: parts.Holder, value: parts.Value, words: dict[str, str]) -> str:
    """Text that defines ``change`` and ``restore``; a region that changes itself is put around ``fn``."""
    write = _filled(holder.write or f"{holder.read} = $w", **words)
    back = _filled(holder.write or f"{holder.read} = $w", **{**words, "w": value.first})
    inside = _filled(value.inside, e=f"{holder.read}") or "pass"
    remove = f"del {holder.root}.k" if holder.form == "attribute" else f"del {holder.root}['k']"
    unread = {"attribute": f"{holder.root}.unread = [1]", "item": f"{holder.root}['unread'] = [1]"}
    made_anew = f"exec({_filled(holder.setup, **{**words, 'v': value.second})!r}, globals())"
    does = {
        "inside": inside,
        "by the region inside": inside,
        "made anew": made_anew,
        "equal": back,
        "unread": unread.get(holder.form, "globals()['unread'] = [1]"),
        "removed": remove,
    }.get(change, write)
    lines = [_function("put", does), _function("put_back", back)]
    if change == "by a thread":
        lines.append("def change(n):\n    t = threading.Thread(target=put); t.start(); t.join()")
    elif change.startswith("by the region"):
        lines.append("inner = fn\ndef fn(x):\n    y = inner(x)\n    put()\n    return y")
        lines.append("def change(n): put_back()")
    else:
        lines.append("def change(n): put_back() if n else put()")
    if change == "appears":
        lines.append(remove)
    lines.append(_function("restore", holder.restore or "pass"))
    return "\n".join(lines)


def _function(name: str, body: str) -> str:
    return f"def {name}():\n{textwrap.indent(body, '    ')}"


def _of_flag(seed: int, rng: random.Random) -> Program:
    flag = rng.choice(parts.FLAGS)
    change = rng.choice(("replaced", "back and forth", "by the region", "in the region", "by a thread", "before the backward"))
    place = _place(rng, True if change == "before the backward" else None)
    names = dict(holder=f"torch: {flag.name}", reader="a flag", value="a flag", place=place.name, change=change)
    put, back = (_filled(flag.put, w=w) for w in (flag.second, flag.first))
    number = f"(2.0 if {flag.read} == {flag.first} else 3.0)"
    blocks = [parts.HEAD, "FIRST_LIMIT = sys.getrecursionlimit()", back, _filled(place.text, n=number)]
    blocks += [_function("put", put), _function("put_back", back)]
    if change == "by the region":
        blocks.append("inner = fn\ndef fn(x):\n    y = inner(x)\n    put()\n    return y")
    elif change == "in the region":
        blocks.append("inner = fn\ndef fn(x):\n    put()\n    y = inner(x)\n    put_back()\n    return y")
    is_outside = change not in ("by the region", "in the region")
    start = "t = threading.Thread(target=put); t.start(); t.join()"
    does = start if change == "by a thread" else "put_back() if n else put()" if is_outside else "put_back()"
    blocks += [f"def change(n):\n    {does}", _function("restore", back)]
    return Program(seed, names, "\n".join(blocks), _steps(change), place.grad)


def _of_twins(seed: int, rng: random.Random) -> Program:
    name, make, use = rng.choice(parts.TWINS)
    value = rng.choice(parts.VALUES)
    grad = rng.random() < 0.2
    change = rng.choice(("none", "replaced"))
    names = dict(holder=f"twins: {name}", reader="a twin", value=value.name, place="two modules", change=change)
    use = use.replace("s.h", "self.h")
    number = _filled(value.number, e=f"({use})")
    source = f"""{parts.HEAD}
class Net(nn.Module):
    def __init__(s, v):
        super().__init__()
        s.h = {make}
    def forward(self, x): return x * {number}
regions = [Net({value.first}), Net({value.second})]
def change(n): regions[0].h, regions[1].h = regions[1].h, regions[0].h
def restore(): pass
"""
    steps = ("call", "call 1", "call", "call 1")
    return Program(seed, names, source, (*steps, "change 0", *steps) if change == "replaced" else steps, grad)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    from . import judging

    parser = argparse.ArgumentParser(prog="python -m tests.state.generate")
    parser.add_argument("--number", type=int, default=200, help="how many programs")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, nargs="*", help="these seeds alone")
    parser.add_argument("--how", choices=judging.WAYS, default="trace", help="by what they are compiled")
    parser.add_argument("--stack", action="store_true", help="what is not right also by torch.compile")
    parser.add_argument("--show", action="store_true", help="each program as text")
    parser.add_argument("--only", default="", help="programs with this text in their names")
    given = parser.parse_args(arguments)
    seeds: Any = given.seed or range(given.start, given.start + given.number)
    chosen = [p for p in map(program, seeds) if given.only in str(p)]
    return judging.report(chosen, given.how, given.stack, given.show)


if __name__ == "__main__":
    raise SystemExit(main())
