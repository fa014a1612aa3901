"""The sweep: each call of the table (`calls.py`) once on small instances, against the dense
program.

`sweep_of(subject)` gives what came of it: findings, each with the rule that it breaks and the lines
that show it, and the coverage: which calls were right, refused, or not tried. Then some of the
calls on other sizes, dtypes and layouts.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import probes
from .ambient import STATE, set_torch_state, torch_state
from .calls import KINDS, section
from .contexts import Contexts
from .evidence import Call, Failure, Ran, call_of
from .judging import Judge, Refused
from .operands import SPREAD, Operands, Variant, case, operands_of, shifted
from .refusals import ALL_OF_THEM, Refusal, inferred_use, means_to, missing, never_done
from .subject import Subject

#: rules about calls that every tensor has
MUST = frozenset({"ST501", "ST506", "ST507", "ST510", "ST515"})
#: calls of one round of the search, beside those of the core
SAMPLE = 20
#: calls that are no sum of what they are on parts
PARALLEL = frozenset({"x.exp()", "x.abs()", "x * y", "x ** 2"})
#: calls of what has no dimensions
FLAT = frozenset(section("arithmetic", "pointwise"))
CORE, STATES, STATISTICS, VALUES = map(section, ("core", "states", "reductions", "values"))
#: calls that are about NaN
NANS = [call for call in section("pointwise", "keywords") if "nan" in call]
#: sizes of nothing
EMPTY = ((0, 3), (3, 0), (2, 0, 3))


@dataclass
class Swept:
    """What came of all calls.

    Attributes:
        failures: rule -> what shows that it is broken, in the order of the table.
        passed: rule -> the number of calls that were right.
        right: calls that gave what the dense program gives, and the operations that they took.
        refused: calls that the dense program can do and the class does not, and what it says.
        limited: right calls that it refuses in inference mode or with gradients.
        untried: calls for which no operand can be built.
        use: what the class is used for, said or inferred.
        unbuilt: why there was no sweep.
        makes: factories with other numbers, whose instances have other contexts.
        dangerous: operations of calls that hung or crashed the interpreter.
    """

    failures: dict[str, list[Failure]] = field(default_factory=dict)
    passed: Counter[str] = field(default_factory=Counter)
    right: dict[str, frozenset[str]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    limited: dict[str, Refusal] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    use: str = ""
    unbuilt: str = ""
    makes: tuple[str, ...] = ()
    dangerous: frozenset[str] = frozenset()


@functools.cache
def all_calls() -> tuple[Call, ...]:
    """The calls of the table."""
    known = [call_of(text, rule) for rule, texts in KINDS.items() for text in texts]
    return (*known, *(call_of(text, "ST313", True) for text in section("drawn")))


class Sweep(Contexts):
    """Judges calls on operands of one size, and notes what comes of them."""

    def __init__(self, subject: Subject, operands: Operands, result: Swept | None = None) -> None:
        self.subject, self.operands = subject, operands
        self.result = Swept() if result is None else result
        self.judge = Judge(subject, operands)
        self.types: dict[tuple[Any, ...], list[tuple[Call, Ran, type]]] = {}
        self.kept: list[tuple[Call, Any]] = []

    def attempt(self, call: Call, deep: bool = True) -> None:
        """Judge a call, and note what came of it."""
        if call.names & {"m", "a"} - self.operands.lines.keys():
            self.result.untried.append(call.text)
            return
        drawn = torch.get_rng_state()
        dense = self.judge.dense(call)
        draws = call.drawn or self.subject.random or not drawn.equal(torch.get_rng_state())
        if dense is None and call.rule == "ST320":
            self._alone(call)
        if dense is None or self._of_no_use(call):
            return
        self.judge.seen.functions.clear()
        ambient, found, ran = torch_state(), None, None
        drawn = torch.get_rng_state()
        try:
            ran = self.judge.judge(call, dense, deep)
        except Failure as error:
            found = error
        except Refused as error:
            stored = "pickle" in call.text or call.rule == "ST507"
            if not stored or self._pickles():
                self.result.refused.setdefault(call.text, error.args[0])
            found = self._after_refusal(call)
        except Exception as error:  # of the class, where its result is looked at
            what = "its result can be looked at"
            found = self._raised(call, call.rule, what, f"{type(error).__name__}: {error}")
        after = torch_state()
        if after != ambient:
            set_torch_state(ambient)
            found = self._moved(call, ", ".join(STATE), ambient, after)
        seeded = torch.initial_seed() != SPREAD
        if (seeded or not (draws or drawn.equal(torch.get_rng_state()))) and found is None:
            look = "torch.initial_seed(), torch.get_rng_state()"
            found = self._moved(call, look.split(",")[0] if seeded else look, "", "another")
        torch.default_generator.manual_seed(SPREAD) if seeded else None
        if found is not None:
            backward = self.judge.seen.names if found.rule.startswith("ST40") else frozenset()
            self.note(found, dense.operations.union(backward))
        elif ran is not None:
            self.result.right[call.text] = dense.operations
            self.result.passed[call.rule] += 1
            self.kept += [(call, ran.out)] * (call.text in CORE)
            self._remember(call, ran, dense)

    def note(self, found: Failure, operations: frozenset[str] = frozenset()) -> None:
        """Keep a finding."""
        kept = replace(found, subject=self.subject, operations=operations)
        self.result.failures.setdefault(found.rule, []).append(kept)

    def _alone(self, call: Call) -> None:
        """A program of the author that dense tensors cannot do: that it runs is all there is."""
        try:
            self.judge.run(call, self.judge.given(call, True))
            self.result.passed[call.rule] += 1
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            self.note(self._raised(call, call.rule, f"`{call.text}` works", said))

    def _raised(
        self, call: Call, rule: str, what: str, said: str, expected: str = "no exception"
    ) -> Failure:
        """A call that does not come to its end."""
        return self.judge.found(call, rule, what, (said, expected), self.judge.body(call, "got"))

    def _of_no_use(self, call: Call) -> bool:
        """Calls that say nothing about this class."""
        x = self.operands.shared["x"]
        if call.rule not in ("ST514", "ST515"):
            if "_(c, -torch.inf)" in call.text:  # codes have no infinities
                codes = [v for v in probes.leaves(x) if not v.is_floating_point()]
                return self.subject.tolerance[0] > 1e-2 or any(v.dtype != torch.bool for v in codes)
            return x.is_complex() and "float64" in call.text
        try:
            if call.rule == "ST515":
                return bool(x.storage_offset() == x[1:].storage_offset())
            # where `to` gives a dense tensor, torch replaces what a parameter shows, not what is in
            # it
            return not isinstance(x.to(torch.float64), self.subject.cls)
        except Exception:
            return True

    def _pickles(self) -> bool:
        """Can what is inside be pickled?"""
        try:
            x = self.operands.shared["x"]
            pickle.loads(pickle.dumps([v.clone() for v in probes.leaves(x)]))
            pickle.dumps(x.__tensor_flatten__()[1])
        except Exception:
            return False
        return True

    def _moved(self, call: Call, look: str, before: Any, after: Any) -> Failure:
        """Torch's global state is not as it was."""
        shared, judge = self.operands.shared, self.judge
        grad = [
            f"{n}.requires_grad_()" for n in judge.wrapped(call) if shared[n].is_floating_point()
        ]
        seeds = ["torch.manual_seed(1)"] * ("seed" in look)
        steps = [*grad * call.expression, *seeds, f"before = {look}", *judge.body(call, "z")]
        steps += ["z.sum().backward()"] * bool(judge.seen.functions and call.expression)
        what, looks = "an operation leaves torch's global state alone", (f"({look})", "before")
        return judge.found(call, "ST319", what, (after, before), steps, looks)

    def _remember(self, call: Call, ran: Ran, dense: Ran) -> None:
        """The types of results, for `types_agree`."""
        shared = self.operands.shared
        if dense.pointwise and isinstance(dense.out, torch.Tensor) and call.expression:
            used = self.judge.wrapped(call)
            fresh = all(dense.out is not t for t in dense.after.values())
            if fresh and not call.drawn and all(shared[n].shape == dense.out.shape for n in used):
                key = (call.rule, dense.out.dtype.is_floating_point, used == ["x"])
                self.types.setdefault(key, []).append((call, dense, type(ran.out)))

    def types_agree(self) -> None:
        """A call whose result is no instance of the class, where those of its like are."""
        cls = self.subject.cls
        for calls in self.types.values():
            count = sum(issubclass(kind, cls) for _, _, kind in calls)
            if count < 6 or len(calls) - count > 0.15 * count:
                continue
            for call, dense, kind in calls:
                if not issubclass(kind, cls):
                    what = f"its result is a {cls.__name__}, as those of {count} calls of this kind"
                    steps, look = self.judge.body(call, "got"), ("type(got)", "type(x)")
                    found = self.judge.found(call, "ST312", what, (kind, cls), steps, look)
                    self.note(found, dense.operations)

    def _after_refusal(self, refused: Call) -> Failure | None:
        """A call that is refused changes nothing of those after it: of one that was right before,
        each in turn."""
        if not self.kept or self.subject.random:
            return None
        judge, (call, before) = self.judge, self.kept[len(self.result.refused) % len(self.kept)]
        tried = refused.text.replace("\n", "\n    ")
        steps = [f"expected = {call.text}", f"try: {tried}", "except Exception: pass"]
        steps, what = [*steps, f"got = {call.text}"], "the same after a call that was refused"
        look: tuple[str, str] | None = None
        try:
            judge.unchanged(refused, False)
            with torch.no_grad():
                after = judge.run(call, judge.given(call, "_(" in call.text)).out
            if judge.alike(before, after):
                return None
            look = judge.projected("got", after), judge.projected("expected", before)
            look = look if type(after) is type(before) else ("type(got)", "type(expected)")
        except Failure:  # it changes its operands: so do others
            return None
        except Exception as error:
            after = f"{type(error).__name__}: {error}"
        both = call_of(f"{call.text}\n{refused.text}", "ST311")
        return judge.found(both, "ST311", what, (after, before), steps, look)


