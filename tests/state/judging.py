"""Judges generated programs: what eager does over calls and changes, a compiled region has to do.

A verdict is one word:

    right           results, gradients, Python's state and torch's flags are eager's at each step
    refused         a typed refusal of our own trace; the state is as before that call
    stale           right until something was changed, then not
    wrong           not right before anything was changed
    other state     results are right, what the program left behind is not
    invalid         no program: its text or a change raises, or each call of it
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import sys
import sysconfig
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

import subclass_trace as st
from tests.differential.oracle import difference, look

from . import generated_parts as parts
from .alike import Twins
from .generate import Program

Compile = Callable[[Any], Any]


def _stack(fn: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="aot_eager")


#: by what a region is compiled
WAYS: dict[str, Compile] = {
    "trace": lambda fn: st.compile(fn, frontend="trace", backend="eager"),
    "auto": lambda fn: st.compile(fn, backend="eager"),
    "stack": _stack,
    "eager": lambda fn: fn,
    "as it is": lambda fn: fn,  # eager too, with torch's own `cond`
}
FAULTS = ("wrong", "stale", "other state")
_BY_DYNAMO = ("validation of distributions",)  # it is off from its first use on
_NOT_STATE = ("torch", "fn", "inner", "regions", "cond")


@dataclass
class Verdict:
    """What came of a program.

    Attributes:
        detail: the first difference, or the refusal.
        specializations: how many served it, where it is known.
        handed_over: Dynamo took it, or it ran eagerly.
    """

    word: str
    detail: str = ""
    specializations: int = 0
    handed_over: bool = False


@dataclass
class Run:
    """One run: what each step showed, and what the world is like after it."""

    shown: list[Any] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    flags: list[Any] = field(default_factory=list)
    refusal: str = ""
    is_late: bool = False  # refused in a backward: the call itself is done
    error: str = ""
    specializations: int = 0
    handed_over: bool = False


def judge(program: Program, how: str = "trace") -> Verdict:
    """The verdict on `program`, compiled as `how` says."""
    if _is_torchs_own(program.names):
        return Verdict("invalid")
    eager = _run(program, WAYS["eager"])
    if eager is None or all("raises" in seen for seen in eager.shown if isinstance(seen, dict)):
        return Verdict("invalid")
    got = _run(program, WAYS[how])
    assert got is not None
    verdict = Verdict("right", got.refusal, got.specializations, got.handed_over)
    if got.refusal:
        known = _run(program, WAYS["eager"], len(got.shown))
        assert known is not None
        eager, verdict.word = known, "refused"
    found = _differs(eager, got)
    if found is not None:
        at, verdict.detail = found
        verdict.word = "stale" if _is_changed(program, at) else "wrong"
        if _is_wrong_by_itself(program, eager):
            verdict.word = "refused"
        verdict.detail += f" {got.error}"
    elif not got.is_late and (other := _other_state(eager, got)):
        verdict.word, verdict.detail = "other state", other
    return verdict


def _is_torchs_own(names: dict[str, str]) -> bool:
    """Is eager itself another program than a compiled one, or is what is read not told by the region's own code?

    A checkpoint reads Python's state again in its backward, of which a compiled region has the
    values of the forward (docs/limits.md); a key that a branch of `torch.cond` adds to a dict is lost by torch.
    """
    place, change = names.get("place"), names.get("change")
    if place == "a checkpoint":
        by_region = ("by the region", "counted", "in the region", "before the backward")
        return change is not None and (change.startswith(by_region) or change.endswith("written"))
    return place == "a branch of cond" and "a default dict" in names.values()


def _is_wrong_by_itself(program: Program, eager: Run) -> bool:
    """Is `torch.cond` alone not as eager, which takes the code of its branches into a graph?"""
    if "cond(" not in program.source:
        return False
    run = _run(program, WAYS["as it is"])
    return run is not None and _differs(eager, run) is not None


def _other_state(eager: Run, got: Run) -> str:
    if not Twins()(eager.state, got.state):
        return _first_other(eager.state, got.state)
    pairs = zip(parts.FLAGS, eager.flags, got.flags, strict=True)
    others = [(f.name, a, b) for f, a, b in pairs if a != b and f.name not in _BY_DYNAMO]
    return f"flags, eager and compiled: {others}" if others else ""


def _is_changed(program: Program, at: int) -> bool:
    """Was anything changed before step `at`, or in it?"""
    if "by the region" in program.names["change"] and at > 0:
        return True
    return any(step.startswith(("change", "between")) for step in program.steps[: at + 1])


def _differs(eager: Run, got: Run) -> tuple[int, str] | None:
    for at, (a, b) in enumerate(zip(eager.shown, got.shown, strict=False)):
        found = difference(a, b)
        if found:
            return at, f"step {at}: {found}"
    return None


def _first_other(eager: dict[str, Any], got: dict[str, Any]) -> str:
    for name, value in eager.items():
        if name not in got or not Twins()(value, got[name]):
            return f"{name}: {value!r:.200} eager, {got.get(name)!r:.200} compiled"
    return "two names lead to one object on one side alone"


# -------------------------------------------------------------------------------- running
def _run(program: Program, compile: Compile, steps: int | None = None) -> Run | None:
    """Runs the first `steps` steps in a fresh module; None: its text or a change raises."""
    run = Run()
    if "cond(" in program.source:
        torch._dynamo.reset()
    with _world(program) as module, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if module is None:
            return None
        if compile is WAYS["eager"]:
            module.cond = _cond
        functions = getattr(module, "regions", None) or [module.fn]
        regions = [compile(fn) for fn in functions]
        for number, step in enumerate(program.steps[:steps]):
            try:
                run.shown.append(_step(program, module, regions, step, number, run))
            except st.SubclassTraceError as error:
                run.refusal = str(error)
                break
            except _NoProgram:
                return None
        run.specializations = max(len(getattr(region, "specializations", ())) for region in regions)
        run.handed_over = any(isinstance(w.message, st.HandOverWarning) for w in caught)
        run.flags = [_read(flag) for flag in parts.FLAGS]
        names = [name for name in vars(module) if not name.startswith("__")]
        run.state = {name: vars(module)[name] for name in names if name not in _NOT_STATE}
    return run


def _cond(which: Any, true: Any, false: Any, operands: Any) -> Any:
    """What `torch.cond` means; eager's runs Dynamo, which keeps what it compiled."""
    return true(*operands) if which else false(*operands)


