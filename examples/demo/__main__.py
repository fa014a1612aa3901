"""``python -m examples.demo``: both trainings, their tables, a summary; exit code 0 only if the
curves agree."""

from __future__ import annotations

import argparse
import json
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import data, fp8, show, tensor_parallel, workers
from .model import Sizes
from .side_by_side import WARM_UP, Job, Result

# Relative, at every step. The eager back end runs the same kernels in the same order: all losses
# measured so far were equal bit for bit. Other back ends round differently: 4e-7 measured for
# inductor with DTensor weights, and 4e-3 with FP8 weights, where the smallest difference makes a
# value fall to the next FP8 number, 6 % away.
TOLERANCE, LOOSE_TOLERANCE = 1e-6, 2e-2
FALL = 0.9  # the last losses must be below this part of the first one
ENOUGH = 20  # steps to expect that of
PATIENCE = 90.0  # seconds without a step before a worker counts as hung
SMALL, FEW = Sizes(width=64, layers=1, length=32, batch=4), 20
# seconds for one product of FP8 matrices of the usual size; torch takes 0.001 or, on some
# processors, 1
SLOW = 0.05

PARTS = {
    "tensor-parallel": (
        "tensor-parallel DTensor weights, 2 gloo processes",
        tensor_parallel.worker,
        2,
    ),
    "fp8": ("FP8-scaled weights, 1 process", fp8.worker, 1),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    options = _options(arguments)
    console = Console(stderr=options.json)
    if not console.is_terminal:
        console.width = 120
    sizes = SMALL if options.quick else Sizes()
    steps = options.steps or (FEW if options.quick else 100)
    start = time.perf_counter()
    try:
        text = data.load()
        console.print(
            f"Text: {text.files} files of Python's standard library, {show.size(len(text.data))}. "
            f"Model: {sizes.layers} layers, width {sizes.width}, {sizes.batch} x {sizes.length} "
            "bytes a step, "
            f"{steps} steps, every step once in eager and once compiled (back end "
            f"{options.backend!r}).\n",
            highlight=False,
        )
        job = Job(sizes, steps, options.backend)
        chosen = {name: PARTS[name] for name in options.only or PARTS}
        jobs = dict.fromkeys(chosen, job)
        if (
            "fp8" in jobs
            and not (options.quick or options.steps)
            and (seconds := fp8.seconds_of_a_product(sizes)) > SLOW
        ):
            jobs["fp8"] = Job(SMALL, FEW, options.backend)
            console.print(
                f"torch needs {seconds:.1f} s for one product of FP8 matrices on this processor: "
                "that part trains a smaller "
                f"model, {FEW} steps.\n",
                highlight=False,
            )
        outcome = {
            name: _train(console, name, worker, world, jobs[name])
            for name, (_, worker, world) in chosen.items()
        }
    except (data.DataError, workers.WorkerError) as error:
        console.print(f"[bold red]demo failed:[/bold red] {type(error).__name__}")
        console.print(str(error), markup=False, highlight=False)
        return 1
    results = {name: ranks[0] for name, ranks in outcome.items()}
    tolerance = TOLERANCE if options.backend in ("eager", "aot_eager") else LOOSE_TOLERANCE
    failures = {name: failures_of(ranks, tolerance) for name, ranks in outcome.items()}
    for name, result in results.items():
        show.part(console, chosen[name][0], result, tolerance, options.report)
    show.summary(console, results, tolerance)
    if options.json:
        print(
            json.dumps(
                {name: show.as_json(result, failures[name]) for name, result in results.items()},
                indent=1,
            )
        )
    for name, messages in failures.items():
        for message in messages:
            console.print(f"[bold red]failed:[/bold red] {name}: {message}", highlight=False)
    failed = any(failures.values())
    if not failed:
        console.print(
            "[bold green]ok:[/bold green] the compiled loss curves are the eager ones, within "
            f"{tolerance:g} "
            f"({time.perf_counter() - start:.0f} s in all)",
            highlight=False,
        )
    return int(failed)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--steps", type=_steps, help="training steps of each side (100; 20 with --quick)"
    )
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer steps")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object; the tables go to standard error"
    )
    parser.add_argument("--backend", default="eager", help="what st.compile is given (eager)")
    parser.add_argument(
        "--report", action="store_true", help="also print the full report of each compiled region"
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part; can be given again"
    )
    return parser.parse_args(arguments)


def _steps(text: str) -> int:
    steps = int(text)
    if steps <= WARM_UP:
        raise argparse.ArgumentTypeError(
            f"at least {WARM_UP + 1}: the first {WARM_UP} are not timed"
        )
    return steps


def _train(
    console: Console, name: str, worker: workers.Worker, world: int, job: Job
) -> list[Result]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[losses]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=job.steps, losses="starting")

        def stepped(step: int, eager: float, compiled: float) -> None:
            progress.update(
                task, completed=step, losses=f"loss {eager:.3f} eager, {compiled:.3f} compiled"
            )

        return workers.run(worker, job, world=world, progress=stepped, patience=PATIENCE)


def failures_of(ranks: list[Result], tolerance: float) -> list[str]:
    """Why this training is not right; empty when it is."""
    result, messages = ranks[0], []
    if not (difference := result.largest_difference()) <= tolerance:
        messages.append(
            f"the loss curves differ: expected a relative difference of at most {tolerance:g} at "
            "every step, "
            f"got {difference:.2e}"
        )
    for name, curve in (("eager", result.eager), ("compiled", result.compiled)):
        if len(curve.losses) >= ENOUGH and not curve.end() < FALL * curve.losses[0]:
            messages.append(
                f"the {name} loss did not fall: expected the mean of the last 5 to be below "
                f"{FALL} of the first, "
                f"got {curve.end():.3f} after {curve.losses[0]:.3f}"
            )
    if any(rank.compiled.losses != result.compiled.losses for rank in ranks):
        messages.append("the processes report different losses for the same step")
    return messages


if __name__ == "__main__":
    sys.exit(main())