# ---- all of it
_DONE: weakref.WeakKeyDictionary[Subject, Swept] = weakref.WeakKeyDictionary()
#: told before each call, so that who watches knows what caused a crash or a hang
before_each: list[Callable[[str], None]] = []
#: calls that hung or crashed before, and what happened
lost: dict[str, str] = {}


def keep(subject: Subject, swept: Swept) -> None:
    """Take over what another process has found."""
    _DONE[subject] = swept


def is_done(subject: Subject) -> bool:
    """Is it known what came of the calls for a subject?"""
    return subject in _DONE


def unswept(subject: Subject) -> Swept:
    """What is known of a subject without the calls: how its instances are made."""
    with _quiet():
        try:
            variants = operands_of(subject).variants
        except (
            Exception
        ) as error:  # whatever the class does when it is built, flattened or projected
            return Swept(unbuilt=f"{type(error).__name__}: {error}".splitlines()[0])
        return Swept(makes=Variant.makes(variants))


def sweep_of(subject: Subject, rounds: int = 8) -> Swept:
    """What came of the calls for a subject; they run once.

    Args:
        rounds: how many other sizes, dtypes and layouts are searched.
    """
    if subject not in _DONE:
        with _quiet():
            _DONE[subject] = _swept(subject, rounds)
    return _DONE[subject]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Random numbers and warnings are the sweep's own."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(SPREAD)  # that of no class
        yield


