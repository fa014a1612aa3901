"""``write_scaffold``: files that run as they are, and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import subclass_trace as st
from subclass_trace.authoring.scaffold import write_scaffold

ROOT = Path(st.__file__).parents[1]


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=folder, env=environment
    )


@pytest.mark.slow
def test_the_written_test_passes(tmp_path) -> None:
    files = write_scaffold("BlockFP8Weight", tmp_path / "new" / "package")
    assert [f.name for f in files] == ["block_fp8_weight.py", "test_block_fp8_weight.py"]
    for file in files:
        text = file.read_text()
        assert "MyTensor" not in text and "my_tensor" not in text and text.endswith("\n")
    options = ("-q", "-p", "no:cacheprovider", "--show-capture=no")
    done = run("-m", "pytest", *options, files[1].name, folder=files[1].parent)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", ["", "my tensor", "1Tensor", "class", "_Hidden", "a.b", "../up"])
def test_names_that_are_none(name, tmp_path) -> None:
    with pytest.raises(st.OptionError, match="cannot be the name of a public class") as error:
        write_scaffold(name, tmp_path)
    assert error.value.got == repr(name) and not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    with pytest.raises(st.OptionError, match="test_mine.py exists") as error:
        write_scaffold("Mine", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["test_mine.py"]  # all or nothing
    assert "another name" in error.value.fix and (tmp_path / "test_mine.py").read_text() == "precious"
