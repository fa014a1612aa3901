"""Version counters of what a region makes: how often eager would have written it when it hands it out."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch
import torch.fx as fx

from .. import _torch
from ..plan import Detached, MutationPlan, OutputPlan, ValueAlias, ValueOutput, ViewOutput
from ..plan.outputs import ViewStep, ViewSteps
from ..subclass.flatten import tensors_inside
from ..subclass.protocol import is_traceable
from ..subclass.spec import Spec, WrapperSpec
from .counters import share_counter
from .recorder import Recorder
from .sharing import Sharing

Tensor = torch.Tensor
#: factories whose operations count how they fill their result
_FILLED = tuple(getattr(torch.ops.aten, name) for name in ("arange", "randint", "randperm", "range", "normal"))
#: those that are handed a generator
_FILLED_BY = (torch.ops.aten.rand.generator, torch.ops.aten.randn.generator)


def counted_once(
    outputs: Sequence[OutputPlan], values: Sequence[Tensor], mutations: Sequence[MutationPlan]
) -> list[OutputPlan]:
    """The outputs, of which no two move a counter for one call in place: several views may have been made through it."""
    left: dict[tuple[bool, int], int] = {(True, m.input): m.version_bumps for m in mutations}
    left |= {(False, k): t._version for k, t in enumerate(values) if not t.is_inference()}
    found: list[OutputPlan] = []
    seen: dict[tuple[bool, int], set[ViewStep]] = collections.defaultdict(set)
    for o in outputs:
        if isinstance(o, ViewOutput) and isinstance(o.replay, ViewSteps) and (o.of_input, o.base) in left:
            base, bumps = (o.of_input, o.base), o.replay.version_bumps
            steps = {step for step in o.replay.steps if step.in_place}
            new = len(steps - seen[base])
            o = replace(o, counted=bumps - new if new <= left[base] else bumps)
            left[base] -= o.version_bumps
            seen[base] |= steps
        found.append(o)
    return found


def versions_of(
    values: Sequence[Tensor],
    outputs: Sequence[OutputPlan],
    detached: Sequence[Detached],
    aliases: Sequence[ValueAlias],
    sharing: Sharing,
    recorder: Recorder,
) -> tuple[list[ValueAlias], list[tuple[int, int]]]:
    """(value, version) for results, and bases of results, that the region made and then wrote to in place.

    What replaying views will count is left to that; of ``aliases`` as well, which have versions of their own.
    """
    replayed: collections.Counter[int] = collections.Counter()
    for o in outputs:
        if isinstance(o, ViewOutput) and not o.of_input:
            replayed[o.base] += o.version_bumps
    theirs = {row.value for row in aliases}
    replayed.update({row.base: 0 for row in detached if not row.of_input})
    results = {o.value for o in outputs if isinstance(o, ValueOutput)}
    numbers = sorted(k for k in (results | replayed.keys()) - theirs if k < len(values))
    rows = [(k, values[k]) for k in numbers if not values[k].is_inference()]
    # A wrapper counts for itself, whoever else has its inner tensors.
    found = [(k, t._version - replayed[k]) for k, t in rows if is_traceable(t) or not sharing.touches_input(t)]
    rest = [replace(row, version=row.version - replayed[row.value]) for row in aliases]
    return rest, [(k, version) for k, version in found if version or _is_filled(values[k], recorder)]


def leaf_versions_of(
    flat: Sequence[tuple[list[Tensor], Spec]],
    aliases: Sequence[ValueAlias],
    skip: Collection[int],
    sharing: Sharing,
    recorder: Recorder,
) -> Iterator[tuple[int, int]]:
    """(place among the forward outputs, version) of leaves of wrappers that were written by themselves.

    Args:
        flat: leaves and spec of each value.
        skip: values that are new contents of inputs, and no results.
    """
    shared = {(row.value, k) for row in aliases for k, a in enumerate(row.leaves) if a is not None}
    place = 0
    for number, (leaves, spec) in enumerate(flat):
        for k, t in enumerate(leaves):
            own = isinstance(spec, WrapperSpec) and number not in skip and (number, k) not in shared
            if (
                own
                and not t.is_inference()
                and (t._version or _is_filled(t, recorder))
                and not sharing.touches_input(t)
            ):
                yield place, t._version
            place += 1


def inner_versions(view: Tensor, base: Tensor) -> tuple[tuple[str, int], ...]:
    """(attribute names with dots, version) of tensors inside of a view that were written by themselves.

    Operators run below autograd, so that what they make of the inner tensors of ``base`` counts for itself.
    """
    if not is_traceable(view):
        return ()
    theirs = [t for _, t in tensors_inside(base)]
    written = [(names, t) for names, t in tensors_inside(view) if not t.is_inference() and t._version]
    return tuple(
        (".".join(n), t._version) for n, t in written if not any(t is o or share_counter(t, o) for o in theirs)
    )


def _is_filled(t: Tensor, recorder: Recorder) -> bool:
    """Does a factory make it that fills it in place, which torch's Python function hides and its operation counts?"""
    node = recorder.node_of(t) if _torch.is_fake(t) else None
    if not isinstance(node, fx.Node):
        return False
    return node.target in _FILLED_BY or getattr(node.target, "overloadpacket", None) in _FILLED
