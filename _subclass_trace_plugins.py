"""The entry point of subclass_trace for pytest. Imports torch only when it is needed.

It is a module of its own, because importing anything under ``subclass_trace`` imports torch, and pytest loads every entry
point of the environment, also in projects that have nothing to do with torch.
"""

from __future__ import annotations

import sys
from typing import Any


def pytest_addoption(parser: Any) -> None:
    """``--subclass-check``, ``--subclass-profile``, ``--subclass-skip``."""
    group = parser.getgroup("subclass_trace", "conformance of tensor subclasses")
    group.addoption(
        "--subclass-check",
        action="append",
        default=[],
        metavar="PKG.MOD:CLS",
        help="run the conformance rules on this wrapper class, each as a test; without other arguments nothing else runs",
    )
    group.addoption("--subclass-profile", default="dev", choices=("dev", "ci", "thorough"), help="how hard to look")
    group.addoption("--subclass-skip", action="append", default=[], metavar="ID", help="leave out rules: ST101, ST1")


def pytest_collection_modifyitems(session: Any, config: Any, items: list[Any]) -> None:
    """Add the rules as tests."""
    targets = config.getoption("--subclass-check")
    if not targets:
        return
    from subclass_trace.testing.pytest_plugin import rule_items

    if not any(":" not in a and not a.startswith("-") for a in config.invocation_params.args if _is_path(a, config)):
        items.clear()
    here = str(config.invocation_params.dir)
    if here not in sys.path:  # classes of the current directory, as with `python -m pytest`
        sys.path.insert(0, here)
    items.extend(
        rule_items(session, targets, config.getoption("--subclass-profile"), config.getoption("--subclass-skip"))
    )


def _is_path(argument: str, config: Any) -> bool:
    path = config.invocation_params.dir / str(argument).split("::")[0]
    return bool(path.exists())
