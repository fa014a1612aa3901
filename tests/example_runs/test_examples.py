"""The examples run as a user runs them, in small sizes, and print what docs/examples.md says."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(name: str, *arguments: str) -> str:
    """What an example prints. It ends within a minute, and well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"examples.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_first_subclass() -> None:
    out = run("first_subclass", "--steps=40", "--width=16")
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d+ ", line)]
    assert len(rows) == 4 and all(eager == compiled for _, eager, compiled in rows)
    assert float(rows[-1][1]) < float(rows[0][1])
    assert "args[0][0].weight.left" in out and "args[0][2].weight.right" in out


def test_custom_backend() -> None:
    out = run("custom_backend", "--width=8")
    losses = [re.findall(r"\d\.\d+", line) for line in out.splitlines() if "loss" in line]
    assert len(losses) == 2 and losses[0] == losses[1]
    assert "2 clamp_min.default" in out and "relu" not in out
    assert "largest difference of a gradient: 0.0e+00" in out


def test_keep_activations() -> None:
    out = run("keep_activations", "--layers=2", "--width=16", "--batch=32")
    rows = {line[:16].strip(): line[16:].split() for line in out.splitlines()[1:5]}
    assert list(rows) == ["default", "min_cut", "keep products", "keep sigmoids"]
    assert all(float(difference) <= 1e-6 for _, _, difference in rows.values())
    assert int(rows["keep sigmoids"][0]) < int(rows["default"][0])
    saved = out.split("saves:\n")[1].splitlines()
    assert saved and all(line.split()[0].startswith("sigmoid") for line in saved)


def test_fp8_training() -> None:
    out = run("fp8_training", "--steps=8", "--width=32")
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:]}
    assert list(rows) == ["bf16", "dynamic", "delayed"]
    for _, first, last, compiled, *_ in rows.values():
        assert float(last) < float(first)
        assert abs(float(last) - float(compiled)) < 0.02 * float(last)
    assert all(("float8_e4m3fn," in row) == (kind != "bf16") for kind, row in rows.items())


def test_quantised_llama() -> None:
    for package in ("torchao", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'subclass_trace[torchao,transformers]'")
    out = run("quantised_llama", "--tokens=4", "--layers=1", "--width=32")
    eager, compiled = (re.search(rf"^{name} .*(\[.*\])", out, re.M) for name in ("eager", "compiled"))
    assert eager and compiled and eager.group(1) == compiled.group(1)
    assert "7 weights are Int8Tensor" in out and "specializations: 1;" in out
    assert "self.model.layers[0].self_attn.q_proj.weight.qdata" in out


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_tensor_parallel() -> None:
    out = run("tensor_parallel", "--steps=4", "--width=16")
    losses = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if line.endswith(" ms")}
    assert losses["eager"] == losses["compiled"] and float(losses["eager"][1]) < float(losses["eager"][0])
    assert "2 processes" in out and "forward: 2 _c10d_functional.all_reduce.default" in out
    assert "query.weight is (16, 16); here (8, 16), S(0)" in out
