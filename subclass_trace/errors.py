"""Typed errors. Every refusal says what happened, where (a path), what was expected, what came, and
how to fix it.

>>> print(ProtocolError("the inner tensor is missing", path="args[0].scale", expected="a tensor",
...                     got="no attribute 'scale'", fix="set self.scale in __init__"))
the inner tensor is missing
  where:    args[0].scale
  expected: a tensor
  got:      no attribute 'scale'
  fix:      set self.scale in __init__
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any


class SubclassTraceError(RuntimeError):
    """Base of everything this package raises on purpose.

    The parts of the message are attributes as well, so that tools need not parse text.
    """

    #: what is inside of a tensor stands in no message, also where another library's is quoted; see
    # `torch_api.text_of`
    _contents = re.compile(r"\b(tensor|array)\([^)]+\)?")

    def __init__(
        self,
        what: str,
        *,
        path: object = None,
        expected: object = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        hidden = partial(self._contents.sub, r"\1(...)")
        self.what = what = hidden(what)
        self.path = None if path is None else str(path)
        self.expected, self.got = (
            None if part is None else hidden(str(part)) for part in (expected, got)
        )
        self.fix = fix
        rows = [
            ("where", self.path),
            ("expected", self.expected),
            ("got", self.got),
            ("fix", self.fix),
        ]
        super().__init__(
            "\n".join([what, *(f"  {name + ':':<9} {text}" for name, text in rows if text)])
        )


class Reason(str):
    """Why a specialization does not serve a call.

    Attributes:
        guard: what had to hold, as code: ``args[0].shape[0] == 4``.
    """

    guard: str

    def __new__(cls, text: str, guard: str = "") -> Reason:
        """A reason that a check of its own has found stays as it is."""
        if isinstance(text, Reason):
            return text
        made = super().__new__(cls, text)
        made.guard = guard
        return made


class ProtocolError(SubclassTraceError):
    """A tensor subclass breaks, or lacks, the ``__tensor_flatten__`` / ``__tensor_unflatten__``
    protocol."""


class GuardError(SubclassTraceError):
    """A specialization was asked to serve a call whose guards do not hold."""


class LimitError(GuardError):
    """The calls of a region differ without end, or it has as many specializations as it may
    have."""


class TangentError(SubclassTraceError):
    """A backward was asked for that the saved activations cannot give."""


class UnsupportedError(SubclassTraceError):
    """The region uses something that is not supported (yet); the message names it.

    Attributes:
        code: the kind of refusal. The table in docs/limits.md says of each who serves such a call.
    """

    def __init__(self, what: str, *, code: str, **parts: Any) -> None:
        super().__init__(what, **parts)
        self.code = code


class SideEffectError(UnsupportedError):
    """The region changes Python state, or asks the world, in a way that cannot be done again in
    each call."""


class DataDependentError(UnsupportedError):
    """Python control flow, or a Python number, depends on the values inside a tensor."""


class RuleError(UnsupportedError):
    """A wrapper class has no rule for an operation: eager mode says so, too, and code may catch
    it."""


class OptionError(SubclassTraceError, ValueError):
    """An option has an unknown name or a value out of range."""


class BackendError(SubclassTraceError):
    """A back end cannot be used here, or broke its contract; the message names an alternative."""


class DescriptionError(SubclassTraceError, ValueError):
    """A description of a specialization is broken, old, or of something that is not here: the path
    names the field."""


class ArtifactError(SubclassTraceError):
    """A file of compiled regions is broken, foreign, or was made of something else than what is
    here: ``path`` says where, ``expected`` what the file says, ``got`` what is here."""


class Unlike(SubclassTraceError):
    """What is here is not what a description was made of: another call, other state, other code.

    Attributes:
        reason: what differs.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class FrozenError(SubclassTraceError):
    """A frozen region cannot serve: a weight has changed since (the path names it), or was given
    up; or gradients are asked for."""


class ExportError(SubclassTraceError):
    """A function or module cannot be exported, or a state or call does not fit a program."""


class PassError(SubclassTraceError):
    """A pass raised, or left a graph that does something else; the path names the pass and the
    node."""


class VerificationError(SubclassTraceError):
    """The verifier found a graph or a plan that breaks an invariant: a bug in this package or in a
    partitioner."""
