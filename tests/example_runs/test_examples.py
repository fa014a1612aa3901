"""The examples run as a user runs them, in small sizes, and print what docs/examples.md says."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


SMALL = {  # module of an example -> arguments
    "first_subclass": ["--steps=40", "--width=16"],
    "custom_backend": ["--width=8"],
    "keep_activations": ["--layers=2", "--width=16", "--batch=32"],
    "fp8_training": ["--steps=8", "--width=32"],
    "quantised_llama": ["--tokens=4", "--layers=1", "--width=32"],
}
RUN_EACH = """
import json, runpy, sys, traceback, contextlib, io
found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    sys.argv, out, error = [name, *arguments], io.StringIO(), None
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_module(f"examples.{name}", run_name="__main__", alter_sys=True)
        except BaseException:
            error = traceback.format_exc()
    found[name] = [error, out.getvalue()]
print(json.dumps(found))
"""


def child(*command: str) -> str:
    """What a Python process prints. It ends within minutes, and well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = (sys.executable, *command)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """What an example prints. Those of the chosen tests run one after the other in one process, which imports PyTorch once."""
    tests = {item.name for item in request.session.items if item.parent is request.node}
    known = {n: a for n, a in SMALL.items() if n != "quantised_llama" or not missing_packages()}
    wanted = {n: a for n, a in known.items() if f"test_{n}" in tests}
    found = json.loads(child("-c", RUN_EACH, json.dumps(wanted)).splitlines()[-1])

    def output(name: str) -> str:
        error, text = found[name]
        assert error is None, text + error
        return text

    return output


def missing_packages() -> list[str]:
    return [p for p in ("torchao", "transformers") if importlib.util.find_spec(p) is None]


def test_first_subclass(printed) -> None:
    out = printed("first_subclass")
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d+ ", line)]
    assert len(rows) == 4 and all(eager == compiled for _, eager, compiled in rows)
    assert float(rows[-1][1]) < float(rows[0][1])
    assert "args[0][0].weight.left" in out and "args[0][2].weight.right" in out


def test_custom_backend(printed) -> None:
    out = printed("custom_backend")
    losses = [re.findall(r"\d\.\d+", line) for line in out.splitlines() if "loss" in line]
    assert len(losses) == 2 and losses[0] == losses[1]
    assert "2 clamp_min.default" in out and "relu" not in out
    assert "largest difference of a gradient: 0.0e+00" in out


def test_keep_activations(printed) -> None:
    out = printed("keep_activations")
    rows = {line[:16].strip(): line[16:].split() for line in out.splitlines()[1:5]}
    assert list(rows) == ["default", "min_cut", "keep products", "keep sigmoids"]
    assert all(float(difference) <= 1e-6 for _, _, difference in rows.values())
    assert int(rows["keep sigmoids"][0]) < int(rows["default"][0])
    saved = out.split("saves:\n")[1].splitlines()
    assert saved and all(line.split()[0].startswith("sigmoid") for line in saved)


@pytest.mark.long
def test_fp8_training(printed) -> None:
    out = printed("fp8_training")
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:]}
    assert list(rows) == ["bf16", "dynamic", "delayed"]
    for _, first, last, compiled, *_ in rows.values():
        assert float(last) < float(first)
        assert abs(float(last) - float(compiled)) < 0.02 * float(last)
    assert all(("float8_e4m3fn," in row) == (kind != "bf16") for kind, row in rows.items())


@pytest.mark.long
def test_quantised_llama(printed) -> None:
    if missing_packages():
        pytest.skip(f"{missing_packages()} are not installed: pip install 'subclass_trace[torchao,transformers]'")
    out = printed("quantised_llama")
    eager, compiled = (re.search(rf"^{name} .*(\[.*\])", out, re.M) for name in ("eager", "compiled"))
    assert eager and compiled and eager.group(1) == compiled.group(1)
    assert "7 weights are Int8Tensor" in out and "specializations: 1;" in out
    assert "self.model.layers[0].self_attn.q_proj.weight.qdata" in out


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_tensor_parallel() -> None:
    out = child("-m", "examples.tensor_parallel", "--steps=4", "--width=16")
    losses = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if line.endswith(" ms")}
    assert losses["eager"] == losses["compiled"] and float(losses["eager"][1]) < float(losses["eager"][0])
    assert "2 processes" in out and "forward: 2 _c10d_functional.all_reduce.default" in out
    assert "query.weight is (16, 16); here (8, 16), S(0)" in out
