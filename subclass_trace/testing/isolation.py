"""Rules run in a forked process: a class that hangs or kills the interpreter costs one call of the
sweep, or one rule.

The child tells what it is about to do and what came of it; the parent waits for so long, blames the
last thing that was begun twice, and forks another child for the rest. Where a fork is not safe (no
``os.fork``, a GPU in use: autograd has threads then), all runs in this process.

What a call costs must be its own. So what torch imports lazily is imported before the fork, and the
child's collector of
garbage leaves alone what the parent had made: to walk that, each page of it is copied, and in a
test run with millions of objects this took seconds of whichever call it fell into.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from ..torch_api.testing import load_dynamo
from . import sweep
from .evidence import Failure
from .rules import Cost, Profile, Rule, load
from .runner import ENDS, Outcome, Result, run_rule
from .subject import Subject

#: seconds of the processor that one call of the sweep may take, and how often that of the clock
CALL_LIMIT, PATIENCE = 5.0, 12
#: seconds of the clock that a rule may take, and one more for each cheap example
RULE_LIMIT = 120.0


def run_rules(subject: Subject, rules: Sequence[Rule], profile: Profile) -> Iterator[Result]:
    """The results of these rules: of those that compile last, which run beside the others in a
    process of their own."""
    if not can_fork():
        yield from (run_rule(subject, r, profile) for r in rules)
        return
    load_dynamo()  # as the first call on a tensor subclass would
    dear = [r for r in rules if r.cost is Cost.DEAR]
    first = [r for r in rules if r.cost is not Cost.DEAR]
    with contextlib.ExitStack() as exits:
        lost = dict[str, str]()
        beside = _Child(subject, dear, profile, lost, exits, sweeps=False) if dear else None
        yield from _results(subject, first, profile, lost)
        yield from _results(subject, dear, profile, lost, None if lost else beside)


def _results(
    subject: Subject,
    rules: Sequence[Rule],
    profile: Profile,
    lost: dict[str, str],
    child: _Child | None = None,
) -> Iterator[Result]:
    """The results of a process, and of others that are forked for what is left where one is lost.

    Args:
        lost: calls of the sweep that hung or crashed; those that are found are added.
        child: the first process.
    """
    left, once = list(rules), set[str]()
    while left or not sweep.is_done(subject):
        with contextlib.ExitStack() as exits:
            child = child or _Child(subject, left, profile, lost, exits)
            for result in child.results():
                left.remove(result.rule)
                yield result
            if child.error:
                yield from (Result(r, Outcome.ERROR, error=child.error) for r in left)
                return
            if child.doing == "rule" and left:
                yield _lost_rule(subject, left.pop(0), child.why)
            elif child.doing in once:
                lost[child.doing] = child.why
            elif child.doing:  # a fork that met a lock of another thread hangs once, a class again
                once.add(child.doing)
            child = None


def can_fork() -> bool:
    """Is a fork safe here?"""
    return hasattr(os, "fork") and not torch.cuda.is_available()


def _lost_rule(subject: Subject, rule: Rule, why: str) -> Result:
    lines = (f"# {rule.id}: {why}; the rule: {rule.title}",)
    failure = Failure(rule.id, ENDS, why, "an end", lines, subject)
    return Result(rule, Outcome.FAIL, 1, 1, failure=failure)


class _Child:
    """A forked process that runs rules.

    Attributes:
        doing: what it had begun when it was lost: "rule", or the text of a call; "" if nothing.
        why: what became of it.
        error: the traceback of a fault of the kit.
    """

    def __init__(
        self,
        subject: Subject,
        rules: Sequence[Rule],
        profile: Profile,
        lost: dict[str, str],
        exits: contextlib.ExitStack,
        sweeps: bool = True,
    ) -> None:
        """Fork; the process is no more when ``exits`` is left.

        Args:
            sweeps: its rules need to know what the sweep has found.
        """
        self.subject, self.doing, self.why, self.error = subject, "", "", ""
        self._limit = RULE_LIMIT + profile.cheap
        self._pipe, theirs = Pipe(duplex=False)
        self._stack, its_stack = Pipe(duplex=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks where there are threads
            self._process = os.fork()
        if self._process == 0:
            with contextlib.suppress(AttributeError):  # where there are no such signals
                faulthandler.register(signal.SIGUSR1, its_stack.fileno(), all_threads=False)
            sweep.lost.update(lost)
            if not sweeps:
                sweep.keep(subject, sweep.unswept(subject))
            _work(theirs, subject, rules, profile)
        theirs.close()
        its_stack.close()
        exits.callback(self._end)

    def results(self) -> Iterator[Result]:
        """Results as they come, until all are there, or the process is lost."""
        by_id = {r.id: r for r in load()}
        while True:
            try:
                if not self._comes():
                    self.why = f"it does not come to an end{self._where()}"
                    return
                kind, value = self._pipe.recv()
            except EOFError:
                self.why = f"the interpreter dies ({self._signal()})"
                return
            if kind == "result":
                self.doing = ""
                yield replace(
                    value, rule=by_id[value.rule], failure=_with(self.subject, value.failure)
                )
            elif kind == "swept":
                failures = {
                    k: [_with(self.subject, f) for f in v] for k, v in value.failures.items()
                }
                sweep.keep(self.subject, replace(value, failures=failures))
            elif kind == "error":
                self.error = value
                return
            elif kind == "end":
                self.doing = ""
                return
            else:
                self.doing = value

    def _comes(self) -> bool:
        """Wait for a message: a busy machine is given more time by the clock."""
        if self.doing in ("", "rule"):
            return self._pipe.poll(self._limit)
        start = _processor_time(self._process)
        for _ in range(PATIENCE):
            if self._pipe.poll(CALL_LIMIT):
                return True
            if _processor_time(self._process) - start >= 0.9 * CALL_LIMIT:
                return False
        return False

    def _where(self) -> str:
        """Where the child is: the innermost lines of Python, ours left out."""
        os.kill(self._process, signal.SIGUSR1)
        if not self._stack.poll(1.0):
            return ""
        time.sleep(0.2)
        lines = os.read(self._stack.fileno(), 1 << 16).decode(errors="replace").splitlines()
        frames = [line.strip() for line in lines if line.startswith("  File ")]
        ours = os.path.dirname(os.path.abspath(__file__))
        theirs = [frame for frame in frames if ours not in frame]
        return f": {theirs[0]}" if theirs else ""

    def _signal(self) -> str:
        _, status = os.waitpid(self._process, 0)
        self._process = 0
        return (
            signal.Signals(os.WTERMSIG(status)).name
            if os.WIFSIGNALED(status)
            else f"status {os.WEXITSTATUS(status)}"
        )

    def _end(self) -> None:
        self._pipe.close()
        self._stack.close()
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def _processor_time(process: int) -> float:
    """Seconds of the processor that a process has taken; where that is not known, as if it had
    all."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.monotonic()


def _with(subject: Any, failure: Failure | None) -> Any:
    return failure and replace(failure, subject=subject)


def _work(
    pipe: Connection,
    subject: Subject,
    rules: Sequence[Rule],
    profile: Profile,
) -> None:
    """What the child does; it never returns."""
    status = 1
    try:
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        torch.set_num_threads(1)  # the threads of the parent are not here
        if not sweep.is_done(subject):
            sweep.before_each.append(lambda text: pipe.send(("call", text)))
            swept = sweep.sweep_of(subject, profile.cheap // 2)
            sweep.before_each.clear()
            failures = {k: [_with(None, f) for f in v] for k, v in swept.failures.items()}
            pipe.send(("swept", replace(swept, failures=failures)))
        for rule in rules:
            pipe.send(("rule", "rule"))
            result = run_rule(subject, rule, profile)
            plain: Any = rule.id
            pipe.send(("result", replace(result, rule=plain, failure=_with(None, result.failure))))
        pipe.send(("end", None))
        status = 0
    except Exception:
        pipe.send(("error", traceback.format_exc()))
    except BaseException:  # of a call: that the process ends is what is told of it
        traceback.print_exc()
    finally:
        os._exit(status)
