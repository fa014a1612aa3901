"""What is kept for the backward, by module and operation."""

from __future__ import annotations

import difflib
import fnmatch
import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx as fx
from torch.utils.checkpoint import CheckpointPolicy

from ..capture.graphs import LATE
from ..errors import OptionError, PassError
from ..torch_api.modes import no_modes
from ..torch_api.texts import text_of
from .graph import JointGraph, Pass

aten = torch.ops.aten
_POLICIES = {
    "save": CheckpointPolicy.MUST_SAVE,
    "prefer_save": CheckpointPolicy.PREFER_SAVE,
    "recompute": CheckpointPolicy.MUST_RECOMPUTE,
    "prefer_recompute": CheckpointPolicy.PREFER_RECOMPUTE,
}
_OFFLOAD = "offload"


def memory_policy(rules: Mapping[str, str]) -> Pass:
    """A pass that says what becomes of activations.

    Args:
        rules: "module" or "module::operation" (patterns; ``*::aten.mm.default``) -> "save",
            "recompute", "prefer_save", "prefer_recompute", or "offload" (to the memory of the CPU,
            until the backward). A later rule counts more. A module means what is computed in it, in
            the modules inside of it, too.

    Raises:
        OptionError: an unknown word. By the pass, `PassError`: a rule that matches nothing.

    >>> import torch, subclass_trace as st
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))
    >>> region = st.compile(model, passes=[st.passes.memory_policy({"1": "recompute"})])
    >>> _ = region(torch.ones(2, 2))
    >>> [row.short_operation for row in region.specializations[0].saved if row.operation != "input"]
    ['addmm']
    """
    if not isinstance(rules, Mapping) or not all(isinstance(rule, str) for rule in rules):
        raise OptionError(
            "a memory policy has no such rules",
            path="rules",
            expected='a dict, as {"layers.*::aten.mm.default": "save"}',
            got=text_of(rules),
        )
    for rule, policy in rules.items():
        if policy not in (*_POLICIES, _OFFLOAD):
            close = difflib.get_close_matches(str(policy), [*_POLICIES, _OFFLOAD], 1)
            raise OptionError(
                "a memory policy has no such word",
                path=f"rules[{rule!r}]",
                expected=f"one of {[*_POLICIES, _OFFLOAD]}",
                got=text_of(policy),
                fix=f"did you mean {close[0]!r}?" if close else None,
            )
    run = functools.partial(_run, dict(rules))
    run.__qualname__ = f"memory_policy({dict(rules)})"  # type: ignore[attr-defined]
    return run


def _run(rules: Mapping[str, str], graph: JointGraph) -> None:
    forward = [n for n in graph.find(phase="forward") if n.meta.get("partitioner_tag") not in LATE]
    offloaded: dict[fx.Node, None] = {}
    for rule, policy in rules.items():
        module, _, operation = rule.partition("::")
        found = [*_matches(graph, forward, module, operation or "*")]
        if not found:
            raise _matches_nothing(graph, rule, module, operation)
        for node in found:
            offloaded.pop(node, None)
            if policy == _OFFLOAD:
                offloaded[node] = None
            else:
                node.meta["recompute"] = _POLICIES[policy]
    for node in offloaded:
        _offload(graph, node)


def _matches(
    graph: JointGraph, forward: list[fx.Node], module: str, operation: str
) -> list[fx.Node]:
    own = set(forward)
    return [n for n in graph.find(module, operation, "forward") if n in own]


def _matches_nothing(graph: JointGraph, rule: str, module: str, operation: str) -> PassError:
    names = {module: graph.modules, operation: [*{str(n.target) for n in graph.find()}]}
    near = {
        text: difflib.get_close_matches(text, known, 3)
        for text, known in names.items()
        if text not in ("", "*") and not fnmatch.filter(known, text)
    }
    tips = [
        f"{text!r} is near {', '.join(map(repr, found))}" for text, found in near.items() if found
    ]
    return PassError(
        "a rule of the memory policy matches nothing",
        path=f"memory_policy: {rule}",
        expected=f"patterns of modules ({', '.join(graph.modules[:8])}, ...) and operations",
        got=rule,
        fix="; ".join(tips) or "print st.trace(...).forward, whose nodes have nn_module_stack",
    )


def _offload(graph: JointGraph, node: fx.Node) -> None:
    """What the backward reads of a value is a copy that was in the memory of the CPU meanwhile."""
    value: Any = node.meta.get("val")
    readers = [
        u
        for u in node.users
        if u.meta.get("phase") == "backward" or u.meta.get("partitioner_tag") in LATE
    ]
    if not readers or not isinstance(value, torch.Tensor):
        return
    away = graph.insert(node, aten._to_copy.default, node, device=torch.device("cpu"))
    away.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    # backwards that are traced later read the copy, too
    if (name := node.meta.get("trace_name")) is not None:
        away.meta["trace_name"] = f"{name} of the CPU"
        served = graph.module.meta["served"]
        graph.module.meta["served"] = [
            away.meta["trace_name"] if other == name else other for other in served
        ]
    first = next(n for n in graph.graph.nodes if n in readers)
    with graph.graph.inserting_before(first):
        back = graph.graph.call_function(aten._to_copy.default, (away,), {"device": value.device})
    back.meta = {
        k: v
        for k, v in first.meta.items()
        if k in ("partitioner_tag", "phase", "seq_nr", "stack_trace")
    }
    back.meta["partitioner_tag"] = (
        "must_be_in_backward" if first.meta.get("partitioner_tag") in LATE else "is_forward"
    )
    back.meta["phase"] = "backward"
    with no_modes(), away.meta["val"].fake_mode:
        back.meta["val"] = aten._to_copy.default(away.meta["val"], device=value.device)
    for user in readers:
        user.replace_input_with(node, back)
