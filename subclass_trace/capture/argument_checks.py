"""Checks of values in torch's own Python code: they are taken to be passed, and each call raises where one is not.

``torch.distributions`` looks at the values of parameters and samples, and raises ValueError for invalid ones; so does
``gaussian_nll_loss``. In a graph that is an operation without a result (`effects`), which raises the same error when it runs.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import _torch
from .recorder import Recorder

Tensor = torch.Tensor
aten = torch.ops.aten
_SEVERAL_ZEROS = (
    "(): Double backward is unsupported for {0} when >1 zeros in {0} are scattered to the same position in self"
)
#: name of an autograd node -> what its second backward raises
_NO_SECOND_BACKWARD = {
    "ScatterReduceBackward0": "scatter_reduce" + _SEVERAL_ZEROS.format("src"),
    "IndexReduceBackward0": "index_reduce" + _SEVERAL_ZEROS.format("source"),
}
_library: list[Any] = []  # what is registered lasts as long as this object


@functools.cache
def operation() -> Any:
    """``require(condition, value, text)``, registered on the first call."""
    library: Any = torch.library.Library("subclass_trace", "FRAGMENT")  # type: ignore[no-untyped-call]
    _library.append(library)
    library.define("require(Tensor condition, Tensor? value, str text) -> ()")
    library.impl("require", _require, "CompositeExplicitAutograd")
    torch.library.register_fake("subclass_trace::require", lambda condition, value, text: None, lib=library)
    return torch.ops.subclass_trace.require.default


def _require(condition: Tensor, value: Tensor | None, text: str) -> None:
    if not condition:
        raise ValueError(text if value is None else f"{text}:\n{value}")


def is_delayed_error(recorder: Recorder, condition: Tensor) -> bool:
    """Does torch's formula of a gradient ask whether it can be differentiated? (Products of several zeros cannot.)

    That is ``(zeros > 1).any()``, asked in C++ where a second backward may come. The graph that is made looks in each call,
    and raises in the first backward what eager mode raises in the second.
    """
    running = _torch.current_autograd_node()
    text = None if running is None else _NO_SECOND_BACKWARD.get(running.name())
    any_of = recorder.node_of(condition)
    if text is None or any_of.target is not aten.any.default or any_of.args[0].target is not aten.gt.Scalar:
        return False
    with recorder:
        _torch.assert_async(~condition, text)
    return True


def take(recorder: Recorder, branch: _torch.Branch, condition: Tensor) -> bool:
    """The side of a branch that the trace takes; the graph checks that it is the right one."""
    if branch.text is not None:
        known = _torch.is_fake(branch.value) and recorder.knows(branch.value)
        value = recorder.node_of(branch.value) if known else None
        with recorder:
            passed = condition if branch.taken else ~condition
        node = recorder.graph.call_function(operation(), (recorder.node_of(passed), value, branch.text))
        node.meta["val"] = None
        recorder.annotate(node)
    return branch.taken
