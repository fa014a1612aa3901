"""Instrumented clones do what the functions do, and ask where an instruction reads or writes.

All is judged in processes of their own: wrong code can end one, and torch is not needed.
"""

from __future__ import annotations

import functools
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from . import clone_checks, clone_programs

HERE = pathlib.Path(__file__).resolve().parent
_ALL = clone_programs.PROGRAMS.items()
PROGRAMS = [name for name, (since, _) in _ALL if sys.version_info[:2] >= since]


@functools.cache
def _judged(file: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_clone_does_what_the_function_does(name: str) -> None:
    assert _judged("clone_programs.py")[name] is None


@pytest.mark.parametrize("statement", clone_programs.ASKS)
def test_a_statement_asks(statement: str) -> None:
    assert _judged("clone_programs.py")[statement] is None


def test_operations_that_others_call_are_there_before_an_instruction_needs_them() -> None:
    code = """if True:
        import pathlib, re
        from subclass_trace.state import operations, readers
        files = pathlib.Path(operations.__file__).parent.glob("*.py")
        named = {name for f in files for name in re.findall(r'OPS\\["(\\w+)"\\]', f.read_text("utf-8"))}
        assert len(named) > 5 and named <= readers.OPS.keys(), named - readers.OPS.keys()
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_the_code_of_a_module_asks() -> None:
    assert _judged("clone_programs.py")["what the code of a module asks"] is None


def test_each_instruction_stands_in_a_program() -> None:
    assert _judged("clone_programs.py")["unseen"] == []


@pytest.mark.parametrize("name", [check.__name__ for check in clone_checks.CHECKS])
@pytest.mark.sweep(every=3)
def test_of_clones(name: str) -> None:
    assert _judged("clone_checks.py")[name] is None
