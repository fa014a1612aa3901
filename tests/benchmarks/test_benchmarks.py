"""The benchmarks themselves: the harness measures, the figures print, and every stack computes what eager mode does."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import first_call, memory, stacks, steady, subjects, warm_start
from benchmarks.harness import Timings, interleaved, once, quiet
from benchmarks.results import Figure, Goal, as_json, as_text
from benchmarks.subjects import WrongValues, check, five_operations, ranks, transformer


# ---------------------------------------------------------------------------------------------- harness
def test_interleaved_gives_one_sample_per_round_and_variant() -> None:
    calls = {"a": 0, "b": 0}

    def count(name: str) -> Callable[[], None]:
        def action() -> None:
            calls[name] += 1

        return action

    times = interleaved({n: count(n) for n in calls}, rounds=3, burst_ms=0.1, warm_up=2)
    assert {k: len(v) for k, v in times.samples.items()} == {"a": 3, "b": 3}
    assert all(sample > 0 for row in times.samples.values() for sample in row)
    assert all(n > 2 + 2 * 3 for n in calls.values()), "bursts of many calls"


def test_a_call_longer_than_a_burst_is_called_few_times_per_sample() -> None:
    calls = []
    interleaved({"a": lambda: calls.append(sum(range(100_000)))}, rounds=2, burst_ms=1e-3, warm_up=0)
    assert len(calls) <= 1 + 2 * 2 * 2


def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    times = Timings({"a": [1.0, 10.0, 300.0], "b": [2.0, 10.0, 100.0]})
    assert times.ratio("a", "b") == 1.0
    assert times.ratios("b") == {"a": 1.0, "b": 1.0}
    assert times.medians() == {"a": 10.0, "b": 10.0}


@pytest.mark.long
def test_once_calls_a_new_callable_each_time_after_forgetting() -> None:
    events: list[str] = []

    def make(name: str) -> Callable[[], Callable[[], None]]:
        def prepare() -> Callable[[], None]:
            events.append(f"make {name}")
            return lambda: events.append(f"call {name}")

        return prepare

    times = once({"a": make("a"), "b": make("b")}, rounds=2, fresh=lambda: events.append("forget"))
    first = ["forget", "make a", "call a", "forget", "make b", "call b"]
    second = ["forget", "make b", "call b", "forget", "make a", "call a"]
    assert events == first + second, "each round starts with another variant"
    assert {k: len(v) for k, v in times.samples.items()} == {"a": 2, "b": 2}


def test_quiet_restores_what_it_changes() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), quiet():
        assert torch.get_num_threads() == 1 and gc.get_freeze_count() > 0
        1 / 0
    assert torch.get_num_threads() == threads
    assert gc.get_freeze_count() == 0


# ---------------------------------------------------------------------------------------------- results
FIGURES = [
    Figure("steady", "time / graph", "small", 1.304, Goal("<=", 1.4), {"aot_function": 2.8}, {"graph": 10.0}),
    Figure("steady", "time / graph", "large", 1.5, Goal("<=", 1.4), {"aot_function": 2.0, "eager": 24.04}),
    Figure("memory", "bytes / min_cut", "small", 1.0),
]


def test_text() -> None:
    assert as_text(FIGURES) == (
        "steady: time / graph\n"
        "  case   goal    ours            aot_function  eager\n"
        "  small  <= 1.4  1.30            2.80\n"
        "  large  <= 1.4  1.50  (missed)  2.00          24.0\n"
        "\n"
        "memory: bytes / min_cut\n"
        "  case   ours\n"
        "  small  1.00"
    )


def test_json() -> None:
    first, second, third = as_json(FIGURES)
    assert first["met"] and not second["met"] and third["met"]
    assert (first["goal"], third["goal"], first["raw"]) == ("<= 1.4", None, {"graph": 10.0})
    json.dumps([first, second, third])


@pytest.mark.parametrize(
    "goal, value, met", [(Goal("<=", 1.4), 1.404, True), (Goal("<=", 1.4), 1.41, False), (Goal(">=", 2.2), 2.196, True)]
)
def test_a_goal_is_compared_with_the_printed_number(goal: Goal, value: float, met: bool) -> None:
    assert goal.met(value) is met


# ---------------------------------------------------------------------------------------------- values
def test_check_finds_a_wrong_value_a_wrong_gradient_and_a_wrong_type() -> None:
    subject = five_operations("dense", train=True)
    check(subject, subject.function, "eager")
    with pytest.raises(WrongValues, match="the result of wrong is not that of eager mode"):
        check(subject, lambda x, y: subject.function(x, y) + 1, "wrong")
    with pytest.raises(WrongValues, match="the gradient of input 0 of wrong is not that of eager mode"):
        check(subject, lambda x, y: subject.function(x, y) + (x - x.detach()), "wrong")
    wrapped = five_operations("TwoTensor", train=False)
    with pytest.raises(WrongValues, match="wrong gives a Tensor as result"):
        check(wrapped, lambda x, y: x.a, "wrong")


@pytest.mark.parametrize("train", [False, True])
def test_the_dense_step_runs_each_inner_tensor(train: bool) -> None:
    subject = five_operations("TwoTensor", train=train)
    results = subject.dense()()
    expected = subject.step(subject.function)
    expected = expected[1:] if train else expected
    leaves = [getattr(t, name) for name in ("a", "b") for t in expected]
    for got, wanted in zip(results, leaves, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", list(subjects.KINDS))
@pytest.mark.parametrize("partitioner", ["min_cut", "default"])
def test_a_layer_gives_eagers_values(kind: str, partitioner: str) -> None:
    with ranks():
        subject = transformer(kind, layers=1)
        check(subject, stacks.ours(subject.function, partitioner), "ours")


def test_saved_bytes_do_not_count_inputs() -> None:
    subject = five_operations("dense", train=True, size=1024)
    eager = memory.saved_bytes(subject, lambda x, y: x * y)
    assert eager == 0
    assert memory.saved_bytes(subject, lambda x, y: (x * y).sin() + (x * y).cos()) == 2 * 4096


def test_peak_bytes_is_exact() -> None:
    subject = five_operations("dense", train=False, size=1024)
    assert memory.peak_bytes(subject, lambda x, y: x * y) == 4096
    assert memory.peak_bytes(subject, lambda x, y: (x * y).sin()) == 2 * 4096


@pytest.fixture
def _quiet_torch() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own stacks warn about themselves
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_quiet_torch")
@pytest.mark.parametrize(
    "benchmark", [first_call, steady, memory, warm_start], ids=lambda m: m.__name__.rpartition(".")[2]
)
def test_every_stack_gives_eagers_values(benchmark: Any) -> None:
    benchmark.verify(quick=True)


@pytest.mark.slow
@pytest.mark.usefixtures("_quiet_torch")
def test_the_command(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert command.main(["--quick", "--only", "steady", "--json", str(file), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "**steady: inference time / dense forward graph**" in out and "| case | ours |" in out
    figures = json.loads(file.read_text())
    assert len(figures) == 5 and all(f["ours"] > 0 and f["goal"] is None for f in figures)
