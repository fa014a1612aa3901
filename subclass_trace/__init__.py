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
    SideEffectError,
    SubclassTraceError,
    TangentError,
    UnsupportedError,
    VerificationError,
)
from .frontends.compile import compile
from .frontends.hand_over import HandOverWarning
from .frontends.region import Region
from .frontends.specialization import Specialization
from .frontends.trace import Trace, Tracer, trace
from .options import Options
from .partition.min_cut import MinCut
from .tape import compiled_autograd

__all__ = [
    "AliasingError",
    "ArgumentsError",
    "BackendError",
    "DataDependentError",
    "ExportError",
    "GuardError",
    "HandOverWarning",
    "MinCut",
    "OptionError",
    "Options",
    "ProtocolError",
    "Region",
    "SideEffectError",
    "Specialization",
    "SubclassTraceError",
    "TangentError",
    "Trace",
    "Tracer",
    "UnsupportedError",
    "VerificationError",
    "WrapperTensor",
    "compile",
    "compiled_autograd",
    "trace",
]
