"""Modules of TorchScript (``torch.jit.script``, ``torch.jit.trace``): their code reads tensors from C++ objects.

Private: ``_c`` of a scripted module, its methods and their graphs, and the dicts over its members.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch


def is_scripted(module: torch.nn.Module) -> bool:
    """Is the code of this module TorchScript?"""
    return isinstance(module, torch.jit.ScriptModule)


def script_twin(module: Any) -> Any:
    """The C++ object of a scripted module again, with the same tensors in places of its own."""
    return _twin(module._c)


def _twin(held: Any) -> Any:
    made = copy.copy(held)
    for name, inner in torch._C.ModuleDict(held).items():
        made.setattr(name, _twin(inner))
    return made


def script_methods(module: Any) -> list[str]:
    """The names of the methods of a scripted module."""
    return list(module._c._method_names())


def script_method(twin: Any, name: str) -> Callable[..., Any]:
    """A method of a C++ object."""
    return twin._get_method(name)  # type: ignore[no-any-return]


def script_attributes(module: Any, written: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    """(names that lead to the inner module, attribute) of what methods read or write that is no tensor and no module."""
    for method in script_methods(module):
        graph = module._c._get_method(method).graph.copy()
        torch._C._jit_pass_inline(graph)
        for node in graph.findAllNodes("prim::SetAttr" if written else "prim::GetAttr"):
            value = node.inputsAt(1) if written else node.outputsAt(0)
            if value.type().kind() not in ("TensorType", "ClassType"):
                with contextlib.suppress(RuntimeError):  # an attribute of another object than a module
                    yield _names(node.inputsAt(0)), node.s("name")


def _names(value: Any) -> tuple[str, ...]:
    node = value.node()
    return (*_names(node.inputsAt(0)), node.s("name")) if node.kind() == "prim::GetAttr" else ()


def plain_scripts() -> Any:
    """Inside, TorchScript runs operation by operation: nothing is fused or differentiated ahead for the shapes of a trace."""
    return torch.jit.optimized_execution(False)  # type: ignore[attr-defined]
