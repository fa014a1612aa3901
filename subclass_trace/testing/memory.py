"""Judges who shares memory with whom after a call, and what a write is."""

from __future__ import annotations

from typing import Any

import torch

from . import probes
from .calls import section
from .evidence import Call, Evidence, Ran, flat, item

EITHER, LAID_OUT, STRIDED = map(section, ("either", "laid_out", "strided"))
#: rules about calls whose result is a value in memory of its own
OWNS = frozenset({"ST502", "ST506", "ST507", "ST515"})
WRITTEN = "the result is the tensor that was written"
INSIDE = "a write goes into the inner tensors"
VIEWS = "a view looks at the memory of its base"
EACH = "it looks at the memory of each inner tensor"
APART = "a write to the result does not reach the operands"
POINTERS = "[v.data_ptr() for v in leaves({})]"


class Memory(Evidence):
    """The part of `judging.Judge` that looks at storages."""

    def writes(self: Any, call: Call, ran: Ran, dense: Ran, lies: dict[str, list[int]]) -> None:
        """A write gives its first argument, goes into the inner tensors, and is counted."""
        used = self.wrapped(call)
        for n in used:
            x, dense_x = ran.after[n], dense.after[n]
            if not dense_x._version:
                continue
            apart = any(part in call.text for part in (".data", "detach"))
            same = dense.out is not dense_x or ran.out is x
            place, context = POINTERS.format(n), f"{n}.__tensor_flatten__()[1]"
            kept = len(used) > 1 or self._same_context(call, x)
            equal = f"same_metadata({context}, before, type({n}))"
            for rule, what, holds, before, look in (
                ("ST323", WRITTEN, same, "", f"got is {n}"),
                ("ST324", INSIDE, pointers(x) == lies[n], place, f"{place} == before"),
                ("ST327", "a write is counted", x._version or apart, "", f"{n}._version > 0"),
                ("ST113", "a write leaves the context alone", kept, f"copied({context})", equal),
            ):
                if not holds:
                    steps = [*[f"before = {before}"] * (before != ""), *self.body(call, "got")]
                    raise self.found(call, rule, what, (False, True), steps, (look, "True"))

    def aliases(self: Any, call: Call, ran: Ran, dense: Ran) -> None:
        """Results share memory with the operands that they share it with on dense tensors."""
        outs, dense_outs = ([t for t in flat(r.out) if torch.is_tensor(t)] for r in (ran, dense))
        free = any(n in call.text for n in EITHER)
        if call.text in STRIDED:
            self._strides(call, outs, dense_outs)
        for n in self.wrapped(call):
            x, dense_x = ran.after[n], dense.after[n]
            for k, (got, expected) in enumerate(zip(outs, dense_outs, strict=False)):
                if expected.numel() and probes.leaves(x):
                    pair = (x, got), (dense_x, expected)
                    self._alias(call, n, item("got", ran.out, k), k, pair, free)
        if call.text in LAID_OUT:  # of what shares no memory
            self._strides(call, outs, dense_outs)

    def _alias(
        self: Any, call: Call, n: str, one: str, k: int, pair: tuple[Any, Any], free: bool
    ) -> None:
        """One operand and one result."""
        (x, got), (dense_x, expected) = pair
        shared, view = (probes.shares_memory(*sides) for sides in pair)
        own, detached = isinstance(got, self.subject.cls), call.rule == "ST501"
        copied = call.rule in OWNS or "copy=True" in call.text
        alone = detached and own and len(self.wrapped(call)) == 1
        apart = "detach" in call.text or ".data" in call.text
        seen = own and view and shared and expected is not dense_x
        outer, shares = probes.outer_storage, f"shares_memory({n}, {one})"
        known = not expected._is_view() or got._is_view() or apart
        one_storage = f"outer_storage({one}) == outer_storage({n})"
        for rule, what, wrong, look in (
            ("ST501" if detached else "ST321", VIEWS, view and not shared and not free, shares),
            ("ST501", EACH, alone and pointers(got) != pointers(x),
             f"{POINTERS.format(one)} == {POINTERS.format(n)}"),
            (call.rule, "it shares no memory", copied and shared, f"not {shares}"),
            ("ST327", "torch knows that it is a view", seen and not known, f"{one}._is_view()"),
            ("ST322", "base and view have one storage",
             seen and outer(got) != outer(self.operands.shared[n]), one_storage),
        ):  # fmt: skip
            if wrong:
                steps = self.body(call, "got")
                raise self.found(call, rule, what, (False, True), steps, (look, "True"))
        if shared and not view and not free and self._reached(call, n, k):
            before = f"before = [v.clone() for v in leaves({n})]"
            steps = [before, *self.body(call, "got"), f"{one}.zero_()"]
            sides, looks = ("they are written", "they are as before"), (f"leaves({n})", "before")
            raise self.found(call, "ST331", APART, sides, steps, looks)

    def apart(self: Any, call: Call, first: Any, second: Any) -> None:
        """What two calls give shares no memory, unless it is that of the operands."""
        given = set[int]().union(*(storages(self.operands.shared[n]) for n in self.used(call)))
        for k, (a, b) in enumerate(zip(flat(first), flat(second), strict=False)):
            if storages(a) & storages(b) <= given:
                continue
            t, kept = self.script(call), item("first", first, k)
            steps = [*self.body(call, "first"), f"before = [v.clone() for v in leaves({kept})]"]
            steps += [*self.body(call, "second"), f"{item('second', second, k)}.zero_()"]
            try:
                with torch.no_grad():
                    t.do(*steps)
                same = t.value(f"same(leaves({kept}), before)")
            except Exception:  # it cannot be written
                continue
            if not same:
                what, sides = "a result is not written by the next call", ("written", "as it was")
                raise self.of_lines(
                    call, "ST331", what, sides, t.lines, (f"leaves({kept})", "before")
                )

    def _reached(self: Any, call: Call, name: str, k: int) -> bool:
        """Does a write to a result change an operand? Tried on new operands."""
        try:
            with torch.no_grad():
                given = self.given(call, True)
                before = [v.clone() for v in probes.leaves(given[name])]
                out = [t for t in flat(self.run(call, given).out) if torch.is_tensor(t)][k]
                try:
                    out.zero_()
                except Exception:  # perhaps it can be copied into
                    out.copy_(self.operands.shared["y"])
        except Exception:  # it cannot be written
            return False
        return not all(map(probes.near, probes.leaves(given[name]), before))

    def _strides(self, call: Call, outs: list[Any], dense_outs: list[Any]) -> None:
        x, dense_x = self.operands.shared["x"], self.operands.dense["x"]
        if x.layout != dense_x.layout or x.stride() != dense_x.stride():
            return
        for got, expected in zip(outs, dense_outs, strict=False):
            sides: Any = [  # a step along one element says nothing
                [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]
                for t in (got, expected)
            ]
            if isinstance(got, self.subject.cls) and sides[0] != sides[1]:
                look = "got.stride()", "expected.stride()"
                steps = self.against_dense(call, "got")
                raise self.found(call, "ST613", "strides as of a dense tensor", sides, steps, look)


def storages(x: Any) -> set[int]:
    """The memory of a tensor."""
    return {v.untyped_storage().data_ptr() for v in probes.leaves(x) if v.numel()}


def pointers(x: Any) -> list[int]:
    """Where the numbers of a tensor lie."""
    return [v.data_ptr() for v in probes.leaves(x)]
