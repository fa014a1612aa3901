"""Hooks of all modules."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

_MODULE: Any = importlib.import_module("torch.nn.modules.module")
#: what each call of a module looks at
_TABLES = [n for n in _MODULE._has_any_global_hook.__code__.co_names if n.startswith("_global_")]


#: a method of a module of TorchScript
ScriptMethod: Any = torch._C.ScriptMethod


def hooks_of_all() -> list[tuple[dict[str, Any], str, dict[Any, Any]]]:
    """Torch's tables of them, which each call of a module reads: the namespace of the module that
    has one, its name, and the table."""
    space = vars(_MODULE)
    return [(space, name, space[name]) for name in _TABLES]


#: the code that asks a module for its ``forward``, with all hooks around it
CALL_WITH_HOOKS = torch.nn.Module._call_impl.__code__


def call_with_hooks(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """The module's ``forward``, with all hooks around it."""
    return torch.nn.Module._call_impl(module, *args, **kwargs)  # type: ignore[no-untyped-call]


def is_symbolic_trace() -> bool:
    """Does ``torch.fx.symbolic_trace`` record what runs now?"""
    return bool(torch.fx._symbolic_trace.is_fx_symbolic_tracing())


def are_hooks_on_all_modules() -> bool:
    """Does any hook run around each call of a module?"""
    return bool(_MODULE._has_any_global_hook())


def is_of_fsdp(module: torch.nn.Module) -> bool:
    """Has ``fully_shard`` given the module its hooks?"""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def share_fsdp_state(module: torch.nn.Module, region: torch.nn.Module) -> None:
    """FSDP2 finds in ``region`` what it keeps of ``module``: for its methods, and for the root
    around it."""
    from torch.distributed import _composable_state

    states: Any = _composable_state._module_state_mapping
    if module in states:
        states[region] = states[module]
