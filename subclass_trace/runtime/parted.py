"""Autograd nodes of a region whose results do not all depend on the same inputs.

Note [Nodes of a region]
~~~~~~~~~~~~~~~~~~~~~~~~
The engine runs every node that a result leads to, with undefined gradients where nothing arrives: hooks are called with
None, a custom Function gets zeros, the freed graph of the last step is met again. Mostly one node stands for a region, and
leads from each result to each input. In eager mode a result leads to those inputs alone that it was computed from. Where
that makes a difference, the node stands aside, and others are put between the results and the inputs:

    results that depend on the same inputs -> `Results` -> `Inputs`, one for each set of results that depend on them -> inputs

`Results` takes tangents down. The first `Inputs` that runs calls the backward of the region with all of them, once. None
of these runs before the last `Results`: whatever the region's results were used for has been made later, and the engine
runs what was made last first. (Where it has a queue for each of several devices it may not. Then the backward runs for the
tangents that are there, and again for the others: gradients are sums.)

That costs a node for each set, and is left out where nobody can tell: where the inputs in question are leaves without hooks
at the time of the call. (Hooks that come later, and those of a leaf's ``AccumulateGrad`` node, are not seen.) A backward that
is differentiated again is a region too, whose results are the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from .. import _torch
from .._torch.dynamo import never_compiled
from .._torch.tape import torch_captures_tapes
from ..plan import Reach

Tensor = torch.Tensor


def parted(
    reach: Reach, differentiable: Sequence[int], inputs: Sequence[Tensor], values: Sequence[Any]
) -> Sequence[Any]:
    """The values of one call, each with a history that leads to the inputs that it depends on.

    Args:
        reach: of ``differentiable`` values, by their numbers, to ``inputs``.
        values: what a Function has given, with a history that leads to all of these.
    """
    if all(map(_is_quiet, [inputs[k] for k in reach.partly_needed])):
        return values
    tracked = [values[k] for k in differentiable]
    device = tracked[0].device
    if any(t._is_view() or t.device != device for t in tracked):
        return values
    with _torch.without_dispatch():
        edge = torch.autograd.graph.get_gradient_edge(tracked[0])
    call = _Call(edge, len(values), reach.needed)
    tokens = []
    for numbers, members in reversed(reach.alike_inputs):  # the engine runs what was made last first
        tokens.append((numbers, _inputs(call, members, device, *[inputs[k] for k in members])))
    results = list(values)
    for numbers in reach.alike_results:
        own = [tracked[n] for n in numbers]
        versions = [t._version for t in own]
        with _torch.without_dispatch():
            for t in own:
                t.detach_()
        places = [differentiable[n] for n in numbers]
        below = [token for theirs, token in tokens if numbers[0] in theirs]
        if not below:  # made of a leaf that nobody else sees
            below = [torch.empty((), device=device, requires_grad=True)]
        made = _results(call, places, len(own), *own, *below)
        for place, t, version in zip(places, made, versions, strict=True):
            _torch.set_version(t, version)
            results[place] = t
    return results


def _is_quiet(t: Any) -> bool:
    """Does nobody see that no gradient arrives? So it is with a leaf without hooks."""
    return t.is_leaf and not t._backward_hooks and not t._post_accumulate_grad_hooks


class _Run:
    """What one run of the engine has brought to the results of a call, and not yet to its inputs."""

    def __init__(self) -> None:
        self.tangents: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}


class _Call:
    """One call of a region, and the backwards that run through it: a hook may start one in the midst of another."""

    def __init__(self, edge: Any, values: int, inputs: Sequence[int]) -> None:
        self.node, self.values, self.inputs = edge.node, values, inputs  # those that the node leads to
        self._edge = edge  # a node of a Function is what C++ owns, and no result does any more
        self.by_torch = False  # torch's compiled autograd has captured it, which runs nodes in an order of its own
        self._runs: dict[int, _Run] = {}

    def put(self, places: Sequence[int], tangents: Sequence[Tensor | None]) -> None:
        """Take down the tangents of values."""
        task = _torch.current_graph_task()
        run = self._runs.get(task)
        if run is None or (task < 0 and not run.tangents):
            run = self._runs[task] = _Run()
            _torch.at_the_end_of_the_backward(functools.partial(self._runs.pop, task, None))
        run.tangents |= {k: t for k, t in zip(places, tangents, strict=True) if t is not None}

    def take(self, members: Sequence[int]) -> list[Tensor | None]:
        """The gradients of inputs."""
        run = self._runs[_torch.current_graph_task()]
        if run.tangents:
            given = [run.tangents.pop(k, None) for k in range(self.values)]
            if self.by_torch:
                found = self.node._forward_cls.backward(_Lasting(self.node), *given)
            else:
                found = self.node.apply(*given)
                self.node.maybe_clear_saved_tensors()  # as the engine does after it has run a node
            del given
            for k, g in zip(self.inputs, found[len(found) - len(self.inputs) :], strict=True):
                if g is not None:
                    run.gradients[k] = run.gradients[k] + g if k in run.gradients else g
        return [run.gradients.pop(k, None) for k in members]


class _Lasting:
    """The context of a node for a backward that uses nothing up, since it may run again for other tangents."""

    def __init__(self, node: Any) -> None:
        self.__dict__.update(vars(node))
        self._node = node

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """Those of the node."""
        return self._node.saved_tensors  # type: ignore[no-any-return]

    def maybe_clear_saved_tensors(self) -> None:
        """They stay."""


class Inputs(torch.autograd.Function):
    """Leads to inputs that the same results depend on, from a token that stands for them."""

    @staticmethod
    def forward(ctx: Any, call: _Call, members: Sequence[int], device: torch.device, *inputs: Tensor) -> Tensor:
        """A token."""
        ctx.call, ctx.members = call, members
        ctx.set_materialize_grads(False)
        return torch.empty((), device=device)

    @staticmethod
    @never_compiled
    def backward(ctx: Any, grad: None) -> tuple[Any, ...]:
        """Their gradients."""
        return None, None, None, *ctx.call.take(ctx.members)


class Results(torch.autograd.Function):
    """Gives values a history that leads to tokens."""

    @staticmethod
    def forward(ctx: Any, call: _Call, places: Sequence[int], count: int, *args: Tensor) -> tuple[Tensor, ...]:
        """``args``: the values, which are the results themselves, and the tokens."""
        ctx.call, ctx.places, ctx.count = call, places, count
        ctx.tokens = [t.detach() for t in args[count:]]
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(*args[:count])
        return args[:count]

    @staticmethod
    @never_compiled
    def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Any, ...]:
        """Take the tangents down."""
        ctx.call.put(ctx.places, tangents)
        # Torch's compiled autograd adds up what arrives at a token, and cannot add None.
        return None, None, None, *[None] * ctx.count, *[torch.zeros_like(t) for t in ctx.tokens]


def _key(ctx: Any) -> tuple[int, ...]:
    """Asked by the engine when a tape is captured."""
    ctx.call.by_torch |= torch_captures_tapes()
    return (ctx._autograd_function_id,)


for _function in (Inputs, Results):
    _function._compiled_autograd_key = staticmethod(_key)  # type: ignore[method-assign]
_inputs, _results = _torch.base_apply(Inputs), _torch.base_apply(Results)
