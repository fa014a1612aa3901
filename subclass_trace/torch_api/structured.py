"""Torch's structured trace, which ``TORCH_TRACE=folder`` writes and ``tlparse`` shows."""

from __future__ import annotations

import collections
import logging
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

_ids: weakref.WeakKeyDictionary[Any, collections.Counter[int]] = weakref.WeakKeyDictionary()


def trace_is_written() -> bool:
    """Is the structured trace written to a folder? (There are handlers anyway: torch's, and those of pytest.)"""
    return any(getattr(h, "root_dir", None) is not None for h in logging.getLogger("torch.__trace").handlers)


def write_trace(
    owner: object, place: tuple[str, int, str], texts: Mapping[str, str], metrics: Mapping[str, Any]
) -> None:
    """Write what was compiled for ``owner``. Each call of this has a compile id of its own.

    Args:
        place: file, line and name of the function that was compiled.
        texts: name -> text; names that end in "_graph" are torch's own.
        metrics: more about it, by torch's names.
    """
    from torch._dynamo import convert_frame
    from torch._guards import CompileContext, CompileId, compile_context
    from torch._logging import structured
    from torch._logging._internal import trace_structured

    if owner not in _ids:  # Dynamo counts frames here, too
        _ids[owner] = collections.Counter({convert_frame.FRAME_COUNTER: 0})
        convert_frame.FRAME_COUNTER += 1
    ((frame, count),) = _ids[owner].items()
    _ids[owner][frame] += 1
    file, line, function = place
    row = {"line": line, "name": function, "filename": structured.intern_string(file)}
    about = {"compile_id": f"{frame}/{count}", "co_name": function, "co_filename": file, "co_firstlineno": line}
    with compile_context(CompileContext(CompileId(frame_id=frame, frame_compile_id=count))):
        trace_structured("dynamo_start", lambda: {"stack": [row]})
        for name, text in texts.items():
            if name.endswith("_graph"):
                trace_structured(name, payload_fn=partial(str, text))
            else:
                trace_structured("artifact", partial(dict, name=name, encoding="string"), payload_fn=partial(str, text))
        trace_structured("compilation_metrics", lambda: {**about, **metrics})
