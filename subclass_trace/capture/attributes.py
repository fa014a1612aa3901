"""Tensors that the region leaves as attributes of tensors: of results that it made, inner ones that require grad, ``.grad``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import UnsupportedError
from ..plan import AttributePlan
from ..subclass.arguments import attributes_of_wrapper
from ..subclass.flatten import flatten, leaves_of
from ..subclass.paths import Path, owner_of
from ..subclass.protocol import Kind, is_traceable, kind_of
from ..subclass.spec import Spec, WrapperSpec, is_ragged
from ..subclass.visit import inner_values, rebuild
from .inner_backward import InnerBackward
from .inputs import Inputs
from .recorder import Recorder
from .views import lost_history

Tensor = torch.Tensor


def attributes_set(
    results: Sequence[Any], inputs: Inputs, gradients: InnerBackward, recorder: Recorder
) -> tuple[list[Any], list[AttributePlan]]:
    """The flat outputs, with those that are attributes alone behind them; and of which tensor they are attributes."""
    outputs, plans = list(results), list[AttributePlan]()

    def add(owner: int, of_input: bool, name: str, value: Any) -> None:
        plans.append(AttributePlan(owner, of_input, name, len(outputs)))
        outputs.append(value)

    for number, row in enumerate(inputs.inputs):
        for name, value in _kept_inside(row.traced, row.path, recorder):
            add(number, True, name, value)
    seen = {id(row.traced) for row in inputs.inputs}
    for number, result in enumerate(results):
        if id(result) in seen:
            continue
        seen.add(id(result))
        path = Path("result").item(number)
        for name, value in (
            *_set_on(result, recorder),
            *_gradient_of(result),
            *_kept_inside(result, path, recorder),
        ):
            add(number, False, name, value)
    for number, gradient in gradients.changed():
        add(number, True, "grad", gradient)
    return outputs, plans


def _set_on(result: Any, recorder: Recorder) -> Iterator[tuple[str, Any]]:
    """The tensors and sizes that somebody has set on a result that the region made: a fresh one has none there."""
    if not isinstance(result, Tensor) or not (is_traceable(result) or kind_of(type(result)) is Kind.LEAF):
        return
    leaves = leaves_of(result)
    if result.is_nested or not any(map(torch_api.is_fake, leaves)):
        return
    spec = flatten(result)[1]
    held = _tensors_and_sizes(result, spec)
    if not held:
        return
    with torch_api.without_tracing(), torch.no_grad():
        fresh = rebuild(spec, iter(leaves)) if isinstance(spec, WrapperSpec) else recorder.bare(result)
    known = attributes_of_wrapper(fresh, spec)
    for name, value in held.items():
        if (isinstance(value, Tensor) and not isinstance(known.get(name), Tensor)) or name not in known:
            yield name, value


def _gradient_of(result: Any) -> Iterator[tuple[str, Tensor]]:
    """The ``.grad`` of a result that the region made an autograd leaf.

    Raises:
        UnsupportedError: it is a view that autograd cannot make the history of anew, on a base that has another shape now.
    """
    if not isinstance(result, Tensor):
        return
    try:
        is_leaf = result.is_leaf
    except RuntimeError as error:
        if "multiple views" in str(error):  # of a member of a split whose base was written; so does eager
            raise
        raise lost_history(result, None) from error
    if is_leaf and result.requires_grad and result.grad is not None:
        yield "grad", result.grad


def _kept_inside(result: Any, path: Path, recorder: Recorder) -> Iterator[tuple[str, Tensor]]:
    """The inner tensors of a value that require grad, by dotted names: its constructor did not detach them.

    The wrapper of a call is built of tensors without a history, and gets these, which are results of their own, afterwards.

    Raises:
        UnsupportedError: the class does not take them.
    """
    if not isinstance(result, Tensor) or not is_traceable(result) or result.is_nested:
        return
    found = list(_differentiable_inside(result, ""))
    if not found:
        return
    leaves, spec = flatten(result)
    with torch_api.without_tracing(), torch.no_grad():
        fresh = rebuild(spec, iter(map(recorder.bare, leaves))) if all(map(torch_api.is_fake, leaves)) else None
        for name, value in found:
            if fresh is None or not _takes(fresh, name):
                raise UnsupportedError(
                    f"the region makes a {type(result).__qualname__} that keeps a tensor which requires grad inside",
                    path=str(path.attr(name)),
                    expected="a constructor that detaches what it gets, or an attribute that can be set",
                    got=f"a tensor of shape {tuple(value.shape)} that requires grad",
                    fix="detach it in the constructor, make the constructor an autograd.Function, or return the inner "
                    "tensors and build the wrapper outside of the region",
                )
    yield from found


def _differentiable_inside(wrapper: Tensor, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in zip(*inner_values(wrapper)[:2], strict=True):
        if isinstance(value, Tensor) and value.requires_grad:
            yield prefix + name, value
        elif isinstance(value, Tensor) and is_traceable(value):
            yield from _differentiable_inside(value, f"{prefix}{name}.")


def _takes(wrapper: Tensor, name: str) -> bool:
    """Can the inner tensor with this dotted name be set?"""
    owner, last = owner_of(wrapper, name)
    other = getattr(owner, last).detach()
    try:
        setattr(owner, last, other)
    except Exception:  # whatever a class does to say so
        return False
    names, inners, _ = inner_values(owner)
    return last in names and inners[names.index(last)] is other


def _tensors_and_sizes(t: Tensor, spec: Spec) -> dict[str, Any]:
    """The attributes of a value that hold tensors or sizes."""
    rows = attributes_of_wrapper(t, spec).items()
    return {k: v for k, v in rows if isinstance(v, (Tensor, *torch_api.SYM_TYPES)) and not is_ragged(v)}
