"""Refusals have codes, and one table says who serves each."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest
import torch

import subclass_trace as st
from subclass_trace.frontends.routes import ROUTES, Route, table

PACKAGE = Path(st.__file__).parent
ROOT = PACKAGE.parent


def strings(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _ends(node: ast.expr) -> list[ast.expr]:
    return [*_ends(node.body), *_ends(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def used() -> set[str]:
    """What stands in the package as ``code=``; the table of methods that need memory holds its codes second."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "code":
                found |= {n.value for n in _ends(node.value) if isinstance(n, ast.Constant)}
    from subclass_trace.capture.diagnostics import MEMORY

    return found | {row[1] for row in MEMORY.values()}


def test_each_code_has_a_row_and_each_row_is_used() -> None:
    assert used() == set(ROUTES)


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "limits.md").read_text()
    assert table() in page and all(f"`{code}`" in page for code in ROUTES)


def test_capture_does_not_know_routes() -> None:
    for folder in ("capture", "state", "plan", "subclass", "partition", "runtime"):
        for path in (PACKAGE / folder).rglob("*.py"):
            assert "routes" not in path.read_text(), path


@pytest.mark.filterwarnings("ignore")
def test_explain_names_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBCLASS_TRACE_FRONTEND", "auto")

    def exchanged(x: torch.Tensor) -> torch.Tensor:
        x.data = torch.ones(3)
        return x + 1

    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    for f, code, route in [(exchanged, "memory-exchanged", Route.EAGER), (branch, "branch-on-value", Route.DYNAMO)]:
        region = st.compile(f)
        region(torch.ones(2))
        assert f"[{code}]" in region.explain() and ROUTES[code][0] is route


def test_a_call_that_makes_state_runs_eagerly_once() -> None:
    model = torch.nn.LazyLinear(2)
    region = st.compile(lambda x: model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        region(torch.ones(1, 3)), region(torch.ones(1, 3))
    assert len(region.specializations) == 1 and "[lazy-parameter]" in region.explain()