class _NoProgram(Exception):
    pass


def _step(
    program: Program,
    module: Any,
    regions: list[Any],
    step: str,
    number: int,
    run: Run,
) -> Any:
    word, _, argument = step.partition(" ")
    if word == "change":
        return _changed(module, int(argument))
    region = regions[int(argument or 0)]
    base = torch.full((2,), 1.0 + number, requires_grad=program.grad, device="cpu")
    x = _inputs(module, base)
    seen: dict[str, Any] = {}
    try:
        y = region(x)
        results = y if isinstance(y, tuple) else (y,)
        seen["result"] = [_shown(result) for result in results]
        run.is_late = True
        if word == "between":
            seen["change"] = _changed(module, 0)
        if program.grad and results[-1].requires_grad:
            results[-1].sum().backward()
            seen["grad"] = _shown(base.grad)
            modules = [m for m in vars(module).values() if isinstance(m, torch.nn.Module)]
            seen["of parameters"] = [_shown(p.grad) for m in modules for p in m.parameters()]
        run.is_late = False
    except st.SubclassTraceError:
        raise
    except _NoProgram:
        raise
    except Exception as error:
        seen["raises"] = type(error).__name__
        run.is_late = False
        run.error = run.error or f"{type(error).__name__}: {error}"
    return seen


def _inputs(module: Any, base: torch.Tensor) -> Any:
    try:
        return module.inputs(base) if hasattr(module, "inputs") else base
    except Exception as error:
        raise _NoProgram from error


def _shown(value: Any) -> Any:
    seen = look(value)
    if isinstance(value, torch.Tensor) and value.device.type == "meta":
        del seen["value"]
    elif "value" in seen:
        seen["value"] = seen["value"].as_subclass(torch.Tensor)
    return seen


def _changed(module: Any, number: int) -> Any:
    try:
        module.change(number)
    except Exception as error:
        raise _NoProgram from error
    return "changed"


# -------------------------------------------------------------------------------- the world
@contextmanager
def _world(program: Program) -> Iterator[Any]:
    """A fresh module of the program's text, or None; torch's flags are as before afterwards."""
    house()
    for flag in parts.FLAGS:
        _put(flag)
    torch.manual_seed(0)
    RemovableHandle.next_id = 0
    module: Any = types.ModuleType(f"zz_generated_{next(_numbers)}")
    sys.modules[module.__name__] = module
    try:
        try:
            code = _compiled(program)
            # else each trace looks for such a file, in all of `sys.path`, once a line
            linecache.cache[code.co_filename] = 0, None, [], code.co_filename
            exec(code, vars(module))
        except Exception:
            yield None
            return
        yield module
    finally:
        if hasattr(module, "restore"):
            module.restore()
        del sys.modules[module.__name__]
        for flag in parts.FLAGS:
            _put(flag)


