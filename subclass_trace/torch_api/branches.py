"""Branches on values inside tensors in torch's own Python code, of which a trace knows how to go on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

_ROOT = os.path.dirname(torch.__file__)
_DISTRIBUTIONS = os.path.join(_ROOT, "distributions") + os.sep
_TRANSFORMER = os.path.join(_ROOT, "nn", "modules", "transformer.py")
#: functions of torch.distributions with ``if not condition: raise ValueError(...)``
_CHECKS = {
    ("distribution.py", "__init__"),
    ("distribution.py", "_validate_sample"),
    ("continuous_bernoulli.py", "__init__"),
    ("geometric.py", "__init__"),
}


@dataclass(frozen=True)
class Branch:
    """A branch of which one side is taken.

    Attributes:
        taken: the condition.
        text: what the other side raises; None where both sides give the same result.
    """

    taken: bool
    text: str | None = None


def branch_of_torch(frame: Any) -> Branch | None:
    """The branch that asks for the truth of a tensor in ``frame``; None for all others."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if file == _TRANSFORMER and name == "_detect_is_causal_mask":
        return Branch(False)  # a hint: a mask that is not said to be causal is used as it is
    if not file.startswith(_DISTRIBUTIONS):
        return None
    # Constraints on matrices go on only if these are symmetric, and else return what was not true.
    while name == "check" and file == f"{_DISTRIBUTIONS}constraints.py" and frame.f_back is not None:
        frame = frame.f_back
        file, name = frame.f_code.co_filename, frame.f_code.co_name
    if (file.removeprefix(_DISTRIBUTIONS), name) not in _CHECKS:
        return None
    return Branch(True, _text(frame.f_locals))


def _text(names: dict[str, Any]) -> str:
    what = "value argument" if "support" in names else f"parameter {names.get('param', 'probs')}"
    rule = names.get("support", names.get("constraint"))
    constraint = "" if rule is None else f" to satisfy the constraint {type(rule).__name__.strip('_')}()"
    return f"Expected {what} of distribution {type(names['self']).__name__}{constraint}, but found invalid values"
