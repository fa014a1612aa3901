"""How a broken rule is reported."""

from __future__ import annotations

from ..errors import VerificationError


def require(holds: object, what: str, path: object, *, expected: object, got: object) -> None:
    """Raise `VerificationError` with these words, at ``path``, unless it holds."""
    if not holds:
        raise VerificationError(what, path=path, expected=str(expected), got=str(got))
