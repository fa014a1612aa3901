"""What a rule is, the register of all rules, and how hard to look.

A rule is one promise that a traceable wrapper subclass makes, with an id, a severity, a page of
documentation (its docstring) and a check. The check gets a `Script` (see `script.py`), binds
instances of the subject in it, writes lines of Python and compares; the lines that ran *are* the
counterexample.

    @rule("ST301", "an in-place operation returns its first argument")
    def in_place_returns_self(t: Script) -> None:
        '''Why it matters, what breaks, how to fix it: the text of the rule's page (plain
        Markdown).''' t.wrapper("x")
        t.require("y = x.add_(1)")  # an operation that the class refuses is no fault: the example
        does not apply t.expect("y is x", "True")

Rules that the sweep judges (`sweep.py`) are pages alone: ``checks/*.md``, where a head
``# ST323 in-place-returns-self (warning): title`` stands above the text of each.

`checks/` holds one file per family; `load` imports and reads them all.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from ..errors import OptionError

if TYPE_CHECKING:
    from .script import Script


class Severity(enum.Enum):
    """How bad it is to break a rule."""

    ERROR = "error"  #: wrong results, or a crash in torch's own machinery
    WARNING = "warning"  #: works, but not everywhere: a feature of torch is out of reach


class Cost(enum.Enum):
    """How dear one example is; the profile says how many examples each kind gets."""

    CHEAP = "cheap"  #: eager operations, microseconds to milliseconds
    SEVERAL = "several"  #: takes several operations in each example: hundredths of a second
    DEAR = "dear"  #: compiles, starts threads or writes files: tenths of a second
    SWEEP = "sweep"  #: judged by the sweep alone, which is made once for all rules


@dataclass(frozen=True, slots=True)
class Profile:
    """Numbers of examples per rule.

    Attributes:
        name: dev, ci or thorough.
        cheap: examples of a rule that only runs eager operations.
        dear: examples of a rule that compiles, starts threads or writes files.
    """

    name: str
    cheap: int
    dear: int

    def examples(self, cost: Cost) -> int:
        """Examples for a rule of this cost."""
        if cost is Cost.SEVERAL:
            return max(self.dear, self.cheap // 4)
        return self.dear if cost is Cost.DEAR else self.cheap

    def at_most(self, examples: int | None) -> Profile:
        """The profile with another limit on examples."""
        if examples is None:
            return self
        if examples < 1:
            raise OptionError("max_examples must be at least 1", got=examples)
        return replace(self, cheap=examples, dear=min(self.dear, examples))


PROFILES = {
    p.name: p
    for p in (
        Profile("dev", 16, 2),
        Profile("ci", 80, 6),
        Profile("thorough", 1000, 60),
    )
}


def profile_of(name: str | Profile) -> Profile:
    """The profile of that name.

    Raises:
        OptionError: there is none.
    """
    if isinstance(name, Profile):
        return name
    if name not in PROFILES:
        raise OptionError(f"no profile is called {name!r}", expected=" or ".join(PROFILES))
    return PROFILES[name]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: ``ST`` and three digits; the first digit is the family.
        title: one line that says what must hold.
        family: the name of the file in ``checks/``.
        severity: error or warning.
        cost: how dear one example is.
        text: Markdown, why the rule exists and what goes wrong without it.
        name: ``in-place-returns-self``.
        check: writes one example into a script and compares; None where the sweep judges.
    """

    id: str
    title: str
    family: str
    severity: Severity
    cost: Cost
    text: str
    name: str
    check: Callable[[Script], None] | None = None

    @property
    def slug(self) -> str:
        """``ST301-in-place-returns-self``: the name of the rule's page and of its test."""
        return f"{self.id}-{self.name}"

    @property
    def reason(self) -> str:
        """Why the rule exists, in one line: the first paragraph of its text."""
        return " ".join(self.text.split("\n\n")[0].split())

    @property
    def advice(self) -> str:
        """What to print below a failure: why, and where to read how to mend it."""
        return f"Why: {self.reason}\nHow to mend it: subclass-trace check --explain {self.id}"

    @property
    def page(self) -> str:
        """The rule's page, in Markdown."""
        head = f"# {self.id}: {self.title}\n\nFamily {self.family}, {self.severity.value}."
        return f"{head}\n\n{self.text}\n"


_RULES: dict[str, Rule] = {}


def rule(
    id: str, title: str, *, severity: Severity = Severity.ERROR, cost: Cost = Cost.CHEAP
) -> Callable[[Callable[[Script], None]], Callable[[Script], None]]:
    """Register the decorated function as the check of a rule; its docstring is the rule's text.

    Raises:
        OptionError: the id is taken or not of the form ST101, or the function has no docstring.
    """

    def add(check: Callable[[Script], None]) -> Callable[[Script], None]:
        if not re.fullmatch(r"ST[1-9]\d\d", id) or id in _RULES | _pages():
            raise OptionError(f"{id!r} cannot be the id of a rule", expected="a free id like ST101")
        text = inspect.getdoc(check) or ""
        if not text and sys.flags.optimize < 2:  # python -OO leaves them out
            raise OptionError(
                f"the check of rule {id} has no docstring", fix="say why the rule exists"
            )
        family, name = check.__module__.rpartition(".")[2], check.__name__.replace("_", "-")
        _RULES[id] = Rule(id, title, family, severity, cost, text, name, check)
        return check

    return add


def load() -> tuple[Rule, ...]:
    """All rules, by id; imports every family."""
    package = import_module(".checks", __package__)
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    every = _RULES | _pages()
    return tuple(every[k] for k in sorted(every))


@functools.cache
def _pages() -> dict[str, Rule]:
    """The rules that are pages alone."""
    found = {}
    for page in sorted((Path(__file__).parent / "checks").glob("*.md")):
        for part in re.split(r"^# ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, _, text = part.partition("\n")
            names, _, title = head.partition(": ")
            id, name, *warns = names.split()
            severity = Severity.WARNING if warns else Severity.ERROR
            found[id] = Rule(id, title, page.stem, severity, Cost.SWEEP, text.strip(), name)
    return found


def select(rules: Iterable[str] | None = None, skip: Iterable[str] = ()) -> tuple[Rule, ...]:
    """The rules named by id, by prefix of an id (``ST1``) or by family, without those in ``skip``.

    Raises:
        OptionError: a name fits no rule.
    """
    every = load()
    rules = [rules] if isinstance(rules, str) else rules
    skip = [skip] if isinstance(skip, str) else skip
    chosen = (
        list(every)
        if rules is None
        else [r for r in every if any(_fits(r, n) for n in _known(every, rules))]
    )
    dropped = _known(every, skip)
    return tuple(r for r in chosen if not any(_fits(r, n) for n in dropped))


def _fits(r: Rule, name: str) -> bool:
    return r.id.startswith(name.upper()) or r.family == name or r.slug == name


def _known(every: Iterable[Rule], names: Iterable[str]) -> list[str]:
    names = list(names)
    for name in names:
        if not name or not any(_fits(r, name) for r in every):
            families = sorted({r.family for r in every})
            raise OptionError(
                f"no rule is called {name!r}",
                expected="an id such as ST101, the start of one such as ST1, or a family of "
                f"{', '.join(families)}",
                fix="`subclass-trace check --list` prints all rules",
            )
    return names
