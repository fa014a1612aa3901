"""For tests of one's own: a function gives the same on every stack, and round trips give back what
went in.

>>> from subclass_trace.testing import assert_equivalent, round_trips
>>> from subclass_trace.zoo import TwoTensor
>>> x = TwoTensor(torch.ones(2), torch.zeros(2))
>>> assert_equivalent(lambda x: x * 2 + 1, [x])
>>> round_trips["flatten"](x)
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import OptionError, SubclassTraceError
from ..frontends.compile import compile as region
from . import probes


def _dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, backend="aot_eager")
    return compiled


#: the ways to run a function, by name; eager mode is what the others are compared with
STACKS: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "region": lambda function: region(function, backend="eager"),
    "dynamo": _dynamo,
}


class EquivalenceError(SubclassTraceError, AssertionError):
    """A stack gives something else than eager mode."""


def assert_equivalent(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    stacks: Sequence[str] = tuple(STACKS),
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """A function gives the same results, gradients and writes on each stack as in eager mode.

    Args:
        inputs: its arguments; each run has copies of them (`copy.deepcopy`).
        stacks: names of `STACKS`.

    Raises:
        EquivalenceError: it does not; the message names the stack and both sides.
        OptionError: there is no such stack.
    """
    unknown = [name for name in stacks if name not in STACKS]
    if unknown:
        raise OptionError(f"no stack is called {unknown[0]!r}", expected=", ".join(STACKS))
    expected = _run(function, inputs)
    for name in stacks:
        torch.compiler.reset()
        got = _run(STACKS[name](function), inputs)
        for part, a, b in zip(
            ("result", "gradients", "inputs afterwards"), got, expected, strict=True
        ):
            if not probes.same(a, b, rtol, atol):
                what = f"{name} gives another {part} than eager mode"
                raise EquivalenceError(what, path=name, expected=repr(b)[:300], got=repr(a)[:300])


def _run(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Results, gradients of the inputs that require grad, and the inputs afterwards."""
    given = copy.deepcopy(list(inputs))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = function(*given)
    outs = [t for t in (out if isinstance(out, (list, tuple)) else [out]) if torch.is_tensor(t)]
    ends = [t for t in given if torch.is_tensor(t) and t.requires_grad and t.is_leaf]
    starts = [t for t in outs if t.requires_grad]
    tangents = [t.detach() for t in starts]
    grads = (
        torch.autograd.grad(starts, ends, tangents, allow_unused=True) if starts and ends else ()
    )
    return out, list(grads), given


# ---- round trips
def _same(x: Any, y: Any, way: str) -> None:
    whole = {} if way.startswith("flatten") else {"storage_offset": 0}  # a copy of a part is whole
    looks: list[Any] = [{**probes.meta(t), **whole} for t in (x, y)]
    alike = looks[0] == looks[1]
    if alike:
        looks = [x, y]
        first, second = (t.__tensor_flatten__()[1] for t in looks)
        alike = probes.same(x, y) and probes.same_metadata(first, second, type(x))
    if not alike:
        expected, got = (str(look)[:300] for look in looks)
        raise EquivalenceError(f"{way} gives back something else", expected=expected, got=got)


def _flatten(x: Any) -> None:
    _same(x, probes.rebuild(x), "flatten and unflatten")


def _copy(x: Any) -> None:
    _same(x, copy.deepcopy(x), "deepcopy")
    _same(x.detach(), x.detach().clone(), "clone")


def _pickle(x: Any) -> None:
    _same(x, pickle.loads(pickle.dumps(x)), "pickle")


def _save(x: Any) -> None:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    _same(x, torch.load(file, weights_only=False), "torch.save and torch.load")


def _state_dict(x: Any) -> None:
    module, other = torch.nn.Module(), torch.nn.Module()
    for owner, value in ((module, x), (other, x.detach().clone())):
        owner.register_buffer("w", value.detach())
    other.load_state_dict(module.state_dict(), assign=True)
    _same(x.detach(), other.w, "a state dict")


#: properties of an instance, by name: each raises `EquivalenceError` where it does not hold
round_trips: Mapping[str, Callable[[Any], None]] = {
    "flatten": _flatten,
    "copy": _copy,
    "pickle": _pickle,
    "save": _save,
    "state_dict": _state_dict,
}
