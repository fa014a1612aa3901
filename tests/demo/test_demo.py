"""``make demo``: it runs, its exit code says whether the curves agree, and a broken worker is reported, never waited for."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import demo_workers
import pytest
from demo_workers import ROOT

pytest.importorskip("rich")
pytest.importorskip("torch.distributed").is_available() or pytest.skip("no torch.distributed", allow_module_level=True)

PARTS = ("tensor-parallel", "fp8")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The demo as a user runs it."""
    line = [sys.executable, "-m", "examples.demo", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)


def run_main(monkeypatch, capsys, worker, world: int = 1, *arguments: str) -> tuple[int, str]:
    """The demo in this process with another worker; exit code and output."""
    from examples.demo import __main__ as demo

    monkeypatch.setattr(demo, "PARTS", {"part": ("a part", worker, world)})
    code = demo.main(["--quick", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.long  # of what `make demo` runs
def test_the_trainings_agree_and_the_exit_code_is_zero() -> None:
    done = command("--quick", "--steps", "6", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert list(found) == list(PARTS)
    for part in found.values():
        assert part["ok"] and part["failures"] == []
        assert len(part["losses"]["eager"]) == len(part["losses"]["compiled"]) == 6
        assert part["largest_relative_difference"] <= 1e-6
        assert part["specializations"] == 1
        assert 0 < part["saved_bytes"]["compiled"] <= part["saved_bytes"]["eager"]
        assert any(row["leaves"] for row in part["unwrapped"])
    # The tables go to standard error.
    for words in ("._local_tensor", ".qdata", "Saved for backward", "Summary", "ok:"):
        assert words in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 160


def test_a_worker_that_raises(monkeypatch, capsys) -> None:
    code, out = run_main(monkeypatch, capsys, demo_workers.raises)
    assert code == 1
    assert "demo failed: WorkerError" in out and "worker 0 failed" in out
    assert "ValueError: this worker is broken" in out and "line 4999" in out  # the end of a long message
    assert len(out.splitlines()) < 60


@pytest.mark.slow
def test_a_worker_that_dies(monkeypatch, capsys) -> None:
    code, out = run_main(monkeypatch, capsys, demo_workers.exits)
    assert code == 1
    assert "worker 0 died with exit code 7" in out
    assert "the last words of this worker" in out


@pytest.mark.slow
def test_one_of_two_workers_that_dies(monkeypatch, capsys) -> None:
    code, out = run_main(monkeypatch, capsys, demo_workers.second_rank_exits, 2)
    assert code == 1
    assert "worker 1 died with exit code 7" in out


@pytest.mark.slow
def test_a_worker_that_hangs(monkeypatch, capsys) -> None:
    from examples.demo import __main__ as demo

    monkeypatch.setattr(demo, "PATIENCE", 1.0)
    start = time.monotonic()
    code, out = run_main(monkeypatch, capsys, demo_workers.hangs)
    assert code == 1
    assert "no step for 1 seconds; waiting for workers [0]" in out
    assert time.monotonic() - start < 30


@pytest.mark.long
def test_an_unknown_back_end(monkeypatch, capsys) -> None:
    from examples.demo import fp8

    code, out = run_main(monkeypatch, capsys, fp8.worker, 1, "--backend", "eagr")
    assert code == 1
    assert "eagr" in out and "eager" in out


def test_no_text_to_train_on(monkeypatch, capsys, tmp_path) -> None:
    from examples.demo import data

    load = data.load
    monkeypatch.setattr(data, "load", lambda: load(tmp_path))
    code, out = run_main(monkeypatch, capsys, demo_workers.raises)
    assert code == 1
    assert "too little text to train on" in out and "fix:" in out


@pytest.mark.parametrize("arguments", [("--steps", "3"), ("--steps", "many"), ("--only", "other")])
def test_wrong_arguments(arguments, capsys) -> None:
    from examples.demo import __main__ as demo

    with pytest.raises(SystemExit) as stop:
        demo.main(list(arguments))
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- the verdict
def result(eager: list[float], compiled: list[float]):
    from examples.demo.side_by_side import Curve, Result

    curves = [Curve(losses, [1.0] * len(losses), [1.0] * len(losses)) for losses in (eager, compiled)]
    return Result(*curves, 0, [], [], 1, "", "")


FALLING = [6.0 - 0.2 * k for k in range(20)]


@pytest.mark.parametrize(
    "eager, compiled, message",
    [
        (FALLING, FALLING, None),
        (FALLING, [*FALLING[:-1], FALLING[-1] * 1.01], "the loss curves differ"),
        (FALLING, [*FALLING[:-1], float("nan")], "the loss curves differ"),
        ([float("nan")] * 20, [float("nan")] * 20, "the loss curves differ"),
        ([6.0] * 20, [6.0] * 20, "did not fall"),
        ([6.0] * 5, [6.0] * 5, None),
    ],
)
def test_verdict(eager, compiled, message) -> None:
    from examples.demo import __main__ as demo

    found = demo.failures_of([result(eager, compiled)], 1e-6)
    assert found == [] if message is None else message in found[0]


def test_processes_that_disagree() -> None:
    from examples.demo import __main__ as demo

    found = demo.failures_of([result(FALLING, FALLING), result(FALLING, [*FALLING[:-1], 0.5])], 1e-6)
    assert found == ["the processes report different losses for the same step"]


# ---------------------------------------------------------------------------------------------- the data
def test_batches_are_the_same_for_a_seed() -> None:
    from examples.demo import data

    text = data.load()
    first, again = (list(text.batches(steps=3, batch=2, length=8, seed=1)) for _ in range(2))
    for (tokens, targets), (tokens_again, targets_again) in zip(first, again, strict=True):
        assert tokens.tolist() == tokens_again.tolist() and targets.tolist() == targets_again.tolist()
        assert tokens[:, 1:].tolist() == targets[:, :-1].tolist()
