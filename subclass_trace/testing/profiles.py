"""How hard to look: three profiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import OptionError
from .rules import Cost


@dataclass(frozen=True, slots=True)
class Profile:
    """Numbers of examples per rule.

    Attributes:
        name: dev, ci or thorough.
        cheap: examples of a rule that only runs eager operations.
        dear: examples of a rule that compiles, starts threads or writes files.
        shrink_seconds: how long a counterexample is made smaller.
    """

    name: str
    cheap: int
    dear: int
    shrink_seconds: float

    def examples(self, cost: Cost) -> int:
        """Examples for a rule of this cost."""
        return self.dear if cost is Cost.DEAR else self.cheap

    def at_most(self, examples: int | None) -> Profile:
        """The profile with another limit on examples."""
        if examples is None:
            return self
        if examples < 1:
            raise OptionError("max_examples must be at least 1", got=examples)
        return replace(self, cheap=examples, dear=min(self.dear, examples))


PROFILES = {
    p.name: p for p in (Profile("dev", 12, 2, 2.0), Profile("ci", 60, 6, 5.0), Profile("thorough", 1000, 60, 60.0))
}


def profile(name: str | Profile) -> Profile:
    """The profile of that name.

    Raises:
        OptionError: there is none.
    """
    if isinstance(name, Profile):
        return name
    if name not in PROFILES:
        raise OptionError(f"no profile is called {name!r}", expected=" or ".join(PROFILES))
    return PROFILES[name]
