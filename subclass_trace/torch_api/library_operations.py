"""Users' functions that torch calls for the operations of ``torch.library``."""

from __future__ import annotations

_AUTOGRAD, _DEFINITIONS = "torch._library.autograd", "torch._library.custom_ops"
