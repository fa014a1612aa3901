"""Modules of TorchScript (``torch.jit.script``, ``torch.jit.trace``): their code reads tensors from C++ objects.

Private: ``_c`` of a scripted module, its methods and their graphs, the dicts over its members, the classes of functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import torch


def _twin(held: Any) -> Any:
    made = copy.copy(held)
    for name, inner in torch._C.ModuleDict(held).items():
        made.setattr(name, _twin(inner))
    return made


def _names(value: Any) -> tuple[str, ...]:
    node = value.node()
    return (*_names(node.inputsAt(0)), node.s("name")) if node.kind() == "prim::GetAttr" else ()


#: ``(run, name, args, kwargs) -> result`` of a scripted function; of a method of a scripted module, the name is None
Call: TypeAlias = Callable[[Callable[..., Any], "str | None", tuple[Any, ...], dict[str, Any]], Any]
