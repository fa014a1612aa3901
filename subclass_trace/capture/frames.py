"""Where a recorded node comes from in the user's code."""

from __future__ import annotations

import torch.fx as fx


def frames_text(node: fx.Node) -> str | None:
    """``file:line`` of the innermost user frame that recorded ``node`` (before its frames became text)."""
    frames = node.meta.get("frames")
    return f"{frames[0][0].co_filename}:{frames[0][1]}" if frames else None
