"""Failures by likely cause, and what was exercised at all.

One fault of a class breaks many rules. The failure that says most stands first, what follows from
it below it: failures of the same cause, and those whose programs use an operation that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .calls import NEEDED
from .render import named_operations
from .rules import Severity
from .runner import ENDS, Result
from .sweep import Swept

#: causes and the rules that they show in, what hurts a user most first
CAUSES: tuple[tuple[str, str], ...] = (
    ("it crashes or hangs", "ST802"),
    ("the same call twice differs", "ST311"),
    ("flatten and unflatten lose something", "ST101 ST102 ST113 ST107 ST103 ST111"),
    ("instances share what they know", "ST114"),
    ("contexts compare wrongly", "ST106 ST112 ST115"),
    ("results have the wrong value", "ST316 ST310 ST320 ST315 ST332 ST326 ST314 ST505 ST333 ST308"),
    ("results lose the type", "ST312"),
    ("dtype, sizes or strides of results", "ST313 ST503 ST613"),
    ("memory: views and writes", "ST501 ST502 ST331 ST321 ST324 ST323 ST327 ST322"),
    ("gradients are wrong", "ST402 ST403 ST401 ST404 ST405 ST407 ST406 ST410 ST109 ST110"),
    ("another mode gives something else", "ST306 ST305 ST319"),
    ("copies, files, modules and optimizers", "ST513 ST511 ST517 ST506 ST507 ST510 ST514 ST515"),
    ("operations fail", "ST318 ST317"),
    ("other wrappers", "ST301 ST601"),
    ("fake tensors and symbols", "ST201 ST203 ST205"),
    ("compiled code differs", "ST701 ST702 ST703 ST704"),
    ("life in a process", "ST804 ST805"),
)
_RANK = {id: (k, n) for k, (_, ids) in enumerate(CAUSES) for n, id in enumerate(ids.split())}
#: what a broken protocol makes fail
_OF_THE_PROTOCOL = ("ST2", "ST7", "ST1", "ST50", "ST51", "ST601", "ST305", "ST8")


@dataclass(frozen=True)
class Cause:
    """A likely cause.

    Attributes:
        title: the kind of fault.
        head: the failure that says most.
        others: failures that seem to follow from it.
    """

    title: str
    head: Result
    others: tuple[Result, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cause": self.title,
            "rule": self.head.rule.id,
            "also": [r.rule.id for r in self.others],
        }


def causes_of(failures: Iterable[Result]) -> list[Cause]:
    """Failures in groups, what hurts most first."""
    groups: list[tuple[str, list[Result]]] = []

    def rank(r: Result) -> tuple[Any, ...]:
        warns = r.rule.severity is Severity.WARNING
        return not _never_ends(r), warns, *_RANK.get(r.rule.id, (99, 0))

    for r in sorted(failures, key=rank):
        title = CAUSES[_RANK[r.rule.id][0]][0] if r.rule.id in _RANK else r.rule.family
        title = CAUSES[0][0] if _never_ends(r) else title
        home = next((g for g in groups if _follows(r, title, *g)), None)
        if home is None:
            groups.append((title, [r]))
        else:
            home[1].append(r)
    return [_cause(title, members) for title, members in groups]


def _cause(title: str, members: list[Result]) -> Cause:
    """The one of the cause itself that most calls show stands first."""
    rank = _RANK.get(members[0].rule.id, (99, 0))[0]
    own = [r for r in members if _RANK.get(r.rule.id, (99, 0))[0] == rank]
    head = max(own, key=lambda r: len(r.calls))
    return Cause(title, head, tuple(r for r in members if r is not head))


def _never_ends(r: Result) -> bool:
    """Did a rule, or a call of the sweep, not come to an end?"""
    return r.rule.id == "ST802" or (r.failure is not None and r.failure.what == ENDS)


def _follows(r: Result, title: str, other: str, group: list[Result]) -> bool:
    """Does a failure seem to follow from those of a group?"""
    head = group[0].rule.id
    if title == other:
        return True
    if other in (CAUSES[1][0], CAUSES[3][0]):  # nothing that an instance does can be trusted
        return True
    if head.startswith(("ST10", "ST11")) and r.rule.id.startswith(_OF_THE_PROTOCOL):
        return True
    return any(operations_of(r) & operations_of(g, strictly=True) for g in group)


def operations_of(r: Result, strictly: bool = False) -> set[str]:
    """Names of the operations of a failure: those that it took, or those that stand in its program.

    Args:
        strictly: those that no right call took, if there are any.
    """
    assert r.failure is not None
    if r.suspects and strictly:
        return set(r.suspects)
    if r.failure.operations:
        return set(r.failure.operations)
    return named_operations("\n".join(r.failure.lines))


@dataclass(frozen=True)
class Coverage:
    """How much of the table was exercised.

    Attributes:
        use: what the class is used for, said or inferred.
        unbuilt: why no call was tried.
        right, wrong: numbers of calls.
        refused: calls that the class does not do, and what it says.
        untried: calls for which there are no operands.
        limited: what works, and is refused in inference mode or with gradients.
    """

    use: str = ""
    right: int = 0
    wrong: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    untried: tuple[str, ...] = ()
    limited: dict[str, str] = field(default_factory=dict)
    unbuilt: str = ""

    @property
    def text(self) -> list[str]:
        """Lines of a summary."""
        if self.unbuilt:
            return [
                "operations: no call was tried, since there are no instances for it "
                f"({self.unbuilt})"
            ]
        if not self.use:
            return []
        lines = [
            f"operations: {self.right} right, {self.wrong} wrong, {len(self.refused)} refused, "
            f"{len(self.untried)} not tried; "
            f"used as {'an' if self.use[0] in 'ai' else 'a'} {self.use}"
        ]
        needed = [
            t
            for texts in NEEDED[self.use]
            if all(t in self.refused for t in texts)
            for t in texts[:1]
        ]
        shown = [*needed, *(t for t in self.refused if t not in needed)][:6]
        more = (
            f"; and {len(self.refused) - len(shown)} others"
            if len(self.refused) > len(shown)
            else ""
        )
        if shown:
            lines.append(
                "not exercised: "
                + "; ".join(
                    f"{' '.join(t.split())[:60]} (refused: {self.refused[t][:90]})" for t in shown
                )
                + more
            )
        return [*lines, *self._limits()]

    def _limits(self) -> list[str]:
        """What works, but not in inference mode, or not with gradients."""
        lines = []
        for where in ("in inference mode", "with gradients", "with a backward"):
            found = [text for text in self.limited if text.endswith(where)]
            if found:
                first, said = " ".join(found[0].split())[:60], self.limited[found[0]][:90]
                lines.append(f"{len(found)} calls are refused {where}, such as {first} ({said})")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "use": self.use,
            "right": self.right,
            "wrong": self.wrong,
            "refused": dict(self.refused),
            "untried": list(self.untried),
            "unbuilt": self.unbuilt,
        }


def coverage_of(swept: Swept) -> Coverage:
    """The coverage of a sweep."""
    wrong = {f.call for found in swept.failures.values() for f in found if f.call}
    refused = {text: r.said for text, r in swept.refused.items() if text not in wrong}
    limited = {text: r.said for text, r in swept.limited.items()}
    return Coverage(
        swept.use or "input", len(swept.right), len(wrong), refused, tuple(swept.untried), limited,
        swept.unbuilt,
    )  # fmt: skip
