"""``python -m benchmarks``: run the benchmarks and print ratios beside their goals."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

from . import (
    compiled_autograd,
    cuda_graphs,
    first_call,
    freezing,
    memory,
    models,
    partition,
    programs,
    steady,
    titan,
    warm_start,
    whole_step,
)
from .results import Figure, as_json, as_markdown, as_text

BENCHMARKS = {
    "steady": steady,
    "models": models,
    "programs": programs,
    "memory": memory,
    "whole_step": whole_step,
    "titan": titan,
    "compiled_autograd": compiled_autograd,
    "cuda_graphs": cuda_graphs,
    "first_call": first_call,
    "warm_start": warm_start,
    "partition": partition,
    "freezing": freezing,
}  # the finest measurement first


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for.

    Returns: 1 with ``--strict`` when a goal is missed, else 0.
    """
    options = _parser().parse_args(arguments)
    warnings.filterwarnings("ignore")
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:5.0f} s] {text}", file=sys.stderr, flush=True)

    figures: list[Figure] = []
    if options.gpu:
        found = itertools.chain(
            programs.run(options.quick, say, "cuda"), cuda_graphs.run_on_gpu(options.quick, say)
        )
    else:
        found = (
            f
            for name in options.only or BENCHMARKS
            for f in BENCHMARKS[name].run(options.quick, say)
        )
    for figure in found:
        # goals are for the full programs
        figures.append(replace(figure, goal=None) if options.quick else figure)
    say("done")
    print(as_markdown(figures) if options.markdown else as_text(figures))
    if options.json:
        options.json.write_text(json.dumps(as_json(figures), indent=2) + "\n")
    missed = [f for f in figures if f.missed]
    if missed:
        print(
            f"\n{len(missed)} of {sum(f.goal is not None for f in figures)} goals missed",
            file=sys.stderr,
        )
    return int(bool(missed and options.strict))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Ratios beside their goals."
    )
    parser.add_argument(
        "--quick", action="store_true", help="small programs, few rounds, no goals: under a minute"
    )
    parser.add_argument(
        "--only", action="append", choices=sorted(BENCHMARKS), help="run this one; may be repeated"
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="users' programs with inductor, on a GPU whose name is recorded",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures, with raw times and bytes"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of docs/benchmarks.md"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