def _swept(subject: Subject, rounds: int) -> Swept:
    try:
        sweep = Sweep(subject, operands_of(subject))
    except Exception as error:  # whatever the class does when it is built, flattened or projected
        return Swept(unbuilt=f"{type(error).__name__}: {error}".splitlines()[0])
    result = sweep.result
    result.makes = Variant.makes(sweep.operands.variants)
    sweep.contexts()
    if sweep.operands.agree:
        try:
            sweep.judge.projection()
        except Failure as found:
            sweep.note(found)
    calls = [*(call_of(text, "ST320") for text in subject.programs), *all_calls()]
    dangerous = result.dangerous = _dangers(sweep, calls)
    for call in calls:
        if dangerous and (dense := sweep.judge.dense(call)) and dense.operations & dangerous:
            result.untried += [call.text] * (call.text not in lost)
            continue
        for tell in before_each:
            tell(call.text)
        sweep.attempt(call)
    sweep.types_agree()
    result.limited = sweep.judge.limited
    result.passed.update(sweep.judge.passed)
    _judge_refusals(sweep, {c.text: c for c in calls})
    _search(sweep, calls, rounds)
    _other_parts(sweep, calls)
    return result


def _other_parts(sweep: Sweep, calls: list[Call]) -> None:
    """Of inner tensors that operations run on side by side, the projection is one: what the others
    say.

    Side by side are those of which nearly all that is right of the projection is right as well, and
    not what is linear alone.
    """
    subject, result, x = sweep.subject, sweep.result, sweep.operands.shared["x"]
    failing = {f.call for found in result.failures.values() for f in found}
    for name, inner in probes.inners(x).items():
        outside = isinstance(inner, torch.Tensor) and (inner.shape, inner.dtype) == (
            x.shape,
            x.dtype,
        )
        part = replace(subject, dense=f"{{0}}.{name}")
        if not outside or subject.dense in (None, part.dense):
            continue
        if _is_all(sweep, x, inner):
            continue
        other = Sweep(part, operands_of(part))
        for call in calls:
            if call.text in result.right and not call.drawn:
                other.attempt(call, deep=False)
        found, right = other.result.failures, len(other.result.right)
        wrong = sum(map(len, found.values()))
        parallel = PARALLEL & result.right.keys()
        if parallel and parallel <= other.result.right.keys() and wrong < 0.1 * right:
            for rule, failures in found.items():
                kept = [f for f in failures if f.call not in failing]
                result.failures.setdefault(rule, []).extend(kept)


