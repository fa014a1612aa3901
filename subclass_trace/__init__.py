"""Trace through PyTorch tensor subclasses: flatten, capture a dense forward and backward graph, compile, rewrap.

See README.md for a first look, docs/concepts.md for the words, docs/architecture.md for how it works.
"""

from .authoring import WrapperTensor
from .errors import (
    AliasingError,
    ArgumentsError,
    BackendError,
    DataDependentError,
    ExportError,
    GuardError,
    OptionError,
    ProtocolError,
    SubclassTraceError,
    TangentError,
    UnsupportedError,
    VerificationError,
)
from .frontends.compile import Region, Specialization, compile
from .frontends.frontier import MemoryFrontier, memory_frontier
from .frontends.gradient_error import GradientReport, gradient_error
from .frontends.trace import Trace, Tracer, trace
from .options import Options
from .partition.min_cut import MinCut
from .partition.transfers import Offload
from .tape import compiled_autograd

__all__ = [
    "AliasingError",
    "ArgumentsError",
    "BackendError",
    "DataDependentError",
    "ExportError",
    "GradientReport",
    "GuardError",
    "MemoryFrontier",
    "MinCut",
    "Offload",
    "OptionError",
    "Options",
    "ProtocolError",
    "Region",
    "Specialization",
    "SubclassTraceError",
    "TangentError",
    "Trace",
    "Tracer",
    "UnsupportedError",
    "VerificationError",
    "WrapperTensor",
    "compile",
    "gradient_error",
    "memory_frontier",
    "compiled_autograd",
    "trace",
]
