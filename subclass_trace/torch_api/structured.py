"""Torch's structured trace, which ``TORCH_TRACE=folder`` writes and ``tlparse`` shows."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

_ids: weakref.WeakKeyDictionary[Any, tuple[int, Iterator[int]]] = weakref.WeakKeyDictionary()


def trace_is_written() -> bool:
    """Is the structured trace written to a folder? (There are handlers anyway: torch's, and those
    of pytest.)"""
    return any(
        getattr(h, "root_dir", None) is not None
        for h in logging.getLogger("torch.__trace").handlers
    )


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
        _ids[owner] = convert_frame.FRAME_COUNTER, itertools.count()
        convert_frame.FRAME_COUNTER += 1
    compile_id = CompileId(frame_id=_ids[owner][0], frame_compile_id=next(_ids[owner][1]))
    (file, line, name), number = place, structured.intern_string(place[0])
    about = {
        "compile_id": str(compile_id),
        "co_name": name,
        "co_filename": file,
        "co_firstlineno": line,
        **metrics,
    }
    with compile_context(CompileContext(compile_id)):
        trace_structured(
            "dynamo_start", lambda: {"stack": [{"line": line, "name": name, "filename": number}]}
        )
        for key, text in texts.items():
            artifact = {} if key.endswith("_graph") else {"name": key, "encoding": "string"}
            trace_structured(
                "artifact" if artifact else key,
                partial(dict, artifact),
                payload_fn=partial(str, text),
            )
        trace_structured("compilation_metrics", lambda: about)
