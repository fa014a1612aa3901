"""torch's own pytrees, for the arguments of operations and of higher order operators."""

from __future__ import annotations

from torch.utils import _pytree as pytree
from torch.utils._pytree import tree_map_only

__all__ = ["pytree", "tree_map_only"]
