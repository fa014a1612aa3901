"""Dynamo runs optimizers as if ``capturable`` were set, also where that divides by zero."""

from __future__ import annotations

import functools
from typing import Any

import torch

Group = dict[str, Any]


def keep_capturable(backend: str) -> None:
    """With this back end, Dynamo runs Adam, one tensor at a time, as it was made.

    Its ``capturable`` form divides by the learning rate: where that is 0, and a moment as well (a
    row of an embedding that was not used yet), weights become NaN. The form for lists does not, and
    can be traced in no other way.
    """
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables import optimizer
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.lazy import LazyVariableTracker

    variable: Any = optimizer.OptimizerVariable
    set_all = variable._set_capturable
    if hasattr(set_all, "__wrapped__"):
        return

    @functools.wraps(set_all)
    def set_some(self: Any, tx: Any) -> None:
        groups: list[Group] = self.value.param_groups
        before = [group.get("capturable") for group in groups]
        set_all(self, tx)
        if getattr(tx.output.compiler_fn, "compiler_name", None) != backend:
            return
        source = self.source and AttrSource(self.source, "param_groups")
        traced = LazyVariableTracker.realize_all(VariableTracker.build(tx, groups, source))
        for group, was, known in zip(groups, before, traced.items, strict=True):
            if was is not None and _divides_by_rate(self.value, group):
                group["capturable"] = was
                (key,) = (k for k in known.items if k.vt.as_python_constant() == "capturable")
                known.items[key] = ConstantVariable.create(was)

    variable._set_capturable = set_some


def _divides_by_rate(owner: torch.optim.Optimizer, group: Group) -> bool:
    if not isinstance(owner, (torch.optim.Adam, torch.optim.AdamW)) or group.get("fused"):
        return False
    lists = group.get("foreach")
    return not (all(p.is_cuda or p.is_xpu for p in group["params"]) if lists is None else lists)
