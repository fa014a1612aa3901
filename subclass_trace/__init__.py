"""Trace through PyTorch tensor subclasses: flatten, capture a dense forward and backward graph,
compile, rewrap.

See README.md for a first look, docs/concepts.md for the words, docs/architecture.md for how it
works.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    ArtifactError,
    BackendError,
    DataDependentError,
    ExportError,
    FrozenError,
    GuardError,
    LimitError,
    OptionError,
    PassError,
    ProtocolError,
    SideEffectError,
    SubclassTraceError,
    TangentError,
    UnsupportedError,
    VerificationError,
)

if TYPE_CHECKING:
    from . import authoring as authoring
    from . import passes as passes
    from . import testing as testing
    from . import zoo as zoo
    from .authoring import WrapperTensor
    from .exporting import Exported, export, export_joint, export_module, load_flat_state
    from .frontends.compile import compile, freeze, load
    from .frontends.hand_over import HandOverWarning
    from .frontends.region import Region
    from .frontends.specialization import Specialization
    from .frontends.trace import Tracer, trace
    from .options import Options
    from .partition.min_cut import MinCut
    from .report.trace import Trace
    from .tape import compiled_autograd
    from .verify import debug

#: where the names are that are loaded when somebody asks for them: the tracer needs torch's
# symbols, and these sympy
_LAZY = {
    "Exported": ".exporting",
    "HandOverWarning": ".frontends.hand_over",
    "MinCut": ".partition.min_cut",
    "Options": ".options",
    "Region": ".frontends.region",
    "Specialization": ".frontends.specialization",
    "Trace": ".report.trace",
    "Tracer": ".frontends.trace",
    "WrapperTensor": ".authoring",
    "compile": ".frontends.compile",
    "compiled_autograd": ".tape",
    "debug": ".verify",
    "export": ".exporting",
    "export_joint": ".exporting",
    "export_module": ".exporting",
    "freeze": ".frontends.compile",
    "load": ".frontends.compile",
    "load_flat_state": ".exporting",
    "trace": ".frontends.trace",
}

__all__ = [
    "ArtifactError",
    "BackendError",
    "DataDependentError",
    "ExportError",
    "Exported",
    "FrozenError",
    "GuardError",
    "LimitError",
    "HandOverWarning",
    "MinCut",
    "OptionError",
    "Options",
    "PassError",
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
    "debug",
    "export",
    "export_joint",
    "export_module",
    "freeze",
    "load",
    "load_flat_state",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name in ("authoring", "passes", "testing", "zoo"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
