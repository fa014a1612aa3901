"""Mutants of the recorder and of the pins: each drops a kind of row, or is blind to a read.

Generated programs, or the fixed ones of `programs.txt`, catch each: one at least is judged faulty
with the mutant and right without it. A mutant that nothing catches says that a row is not needed,
or that the generator lacks a part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from subclass_trace.runtime import pinned, pins
from subclass_trace.runtime.batches import Batch
from subclass_trace.state import (
    attributes,
    branches,
    c_callables,
    c_methods,
    calls,
    iteration,
    recorder,
    run,
    torch_flags,
)
from subclass_trace.state.caller import Caller
from subclass_trace.state.guards import StateGuards
from subclass_trace.state.recorder import StateRecorder
from subclass_trace.state.rows import Row
from subclass_trace.state.values import MISSING, lookup
from subclass_trace.torch_api import words

from . import judging, test_found, test_programs
from .generate import Program, program

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
SEEDS = range(8000)
#: of the programs that fit, so many are judged
MOST = 12
#: tests of fixed programs
FIXED = {
    "fixed": test_programs.test_program,
    "backward": test_found.test_before_a_backward,
    "branch": test_found.test_in_a_branch,
}


# --------------------------------------------------------------------------------- how to mutate
def without_rows(drops: Callable[[Row], bool]) -> Mutant:
    """Guards that lack some rows."""

    def mutate(patch: Patch) -> None:
        made = StateGuards.__init__

        def init(self: Any, *args: Any) -> None:
            made(self, *args)
            self.rows = tuple(row for row in self.rows if not drops(row))

        patch.setattr(StateGuards, "__init__", init)

    return mutate


def without_kind(kind: str) -> Mutant:
    """Guards that lack the rows of a kind."""
    return without_rows(lambda row: row.kind == kind)


def without_step(kind: str) -> Mutant:
    """Guards that lack the rows of what a step of a kind leads to."""
    return without_rows(lambda row: row.place.parent is not None and row.place.kind == kind)


def instead(owner: Any, name: str, value: Any) -> Mutant:
    """Another attribute."""
    return lambda patch: patch.setattr(owner, name, value)


def nothing(owner: Any, name: str, result: Any = None) -> Mutant:
    """A function that does nothing."""
    return instead(owner, name, lambda *a, **k: result)


def entry(table: dict[Any, Any], key: Any, value: Any) -> Mutant:
    """Another handler in a table."""
    return lambda patch: patch.setitem(table, key, value)


def as_it_is(rec: Any, f: Any, a: Any, k: Any) -> Any:
    """A handler that records nothing."""
    return f(*a, **k)


def blind(batch: str) -> Mutant:
    """Pins of a batch that never differ."""

    def mutate(patch: Patch) -> None:
        made = pinned.batches

        def batches() -> dict[str, Batch]:
            return {**made(), batch: Batch(batch, lambda *read: 0, by_id=False)}

        patch.setattr(pinned, "batches", batches)
        patch.delitem(pinned.WORDS, batch, raising=False)
        if batch == "tables":
            patch.setattr(words, "class_version", lambda cls: None)

    return mutate


def both(*mutants: Mutant) -> Mutant:
    """All of these."""

    def mutate(patch: Patch) -> None:
        for mutant in mutants:
            mutant(patch)

    return mutate


def fixed(name: str) -> str:
    """A program of `programs.txt`, instead of parts of generated ones."""
    return f"fixed: {name}"


def _looked_up(self: Any, cls: type, name: str) -> Any:
    return lookup(cls, name)


def _without_below(self: Any, at: Any, now: Any, changed: Any) -> None:
    changed[at] = now


def _repinned_unseen(self: Any, differing: Any, changed: Any) -> None:
    for (name, k), given in differing:
        self.batches[name].pin(k, given)
    self._found.update(changed)
    self.things[:] = [self._found[at] for at in self.places]


def _note_without(kind: type) -> Mutant:
    """What is of a kind is not noted."""
    note = StateRecorder.note

    def noted(self: Any, at: Any, value: Any) -> None:
        if type(value) is not kind:
            note(self, at, value)

    return instead(StateRecorder, "note", noted)


#: batches of the pins -> the parts of the programs that catch it
BATCHES = {
    "tables": "holder: a dict",
    "types": "holder: the class of an object replaced",
    "spaces": "holder: the dict of an object replaced",
    "codes": "holder: code replaced",
    "defaults": "holder: a default,",
    "named": "holder: a keyword default,",
    "cells": "holder: a cell",
    "slots": "holder: a slot",
    "lists": "value: a list; change: inside",
    "lengths": "value: the length of a list; change: inside",
}
#: what is mutated -> how, and the parts of the programs that catch it
MUTANTS: dict[str, tuple[Mutant, str]] = {
    # kinds of rows; without "tensor" the class of the tensor is compared all the same, by the entry
    "rows: value": (without_kind("value"), "value: a float; holder: a global"),
    "rows: exact": (without_kind("exact"), "value: a decimal"),
    "rows: is": (without_kind("is"), "holder: a class that is indexed; change: made anew"),
    "rows: type": (without_kind("type"), "holder: the class of an object replaced"),
    "rows: number": (without_kind("number"), fixed("number_of_another_type")),
    "rows: func": (without_kind("func"), "holder: code replaced"),
    "rows: len": (without_kind("len"), "value: the length of a list; change: inside"),
    "rows: keys": (without_kind("keys"), "value: the order of a dict"),
    "rows: set": (without_kind("set"), "value: a member of a set; change: by the region inside"),
    "rows: truth": (without_kind("truth"), "value: the truth of a list; change: inside"),
    "rows: raw": (without_kind("raw"), "value: a numpy array"),
    "rows: based": (without_kind("based"), fixed("int_subclass")),
    "rows: hooks": (without_kind("hooks"), "holder: a module: a forward hook"),
    "rows: alias": (without_kind("alias"), "reader: an alias; change: parted, asked"),
    "rows: distinct": (without_kind("distinct"), fixed("argument_list_alias")),
    "rows: other": (without_kind("other"), "reader: an alias; change: joined, asked"),
    "rows: nothing there": (without_rows(lambda row: row.known is MISSING), "change: appears"),
    # what leads to a place
    "steps: attributes": (without_step("attr"), "holder: an attribute"),
    "steps: attributes of C": (without_step("getattr"), "holder: a slot"),
    "steps: items": (without_step("item"), "holder: a dict"),
    "steps: contents of cells": (without_step("contents"), "holder: a cell"),
    "steps: lookups": (without_step("lookup"), "holder: a class attribute"),
    "steps: own of a class": (without_step("own"), "holder: the dict of a class"),
    "steps: super": (without_step("super"), fixed("super_call")),
    "steps: calls": (without_step("call"), "holder: torch:"),
    "steps: caches": (without_step("cached"), "holder: a cache"),
    "steps: referents": (without_step("ref"), fixed("copy_of_an_itemgetter")),
    "steps: facts": (without_step("fact"), "holder: a tensor: shared memory"),
    "steps: inner": (without_step("inner"), fixed("method_of_another_name")),
    # the recorder
    "no place of a built-in": (
        _note_without(recorder.BUILTINS[0]),
        "holder: a module: a function of torch replaced",
    ),
    "no lookups": (instead(Caller, "lookup", _looked_up), "holder: a property replaced"),
    "no class dicts": (nothing(Caller, "class_dict"), "holder: the dict of a class"),
    "touch": (nothing(Caller, "touch"), "value: a loop over a list"),
    "deep": (nothing(Caller, "deep"), "reader: json"),
    "fix": (nothing(Caller, "fix", False), fixed("number_in_the_dict_of_a_class")),
    "cells": (nothing(Caller, "cells_of"), "value: a function made"),
    "pin": (nothing(Caller, "pin"), fixed("key_that_is_replaced")),
    "keys in tuples": (nothing(Caller, "_pin_key"), fixed("part_of_a_key_that_is_replaced")),
    "members": (nothing(Caller, "_member"), fixed("set_of_objects")),
    "distinguish": (nothing(Caller, "distinguish"), "reader: an alias; change: joined, asked"),
    "length": (nothing(Caller, "length"), "value: the truth of a list; change: inside"),
    "state": (nothing(Caller, "state_at"), "holder: torch:"),
    "write": (nothing(Caller, "write"), "change: counted by the region"),
    "grow": (nothing(Caller, "grow"), fixed("losses_append")),
    "substitutes": (nothing(Caller, "_substitute"), fixed("numbers_reversed")),
    "undo": (nothing(Caller, "undo"), "change: counted by the region"),
    "names of objects": (nothing(Caller, "namespace"), "reader: vars"),
    "items as they stand": (
        instead(Caller, "given_item", lambda s, t, k, v: v),
        fixed("numbers_iterated"),
    ),
    "handed as it is": (
        instead(Caller, "mapped", lambda s, v: v),
        fixed("numbers_handed_to_torch"),
    ),
    "attributes of a stand-in": (
        nothing(run._Run, "prepare"),
        "holder: an attribute of a parameter",
    ),
    "context variables": (nothing(run._Run, "check_variables"), fixed("context_var_set")),
    "places of the forward": (
        instead(run.BackwardState, "_met_at", StateRecorder._met_at),
        "backward: which object",
    ),
    # attributes
    "threads": (
        instead(attributes, "_of_thread", lambda rec, o, name: getattr(o, name)),
        "holder: an attribute of this thread",
    ),
    "properties": (
        instead(attributes, "_of_property", lambda rec, m, o, cls: m.__get__(o, cls)),
        "holder: a property",
    ),
    "modules' children": (
        instead(
            attributes,
            "child_of_module",
            lambda rec, o, n: torch.nn.Module.__getattr__(o, n),
        ),
        "holder: a module: a child replaced",
    ),
    "tensors": (
        instead(attributes, "_of_tensor", lambda rec, o, n: getattr(rec.give(o), n)),
        "holder: an attribute of a tensor",
    ),
    "super": (
        instead(attributes, "after", lambda rec, cls, o, n: getattr(super(cls, o), n)),
        fixed("super_call"),
    ),
    "Python modules": (
        instead(attributes, "_of_python_module", lambda rec, o, n: getattr(o, n)),
        "holder: an attribute of a module",
    ),
    "classes": (
        instead(attributes, "_of_class", lambda rec, o, meta, n: getattr(o, n)),
        "holder: an attribute of a class",
    ),
    "class methods": (
        instead(
            attributes,
            "_from_class",
            lambda rec, value, o: value.__get__(None, o) if hasattr(value, "__get__") else value,
        ),
        fixed("default_of_a_static_method"),
    ),
    "notes of writes": (nothing(attributes, "_note"), "change: counted by the region"),
    "notes of writes to classes": (nothing(attributes, "_note_class"), fixed("counter_class")),
    # calls
    "defaults": (
        instead(Caller, "_with_defaults", lambda self, f, a, k: (a, k)),
        "holder: a default,",
    ),
    "answers": (nothing(calls, "_note_answer"), "holder: torch:"),
    "facts of tensors": (nothing(calls, "_note_fact"), "backward: a tensor's answer"),
    "arguments of torch": (nothing(calls, "read_argument", False), "place: a hook of a tensor"),
    "code of branches": (nothing(branches._Branch, "_read_class"), "branch: what a method names"),
    "code named by branches": (
        nothing(branches._Branch, "_read_space"),
        "branch: what a method names",
    ),
    "flags": (nothing(torch_flags, "note"), "holder: torch:"),
    "views": (
        instead(iteration, "_given", lambda rec, o: o),
        fixed("numbers_iterated"),
    ),
    # functions of C
    "caches": (entry(calls.BY_TYPE, c_callables.LruCache, as_it_is), "holder: a cache,"),
    "weak references": (
        entry(calls.BY_TYPE, c_callables.weakref.ref, as_it_is),
        "holder: a weak reference's object",
    ),
    "context variables read": (
        instead(c_methods, "context_variable", as_it_is),
        "holder: a context variable",
    ),
    "partials": (entry(calls.BY_TYPE, c_callables.Partial, as_it_is), "value: a partial"),
    "contexts of decimals": (
        entry(calls.C_TABLE, c_callables.decimal.getcontext, as_it_is),
        "holder: torch: the precision of decimals",
    ),
    "dir": (entry(calls.C_TABLE, dir, as_it_is), fixed("names_of_an_object_counted")),
    "isinstance": (entry(calls.C_TABLE, isinstance, as_it_is), fixed("instance_by_a_metaclass")),
    # pins
    **{f"pins: {name}": (blind(name), text) for name, text in BATCHES.items()},
    "pins: bases of classes": (
        both(blind("mros"), instead(words, "class_version", lambda cls: None)),
        "holder: a base replaced",
    ),
    "pins: words": (blind("words"), "holder: a global"),
    "pins: classes": (nothing(pins.Pins, "_class", []), "holder: a class attribute"),
    "pins: facts": (nothing(pins.Pins, "hold", True), "value: a numpy array; change: inside"),
    "pins: rows": (
        instead(pins.Pins, "_repin_some", _repinned_unseen),
        "holder: a global; value: a float",
    ),
    "pins: below": (
        instead(pins.Pins, "_move", _without_below),
        "holder: a cell; value: an object",
    ),
    "pins: moved": (
        nothing(pins.Pins, "_is_moved", False),
        "place: with a backward; change: by the region inside",
    ),
    "pins: about": (
        instead(pins.Pins, "_differing_in", lambda self, unit: ()),
        "holder: a dict",
    ),
}


@functools.cache
def _programs() -> list[Program]:
    return [*map(program, SEEDS)]


def _fitting(text: str) -> list[Program]:
    """Some programs that have these parts."""
    texts = text.split("; ")
    return [p for p in _programs() if all(part in f"{p}," for part in texts)][:MOST]


def _is_caught(mutate: Mutant, text: str, patch: Patch) -> bool:
    kind, _, name = text.partition(": ")
    if kind in FIXED:
        torch._dynamo.reset()
        patch.setattr(branches, "_branches", set())  # that program may have been traced before
        mutate(patch)
        try:
            FIXED[kind](name)
        except AssertionError:
            return True
        return False
    for p in _fitting(text):
        if judging.judge(p).word == "right":
            with patch.context() as inner:
                mutate(inner)
                if judging.judge(p).word in judging.FAULTS:
                    return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is judged faulty."""
    mutate, text = MUTANTS[name]
    assert _is_caught(mutate, text, monkeypatch), f"no program of {text!r} catches it"
