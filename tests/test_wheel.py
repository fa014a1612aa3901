"""The wheel has every file and entry point, and what it installs works outside of a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
build = pytest.importorskip("hatchling.build", reason="hatchling is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel holds, like site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    before = Path.cwd()
    os.chdir(ROOT)  # where the build back end looks for the project
    try:
        name = build.build_wheel(str(folder))
    finally:
        os.chdir(before)
    zipfile.ZipFile(folder / name).extractall(folder / "site")
    return folder / "site"


def run(site: Path, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_every_file_is_in_it(site: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = folder.joinpath("subclass_trace").rglob("*")
        return {str(p.relative_to(folder)) for p in found if p.is_file() and p.suffix != ".pyc"}

    assert files(site) == files(ROOT)
    assert "subclass_trace/py.typed" in files(site)
    rest = {p.name for p in site.iterdir() if p.suffix != ".dist-info"}
    assert rest == {"subclass_trace"}


@pytest.mark.long
def test_entry_points_load(site: Path, tmp_path: Path) -> None:
    code = f"""
from importlib.metadata import distribution
import subclass_trace
assert subclass_trace.__file__.startswith({str(site)!r}), subclass_trace.__file__
found = {{(e.group, e.name): e.load() for e in distribution("subclass_trace").entry_points}}
assert set(found) == {{
    ("console_scripts", "subclass-trace"), ("torch_dynamo_backends", "subclass_trace"),
}}, found
import torch
assert "subclass_trace" in torch._dynamo.list_backends(None)
assert torch.equal(torch.compile(lambda x: x * 2, backend="subclass_trace")(torch.ones(2)), torch.full((2,), 2.0))
"""
    done = run(site, "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_commands_work_in_an_empty_folder(site: Path, tmp_path: Path) -> None:
    cli = ("-m", "subclass_trace.cli")
    assert run(site, *cli, "new", "MyTensor", folder=tmp_path).returncode == 0
    few = ("--rules", "ST101", "ST502", "--max-examples", "2")
    done = run(site, *cli, "check", "my_tensor:MyTensor", *few, "--html", "page.html", folder=tmp_path)
    assert done.returncode == 0 and "2 pass" in done.stdout, done.stdout + done.stderr
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")
