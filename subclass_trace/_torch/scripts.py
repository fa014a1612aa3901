"""Modules of TorchScript (``torch.jit.script``, ``torch.jit.trace``): their code reads tensors from C++ objects.

Private: ``_c`` of a scripted module, its methods and their graphs, the dicts over its members, the classes of functions.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

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


#: ``(run, name, args, kwargs) -> result`` of a scripted function; of a method of a scripted module, the name is None
Call: TypeAlias = Callable[[Callable[..., Any], "str | None", tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def scripted_calls(call: Call) -> Iterator[None]:
    """Inside, on this thread, ``call`` is told to run what Python calls of TorchScript: no mode sees these calls."""
    thread = threading.get_ident()

    def told(own: Callable[..., Any]) -> Callable[..., Any]:
        def run(script: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return own(script, *args, **kwargs)
            name: Any = script.name if isinstance(script, torch._C.ScriptFunction) else None
            return call(functools.partial(own, script), name, args, kwargs)

        return run

    classes: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
    before = [(cls, cls.__call__) for cls in classes]
    for cls, own in before:
        cls.__call__ = told(own)
    try:
        yield
    finally:
        for cls, own in before:
            cls.__call__ = own