def _is_all(sweep: Sweep, x: Any, inner: torch.Tensor) -> bool:
    """Is the dense value this very inner tensor, where nothing waits to be done?"""
    with contextlib.suppress(Exception), torch.no_grad():
        value = eval(str(sweep.subject.dense).format("_x"), {**sweep.operands.base, "_x": x})
        return bool(inner.numel() and value.data_ptr() == inner.data_ptr())
    return False


def _dangers(sweep: Sweep, calls: list[Call]) -> frozenset[str]:
    """Operations of calls that hung or crashed before: they are not tried again."""
    dangerous = frozenset[str]()
    for call in calls:
        if call.text in lost:
            dense = sweep.judge.dense(call)
            dangerous |= dense.operations if dense else frozenset()
            what, said = "a call comes to an end", lost[call.text]
            sweep.note(sweep._raised(call, "ST802", what, said, "an end"), dangerous)
    return dangerous


def _search(sweep: Sweep, calls: list[Call], rounds: int) -> None:
    """Some calls on other sizes, dtypes and layouts, and on what operations have given: the same
    ones in each run."""
    subject, result = sweep.subject, sweep.result
    known = {f.call for found in result.failures.values() for f in found}.union(result.untried)
    left = [
        c for c in calls if c.expression and c.text not in known and c.text not in result.refused
    ]
    ambient = torch_state()
    for number, (text, make) in enumerate(_elsewhere(subject, rounds, result.makes)):
        try:
            operands = make()
        except Exception:  # sizes, dtypes or operations that the class does not have
            continue
        finally:
            moved = torch_state() != ambient  # that is a finding of the call alone
            set_torch_state(ambient)
        marks = operands.dense["x"].isnan() if "nan" in text else operands.dense["x"].isinf()
        if moved or (text in VALUES[2:] and not marks.any()):
            continue  # (integers have none, nor a class that rounds)
        other = Sweep(subject, operands, Swept(failures=result.failures))
        if not operands.fits:
            if operands.shape in EMPTY and sweep.operands.fits:
                other.no_sizes()
            continue
        if text:
            ops = sweep.operands
            other.told_apart(
                ops.lines["x"], operands.lines["x"], ops.shared["x"], operands.shared["x"]
            )
        other.rebuilt(operands.lines["x"], operands.shared["x"])
        also = STATISTICS if "_(" in text or "inf" in text else NANS if text in VALUES else ()
        every = [(c, False) for c in left if c.text in CORE or c.text in also]
        fit = left if "r" in operands.lines else [c for c in left if c.text in FLAT]
        drawn = random.Random(number).sample(fit, min(SAMPLE * (text not in VALUES), len(fit)))
        for call, deep in [*every, *((c, number % 2 == 0) for c in drawn)]:
            for tell in before_each:
                tell(call.text)
            other.attempt(call, deep)
        result.passed.update(other.result.passed)


