"""Judges who shares memory with whom after a call, and what a write is."""

from __future__ import annotations

from typing import Any

import torch

from . import probes
from .calls import EITHER, LAID_OUT, STRIDED
from .evidence import Call, Evidence, Found, Ran, flat, item, shown

#: rules about calls whose result is a value in memory of its own
OWNS = frozenset({"ST502", "ST506", "ST507", "ST515"})


class Memory(Evidence):
    """The part of `judging.Judge` that looks at storages."""

    def writes(self: Any, call: Call, ran: Ran, dense: Ran, lies: dict[str, list[int]]) -> None:
        """A write gives its first argument, goes into the inner tensors, and is counted."""
        for n in self.wrapped(call):
            x, dense_x = ran.after[n], dense.after[n]
            if not dense_x._version:
                continue
            apart = any(part in call.text for part in (".data", "detach"))
            version, place = f"{n}._version > 0", f"[v.data_ptr() for v in leaves({n})] == before"
            for rule, what, holds, look in (
                (
                    "ST323",
                    "the result is the tensor that was written",
                    dense.out is not dense_x or ran.out is x,
                    f"got is {n}",
                ),
                ("ST324", "a write goes into the inner tensors", pointers(x) == lies[n], place),
                ("ST327", "a write is counted", bool(x._version) or apart, version),
                (
                    "ST113",
                    "a write leaves the context alone",
                    len(self.wrapped(call)) > 1 or self._same_context(call, x),
                    f"same_metadata({n}.__tensor_flatten__()[1], before, type({n}))",
                ),
            ):
                if not holds:
                    before = f"before = [v.data_ptr() for v in leaves({n})]"
                    if rule == "ST113":
                        before = f"import copy; before = copy.deepcopy({n}.__tensor_flatten__()[1])"
                    lines = [
                        *self.setup(call),
                        *[before] * ("before" in look),
                        *self.body(call, "got"),
                    ]
                    raise Found(rule, what, False, True, [*lines, *shown(look, "True")])

    def aliases(self, call: Call, ran: Ran, dense: Ran) -> None:
        """Results share memory with the operands that they share it with on dense tensors."""
        outs, dense_outs = ([t for t in flat(r.out) if torch.is_tensor(t)] for r in (ran, dense))
        copied = call.rule in OWNS or "copy=True" in call.text
        free = any(n in call.text for n in EITHER)
        if call.text in STRIDED:
            self._strides(call, outs, dense_outs)
        for n in self.wrapped(call):
            x, dense_x = ran.after[n], dense.after[n]
            for k, (got, expected) in enumerate(zip(outs, dense_outs, strict=False)):
                if not expected.numel() or not probes.leaves(x):
                    continue
                shared, view = probes.shares_memory(x, got), probes.shares_memory(dense_x, expected)
                one = item("got", ran.out, k)
                if view and not shared and not free:
                    rule = call.rule if call.rule == "ST501" else "ST321"
                    self._memory(
                        call,
                        rule,
                        "a view looks at the memory of its base",
                        f"shares_memory({n}, {one})",
                    )
                if call.rule == "ST501" and isinstance(got, self.subject.cls):
                    look = (
                        f"[v.data_ptr() for v in leaves({one})] == [v.data_ptr() for v in "
                        f"leaves({n})]"
                    )
                    if len(self.wrapped(call)) == 1 and pointers(got) != pointers(x):
                        self._memory(
                            call, "ST501", "it looks at the memory of each inner tensor", look
                        )
                if copied and shared:
                    self._memory(
                        call, call.rule, "it shares no memory", f"not shares_memory({n}, {one})"
                    )
                if shared and not view and not free and self._reached(call, n, k):
                    steps = [
                        f"before = [v.clone() for v in leaves({n})]",
                        *self.body(call, "got"),
                        f"{one}.zero_()",
                    ]
                    what = "a write to the result does not reach the operands"
                    lines = [*self.setup(call), *steps, *shown(f"leaves({n})", "before")]
                    raise Found("ST331", what, "they are written", "they are as before", lines)
                if (
                    view
                    and shared
                    and expected is not dense_x
                    and isinstance(got, self.subject.cls)
                ):
                    self._view(call, n, got, expected, one)
        if call.text in LAID_OUT:  # of what shares no memory
            self._strides(call, outs, dense_outs)

    def _view(self, call: Call, n: str, got: Any, expected: torch.Tensor, one: str) -> None:
        """Torch knows that a view is one."""
        if (
            expected._is_view()
            and not got._is_view()
            and "detach" not in call.text
            and ".data" not in call.text
        ):
            self._memory(call, "ST327", "torch knows that it is a view", f"{one}._is_view()")
        outer = probes.outer_storage
        if outer(got) != outer(self.operands.shared[n]):
            self._memory(
                call,
                "ST322",
                "base and view have one storage",
                f"outer_storage({one}) == outer_storage({n})",
            )

    def _memory(self, call: Call, rule: str, what: str, look: str) -> None:
        lines = [*self.setup(call), *self.body(call, "got"), *shown(look, "True")]
        raise Found(rule, what, False, True, lines)

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
            kept: Any = got
            if isinstance(got, self.subject.cls) and kept.stride() != expected.stride():
                lines = [*self.setup(call), *self.against_dense(call, "got")]
                lines += shown("got.stride()", "expected.stride()")
                sides = kept.stride(), expected.stride()
                raise Found("ST613", "strides as of a dense tensor", *sides, lines)


def pointers(x: Any) -> list[int]:
    """Where the numbers of a tensor lie."""
    return [v.data_ptr() for v in probes.leaves(x)]
