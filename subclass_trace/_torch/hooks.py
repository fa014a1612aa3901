"""Hooks of all modules and of all optimizers."""

from __future__ import annotations

import importlib
from typing import Any

#: where torch keeps them; ``torch.optim`` hides its module of this name
_MODULES = [importlib.import_module(name) for name in ("torch.nn.modules.module", "torch.optim.optimizer")]


def hooks_of_all() -> dict[str, dict[Any, Any]]:
    """Torch's tables of them, by name."""
    return {
        name: table
        for module in _MODULES
        for name, table in vars(module).items()
        if name.startswith("_global_") and isinstance(table, dict)
    }


def are_hooks_on_all_modules() -> bool:
    """Does any hook run around each call of a module?"""
    return bool(_MODULES[0]._has_any_global_hook())
