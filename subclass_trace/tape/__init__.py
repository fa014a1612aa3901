"""Compiled autograd: the autograd tape as a graph.

One backward call is captured through torch's compiler slot in the engine (``capture.py``) as steps
(``steps.py``), which are put into the eager engine's order (``order.py``) and written as an fx
graph (``graph.py``). Running it calls autograd's own functions, hooks and unpack hooks one after
the other (``operations.py``, ``program.py``); or the segments between opaque calls are lowered to
dense aten graphs and given to a back end (``segments.py``).

    >>> from subclass_trace.tape import compiled_autograd
    >>> compiled_autograd
    <compiled autograd, off, ...>
"""

from .context import CompiledAutograd, compiled_autograd
from .graph import EngineTape, TapeNode

__all__ = ["CompiledAutograd", "EngineTape", "TapeNode", "compiled_autograd"]
