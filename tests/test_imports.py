"""``import subclass_trace`` is light, and works from a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pytest", "hypothesis", "torch._dynamo", "torch._inductor", "rich", "torchao", "matplotlib")


def loaded_after(statement: str) -> set[str]:
    code = f"import torch; before = set(__import__('sys').modules); {statement}; import sys; print(*sys.modules, sep=chr(10))"
    run = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    return loaded_after("import subclass_trace; subclass_trace.compile")


@pytest.mark.parametrize("name", HEAVY)
def test_import_is_light(loaded: set[str], name: str) -> None:
    assert "subclass_trace.frontends.compile" in loaded
    assert name not in loaded


@pytest.mark.long
def test_the_package_alone_loads_no_tracer() -> None:
    loaded = loaded_after("import subclass_trace")
    assert not {"sympy", "subclass_trace.torch_api", "subclass_trace.frontends"} & loaded


@pytest.mark.long
def test_the_zoo_is_light() -> None:
    assert not loaded_after("import subclass_trace.zoo") & set(HEAVY)


def test_public_names_exist_and_are_documented() -> None:
    import subclass_trace as st

    for name in st.__all__:
        assert getattr(st, name).__doc__, name
