"""Users' functions that torch calls for the operations of ``torch.library``."""

from __future__ import annotations

_AUTOGRAD, _DEFINITIONS = "torch._library.autograd", "torch._library.custom_ops"
#: run while a region is traced; the kernel runs in each call, and the backward is looked at there
_TRACED = ("_setup_context_fn", "_abstract_fn")
