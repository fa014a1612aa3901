"""The examples in README, docs and docstrings run and print what they say.

In a page, sessions (``>>>``) run as doctests; blocks marked ``python`` without prompts run too, in their place between
the sessions, and the tests that they define are called. A block that is no program has a comment in front of it,
``<!-- not run: why -->``.
"""

from __future__ import annotations

import doctest
import functools
import importlib
import pathlib
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import subclass_trace
from subclass_trace import verify

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(m.name for m in pkgutil.walk_packages(subclass_trace.__path__, "subclass_trace."))


def _named(page: pathlib.Path) -> Any:
    """Those whose examples check whole classes take the kit's seconds."""
    marks = [pytest.mark.long] if page.stem in ("authoring", "conformance", "weights") else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [_named(page) for page in PAGES])
def test_page(page: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PROVES", False)  # as in the process of a reader
    module = types.ModuleType(f"page_{page.stem}")  # classes of a page can be pickled, as those of a file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text, blocks = _with_blocks(page.read_text(encoding="utf-8"))
    for name in ("torchao", "transformers"):
        if any(f"from {name}" in block for block in blocks):
            pytest.importorskip(name)
    if "validate_guards=True)" in text:
        pytest.importorskip("z3")
    found = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    found.globs = vars(module)
    module.__dict__["_block"] = lambda k: exec(compile(blocks[k], f"{page.name}[{k}]", "exec"), vars(module))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(found, clear_globs=False)
    assert runner.failures == 0
    for test in _tests_of(module):
        test()


def _with_blocks(text: str) -> tuple[str, list[str]]:
    """The page with a session ``>>> _block(k)`` in place of each program without prompts, and these programs."""
    blocks: list[str] = []

    def session(match: re.Match[str]) -> str:
        if ">>> " in match["code"] or match["why"]:
            return match[0]
        blocks.append(match["code"])
        return f"\n>>> _block({len(blocks) - 1})\n\n"

    return _BLOCK.sub(session, text), blocks


_BLOCK = re.compile(r"(?:<!-- not run: (?P<why>.+?) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def _tests_of(module: types.ModuleType) -> Iterator[Callable[[], Any]]:
    """The test functions of a page; and of its classes of conformance tests every method, for a few of the rules."""
    from subclass_trace.testing.pytest_plugin import ConformanceTests
    from subclass_trace.testing.rules import load

    for name, value in list(vars(module).items()):
        if name.startswith("test_"):
            yield value
        elif isinstance(value, type) and issubclass(value, ConformanceTests) and value is not ConformanceTests:
            yield from (functools.partial(value().test_rule, r) for r in load() if r.id.endswith("01"))


def test_programs_without_prompts_are_run() -> None:
    text, blocks = _with_blocks("a\n```python\nx = 1\n```\n<!-- not run: shortened -->\n```python\n...\n```\n")
    assert blocks == ["x = 1\n"] and ">>> _block(0)" in text and "not run: shortened" in text


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.sweep(every=2)
def test_docstrings(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)\)", prose):
        assert (page.parent / target).exists(), target


def test_the_architecture_names_what_there_is() -> None:
    """Files of the package by their paths, and names that stand in a row of a table with files stand in one of them."""
    root, page = ROOT / "subclass_trace", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for line in page.splitlines():
        named = re.findall(r"`([\w./]+\.py)`", line)
        files = [p for name in named for p in [root / name, *root.glob(f"*/{name}")] if p.is_file()]
        assert all(any(str(p).endswith(name) for p in [*files, *ROOT.glob(name)]) for name in named), line
        if line.startswith("|") and files:
            text = "".join(p.read_text(encoding="utf-8") for p in files)
            names = [n.rpartition(".")[2] for n in re.findall(r"`(\w[\w.]*)`", line) if not n.endswith(".py")]
            missing = [n for n in names if n not in text and not n.startswith(("cond", "scan", "self", "Function"))]
            assert not missing, (missing, line)


def test_the_page_of_files_is_what_the_files_say() -> None:
    from tools.files_table import PACKAGE, page

    text = page()
    assert (ROOT / "docs" / "files.md").read_text(encoding="utf-8") == text, "python -m tools.files_table"
    kit = ("authoring", "testing", "zoo")
    files = [p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" and not {*kit} & {*p.parts}]
    missing = [p for p in files if f"`{p.name}`" not in text and f"{p.parent.name}/{p.name}`" not in text]
    assert not missing, missing


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