@functools.lru_cache(1)
def _compiled(program: Program) -> types.CodeType:
    return compile(program.source, f"zz_generated_{program.seed}.py", "exec", dont_inherit=True)


def house() -> None:
    """The module of an installed library; its code has a file there, which needs not exist."""
    if "generated_house" in sys.modules:
        return
    module = types.ModuleType("generated_house")
    module.__file__ = os.path.join(sysconfig.get_paths()["purelib"], "generated_house.py")
    sys.modules[module.__name__] = module
    exec(compile(parts.HOUSE, module.__file__, "exec", dont_inherit=True), vars(module))


def _flags_space() -> dict[str, Any]:
    if not _space:
        exec("import decimal, os, sys, torch, torch.utils.checkpoint\nimport numpy as np", _space)
        _space["FIRST_LIMIT"] = sys.getrecursionlimit()
    return _space


_space: dict[str, Any] = {}
_numbers = itertools.count()


@functools.cache
def _of_flag(flag: parts.Flag) -> tuple[types.CodeType, Any, types.CodeType]:
    """How it is read, what it is at first, how it is put back."""
    read = compile(flag.read, "<flag>", "eval")
    put = compile(flag.put.replace("$w", flag.first), "<flag>", "exec")
    return read, eval(flag.first, _flags_space()), put


def _read(flag: parts.Flag) -> Any:
    return eval(_of_flag(flag)[0], _flags_space())


def _put(flag: parts.Flag) -> None:
    _, first, put = _of_flag(flag)
    if _read(flag) != first:
        exec(put, _flags_space())


# -------------------------------------------------------------------------------- reports
def report(programs: list[Program], how: str, stack: bool, show: bool) -> int:
    """Prints verdicts by part, and what is not right; gives 1 where something is not."""
    counts: Counter[str] = Counter()
    by_part: dict[str, dict[str, Counter[str]]] = {}
    by_stack: dict[str, Counter[str]] = {}
    retraced: dict[str, list[int]] = {}
    start = time.process_time()
    for program in programs:
        verdict = judge(program, how)
        counts[verdict.word] += 1
        if show:
            print(program.source.partition("as house\n")[2].strip(), "\n", program, program.steps)
        if verdict.word == "invalid":
            continue
        if verdict.word == "right" and (program.is_unread or program.names["change"] == "equal"):
            row = retraced.setdefault(program.names["change"], [0, 0])
            row[0] += verdict.specializations > 1
            row[1] += 1
            if verdict.specializations > 1:
                print(f"{program.seed:6} retraced    {program}")
        for kind, name in program.names.items():
            by_part.setdefault(kind, {}).setdefault(name, Counter())[verdict.word] += 1
        if verdict.word in FAULTS or show:
            print(f"{program.seed:6} {verdict.word:11} {program}; {verdict.detail:.160}")
        if stack and verdict.word in (*FAULTS, "refused"):
            by_stack.setdefault(verdict.word, Counter())[judge(program, "stack").word] += 1
    _print_counts(counts, by_part, retraced)
    for word, other in by_stack.items():
        print(f"{word}: by torch.compile {dict(other)}")
    print(f"{time.process_time() - start:.0f} s of process time")
    return int(any(counts[word] for word in FAULTS))


def _print_counts(
    counts: Counter[str],
    by_part: dict[str, dict[str, Counter[str]]],
    retraced: dict[str, list[int]],
) -> None:
    for kind, rows in by_part.items():
        bad = {name: c for name, c in rows.items() if any(c[w] for w in (*FAULTS, "refused"))}
        for name, c in sorted(bad.items(), key=lambda row: -sum(row[1][w] for w in FAULTS)):
            words = " ".join(f"{word} {n}" for word, n in sorted(c.items()))
            print(f"{kind:7} {name:50} {sum(c.values()):5} {words}")
    valid = sum(counts.values()) - counts["invalid"]
    print(
        {word: f"{n} ({n / max(valid, 1):.1%})" for word, n in counts.most_common()},
        f"of {valid} valid",
    )
    for change, (number, of) in retraced.items():
        print(f"{change}: {number} of {of} traced again")