def _elsewhere(
    subject: Subject, rounds: int, makes: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], Operands]]]:
    """Examples; what operations have given, and other numbers, with what stands around the gaps;
    nothing at all."""
    for number in range(rounds):
        yield "", functools.partial(case, subject, number + 1, makes)
    for text in STATES:
        make = text.format(subject.make, shifted(subject.make, subject.arity))
        state = replace(subject, make=make, arity=subject.arity * (1 + ("{1}" in text)))
        yield text, functools.partial(operands_of, state)
    # (NaN may be the mark of what means nothing)
    for text in VALUES[: None if subject.valid is None else -1] if subject.floating else ():
        make = _GAP.sub(functools.partial(_around, text), subject.make)
        yield text, functools.partial(operands_of, replace(subject, make=make))
    dtype = (*subject.floating, *subject.dtypes)[0]
    for shape in sorted({*EMPTY} & {*(subject.sizes or EMPTY)}):
        yield "", functools.partial(Operands, subject, shape, dtype)


_GAP = re.compile(r"\{\d\}")


def _around(text: str, gap: re.Match[str]) -> str:
    return text.replace("{0}", gap[0])


def _judge_refusals(sweep: Sweep, calls: dict[str, Call]) -> None:
    """Findings of the refused calls: accidents of what the class means to do, programs, the use."""
    result, subject = sweep.result, sweep.subject
    known = frozenset[str]().union(*result.right.values())
    share = len(result.right) / max(1, len(result.right) + len(result.refused))
    tried = {f.call for found in result.failures.values() for f in found}.union(result.right)
    never = never_done(subject.cls, result.refused, tried)
    for text, refusal in result.refused.items():
        call = calls[text]
        dense = sweep.judge.dense(call)
        operations = dense.operations if dense else frozenset[str]()
        named = means_to(subject.cls, operations, text)
        means = share >= ALL_OF_THEM or named or bool(operations and operations <= known)
        meant = refusal.blunder or (refusal.accident and means) or text in never
        rule = "ST320" if text in subject.programs else "ST317" if meant else ""
        rule = call.rule if call.rule in MUST or "swap_tensors" in text else rule
        rule = "ST401" if rule and "have a grad_fn" in refusal.said else rule
        if rule:
            what = f"`{text}` works, as on dense tensors"
            sweep.note(sweep._raised(call, rule, what, refusal.said), operations)
    result.use = subject.use or inferred_use(set(result.right))
    for text in missing(result.use, set(result.right)) if subject.use else ():
        if text in result.refused:
            what, said = f"{subject.use}: `{text}` works", result.refused[text].said
            sweep.note(sweep._raised(calls[text], "ST318", what, said))
