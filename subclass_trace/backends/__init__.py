"""Back ends: what turns a dense graph into a callable.

A back end is three compilers, ``(graph module, example inputs) -> callable``: for the forward of
training, for the backward, and for inference. Graphs are dense aten graphs; wrappers have been
taken apart before, and are put together after.

- ``registry.py``: the `Backend` type, names for back ends, and the one place where a compiler is
  called.
- ``eager.py``: straight-line Python over C bindings. Needs nothing, compiles in milliseconds, keeps
  eager numerics.
- ``inductor.py``: PyTorch's compiler.
- ``cudagraphs/``: the programs of either in CUDA graphs.

    >>> resolve_backend("eager").name
    'eager'
"""

from .cudagraphs.pool import Settings as Settings
from .registry import Backend as Backend
from .registry import Compiled as Compiled
from .registry import Compiler as Compiler
from .registry import compile_with as compile_with
from .registry import register_backend as register_backend
from .registry import resolve_backend as resolve_backend
from .registry import runs_operations as runs_operations
from .registry import with_cudagraphs as with_cudagraphs
