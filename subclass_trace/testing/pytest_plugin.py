"""The rules as pytest tests: a base class to inherit.

    from subclass_trace.testing.pytest_plugin import ConformanceTests

    class TestMyTensor(ConformanceTests):
        target = MyTensor
        options = {"to_dense": "{0}.dequantize()"}      # arguments of `check`
        skip = {"ST110": "the constructor is internal"}

Each rule is a test of its own; a rule that does not apply is skipped with the reason. Calls that
must work are handed in by a marker, as `check` takes them by ``programs=``:

    @pytest.mark.subclass_programs("x @ x.t()", lambda x, y: torch.cat([x, y]).sum())
    class TestMyTensor(ConformanceTests): ...

Pytest knows the marker if ``pytest_plugins = ["subclass_trace.testing.pytest_plugin"]`` stands in
the top ``conftest.py`` (or ``-p`` on the command line).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from .isolation import run_rules
from .resolve import check_options, resolve
from .rules import Profile, Rule, load, profile_of, select
from .runner import Outcome, Result
from .subject import Subject

#: options of a test class that are not about building instances
_HOW = frozenset({"rules", "skip", "profile", "max_examples"})


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    what = "subclass_programs(*programs): calls that must work, for a class of ConformanceTests"
    config.addinivalue_line("markers", what)


class ConformanceTests:
    """Inherit, and set ``target``.

    Attributes:
        target: a class, a function that makes one from dense tensors, a name or a `Subject`.
        options: arguments of `kit.check`: how to build instances, and ``rules``, ``skip``,
            ``profile``, ``max_examples``.
        skip: ids of rules, beginnings of ids or families -> why they are left out.
        profile: dev, ci or thorough.

    Raises:
        OptionError: at class creation, for an option or a rule that does not exist.
    """

    target: ClassVar[Any] = None
    options: ClassVar[Mapping[str, Any]] = {}
    skip: ClassVar[Mapping[str, str]] = {}
    profile: ClassVar[str | Profile] = "dev"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_options({k: v for k, v in cls.options.items() if k not in _HOW})
        select(cls.options.get("rules"), cls.options.get("skip", ()))
        select(None, cls.skip)

    @pytest.mark.parametrize("rule", load(), ids=lambda r: r.slug)
    def test_rule(self, rule: Rule) -> None:
        """One rule."""
        if type(self).target is None:
            pytest.skip("set target to a wrapper class")
        for name, reason in self.skip.items():
            if rule in select([name]):
                pytest.skip(reason)
        options = self.options
        if rule not in select(options.get("rules"), options.get("skip", ())):
            pytest.skip("left out by options")
        level = profile_of(options.get("profile", self.profile)).at_most(
            options.get("max_examples")
        )
        (result,) = run_rules(self.subject(), [rule], level)
        judge(result)

    @classmethod
    def subject(cls) -> Subject:
        """The subject, made once per class."""
        if "_subject" not in vars(cls):
            options = {k: v for k, v in cls.options.items() if k not in _HOW}
            marks = [m for m in getattr(cls, "pytestmark", ()) if m.name == "subclass_programs"]
            programs = [program for m in marks for program in m.args]
            programs += options.pop("programs", ())
            cls._subject = resolve(cls.target, **options, programs=programs or None)
        return cls._subject

    _subject: ClassVar[Subject]


def judge(result: Result) -> None:
    """Fail, skip or pass, as the result says."""
    rule, failure = result.rule, result.failure
    if result.outcome is Outcome.NOT_APPLICABLE:
        pytest.skip(result.reason)
    if result.outcome is Outcome.ERROR:
        pytest.fail(f"{rule.id} broke, a fault of the kit:\n{result.error}", pytrace=False)
    if failure is not None:
        head = f"{rule.id} {rule.title} ({rule.severity.value})"
        pytest.fail(f"{head}\n{failure}\n\n{failure.script}\n{rule.advice}", pytrace=False)
