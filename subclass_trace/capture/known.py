"""Values that a trace knows: small tensors that are computed from nothing but constants.

Composite operations of torch ask for such values (``cov`` looks whether its number of degrees of freedom is positive),
and so does user code (``torch.tensor(3).item()``). Nothing is computed unless it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..errors import DataDependentError
from ..subclass.protocol import is_traceable
from .graphs import is_random
from .user_code import quoted

Tensor = torch.Tensor
aten = torch.ops.aten
_MOST_NODES, _MOST_ELEMENTS = 100, 100_000


def known_value(recorder: Any, t: Tensor) -> Tensor | None:
    """The value of a traced tensor that depends on no input and on no random number; None if it does."""
    node = recorder.node_of(t)
    with torch_api.no_modes(), torch.no_grad():
        return _Evaluation(recorder).value(node) if isinstance(node, fx.Node) else None


def known_answer(recorder: Any, func: Any, args: Sequence[Any]) -> Any:
    """The result of an operation that tells a number, where it depends on constants alone; else None."""
    if not all(isinstance(a, Tensor) and recorder.knows(a) for a in args):
        return None
    values = [known_value(recorder, a) for a in args]
    if any(v is None for v in values):
        return None
    with torch_api.no_modes():
        return func(*values)


def number_inside(recorder: Any, t: Tensor, record: Callable[[Tensor], Any]) -> Any:
    """``t.item()``: a number that only the call knows, as a symbol of the graph, unless it follows from constants.

    ``record`` makes the symbol.

    Raises:
        DataDependentError: a number that has no symbol, or whose use is control flow.
    """
    known = known_answer(recorder, aten._local_scalar_dense.default, (t,))
    if known is not None:
        return known
    if t.dtype is torch.bool:
        if recorder.branch is not None and not _asked_by_class(sys._getframe(1)):
            return _take(recorder, recorder.branch, t)
        if not recorder.asks_for_numbers:  # control flow
            if _is_delayed_error(recorder, t):
                return False
            raise value_asked_for(t, recorder.asking_line())
        with recorder:
            t = t.to(torch.int64)
        return record(t) != 0
    try:
        return record(t)
    except torch_api.DATA_DEPENDENT_ERRORS as error:
        raise value_asked_for(t, recorder.asking_line()) from error


def _asked_by_class(frame: Any) -> bool:
    """Does the code of a wrapper class ask, for another operation than the reading of a number?"""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__torch_dispatch__" and is_traceable(frame.f_locals.get(code.co_varnames[0])):
            return frame.f_locals.get(code.co_varnames[1]) is not aten._local_scalar_dense.default
        frame = frame.f_back
    return False


def _is_delayed_error(recorder: Any, condition: Tensor) -> bool:
    """Does torch's formula of a gradient ask, in C++, whether it can be differentiated again? ((zeros > 1).any())

    The graph looks in each call, and raises in the first backward what eager mode raises in the second.
    """
    running, asked = torch_api.current_autograd_node(), recorder.node_of(condition)
    known = running is not None and running.name() in ("ScatterReduceBackward0", "IndexReduceBackward0")
    if not known or asked.target is not aten.any.default or asked.args[0].target is not aten.gt.Scalar:
        return False
    with recorder:
        torch_api.assert_async(
            ~condition, "(): Double backward is unsupported for several zeros at the same position in self"
        )
    return True


def _take(recorder: Any, branch: torch_api.Branch, condition: Tensor) -> bool:
    """The side of a branch of torch's own code that the trace takes; each call checks that it is the right one."""
    if branch.text is not None:
        with recorder:
            torch_api.assert_async(condition if branch.taken else ~condition, branch.text)
    return branch.taken


def value_asked_for(t: Tensor, line: str | None) -> DataDependentError:
    """The region, at ``line``, asks for the value of a traced tensor: what to say."""
    code = quoted(line)
    what = f"a tensor of dtype {t.dtype} and shape {tuple(t.shape)}{f', in {code}' if code else ''}"
    if t.dtype is torch.bool:
        return DataDependentError(
            "the region branches on the value inside a tensor (`if`, `while`, `and`, `assert` or bool() of a tensor)",
            path=line,
            expected="branches that follow from Python values and sizes: the graph is made once, for all values",
            got=what,
            fix="choose with torch.where(condition, a, b), branch with torch.cond, or compute the condition outside "
            "of the region and pass it as a Python bool, which is guarded",
        )
    return DataDependentError(
        "the region asks for the Python number inside a tensor (int(), float(), .item() of a kind that has no symbol)",
        path=line,
        expected="an operation whose result is a tensor, or .item(), which is a symbol of the graph",
        got=what,
        fix="keep it a tensor, use .item(), or compute the number outside of the region",
    )


class _Unknown(Exception):
    """The value depends on a call."""


class _Evaluation:
    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.values: dict[fx.Node, Any] = {}

    def value(self, node: fx.Node) -> Tensor | None:
        try:
            value = self._of(node)
        except _Unknown:
            return None
        return value if isinstance(value, Tensor) else None

    def _of(self, node: fx.Node) -> Any:
        if node not in self.values:
            self.values[node] = self._compute(node)
            if len(self.values) > _MOST_NODES:
                raise _Unknown
        return self.values[node]

    def _compute(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        tensors = [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, Tensor)]
        if any(self.recorder.was_written(v) or not _is_small(v) for v in tensors):
            raise _Unknown
        if node.op == "get_attr":
            held = getattr(self.recorder.root, str(node.target))
            if not isinstance(held, Tensor):
                raise _Unknown
            return held
        function = node.target
        if node.op != "call_function" or is_random(node):
            raise _Unknown
        if isinstance(function, torch_api.OpOverload) and function._schema.is_mutable:
            raise _Unknown
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._of)
        return function(*args, **kwargs)  # type: ignore[operator]


def _is_small(t: Tensor) -> bool:
    static = all(type(n) is int for n in t.shape)
    return static and t.layout is torch.strided and t.numel() <= _MOST_ELEMENTS and t.device.type != "meta"
