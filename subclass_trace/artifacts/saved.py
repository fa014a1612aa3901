"""A file that a user saves and loads: all portable specializations of a region."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..data.describe import Description, differs
from ..errors import ArtifactError, DescriptionError, SubclassTraceError, Unlike
from ..options import Options
from . import identity
from .container import LIMIT, pack, unpack
from .source import Source


def save(
    path: str | os.PathLike[str],
    function: Any,
    options: Options,
    described: Sequence[Description],
    bind: Callable[[dict[str, Any]], object] | None,
) -> tuple[str, ...]:
    """Write the descriptions that have no gaps; the reasons why others are left out.

    Args:
        bind: to a call that one of them serves; without it, all are compared with the function
            alone.

    Raises:
        ArtifactError: there is nothing to write, or what is read back does not serve.
    """
    gaps = [d.gaps[0] if d.gaps else identity.unseen(options, d.data) for d in described]
    left_out = [f"[{k}] {why}" for k, why in enumerate(gaps) if why is not None]
    portable = [d.data for d, why in zip(described, gaps, strict=True) if why is None]
    if not portable:
        raise ArtifactError(
            "there is nothing to save",
            path="specializations",
            expected="a specialization of which all can be written as data",
            got="; ".join(left_out)
            or "none: the region was not called, or our trace does not serve it (`explain()`)",
            fix="call the region, or `warm_up(*args)`, and hand the arguments of a call to "
            "`save` as well",
        )
    held = pack(identity.header_of(function, options, portable), portable)
    _read_back(os.fspath(path), held, function, options, bind)
    write_whole(Path(path), held)
    return tuple(left_out)


def _read_back(
    path: str, held: bytes, function: Any, options: Options, bind: Callable[[Any], object] | None
) -> None:
    """The file is given away when what has only been read is whole, and one of it could be
    bound."""
    refused: list[Unlike] = []
    read = unpack(held)[1]
    for data in read:
        try:
            if bind is None:
                differs(data, function, options.of_a_trace())
            else:
                bind(data)
        except Unlike as error:  # it is for another call, or for a state that the function had
            refused.append(error)
        except DescriptionError as error:
            raise _differs(path, error) from error
    if bind is not None and len(refused) == len(read):
        raise ArtifactError(
            "nothing that would be written serves this call",
            path=path,
            expected="the arguments of a call that a specialization serves, in the state that "
            "the function has now",
            got="; ".join(f"[{k}] {error.reason}" for k, error in enumerate(refused)),
        ) from refused[0]


def write_whole(path: Path, held: bytes) -> None:
    """Whole or not at all."""
    if not path.parent.is_dir():  # else the error names the temporary file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(held)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Artifact(Source):
    """What a file holds, for a region that is not called yet.

    Args:
        strict: what differs from when it was saved is raised; else it is left out.

    Raises:
        ArtifactError: the file is damaged or foreign; or it serves no call of this function.
    """

    def __init__(
        self, path: str | os.PathLike[str], function: Any, options: Options, *, strict: bool
    ) -> None:
        self._path, self._strict = os.fspath(path), strict
        with open(path, "rb") as file:
            held = file.read(2 * LIMIT)
        header, self._held = unpack(held)
        self._served: set[int] = set()
        self._refused: dict[int, str] = {}
        try:
            if (why := identity.unseen(options)) is not None:
                raise ArtifactError(
                    "the file cannot serve",
                    path="options",
                    expected="what can be compared",
                    got=why,
                )
            identity.compare(header, options)
        except ArtifactError as error:
            if strict:
                raise
            self._held, self._refused = [], {0: str(error)}
        if strict:
            self._compare(function, options)

    def _compare(self, function: Any, options: Options) -> None:
        """One of them serves the function as it is now, for all that can be told without a call:
        others may do so later, as one that was made in training does after ``train()``.
        """
        first: SubclassTraceError | None = None
        for k, data in enumerate(self._held):
            try:
                differs(data, function, options.of_a_trace())
                return
            except (Unlike, DescriptionError) as error:
                self._refused[k] = str(error)
                first = first or error
        raise _differs(self._path, first) from first

    def candidates(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What did not serve yet."""
        for k, data in enumerate(self._held):
            if k not in self._served:
                yield str(k), data

    def bound(self, name: str) -> None:
        """It serves from now on."""
        self._served.add(int(name))
        self._refused.pop(int(name), None)

    def refused(self, name: str, error: Exception) -> None:
        """Another call; or something that was saved is not here.

        Raises:
            ArtifactError: the latter, if this is strict.
        """
        self._refused[int(name)] = str(error).partition("\n")[0]
        if not isinstance(error, Unlike):
            if self._strict and isinstance(error, DescriptionError):
                raise _differs(self._path, error) from error
            self._served.add(int(name))  # no other call will find it better

    def reset(self) -> None:
        """All of them may serve again."""
        self._served.clear()

    def explain(self) -> str:
        """How many serve, and why others do not."""
        why = "".join(
            f"\n  [{k}] does not: {reason}" for k, reason in sorted(self._refused.items())
        )
        return (
            f"of {len(self._held)} specializations in {self._path} {len(self._served)} are "
            f"bound{why}"
        )


def _differs(path: str, error: SubclassTraceError | None) -> ArtifactError:
    """As an error of the file: what, where, expected, got."""
    what = f"{path} was made of something else than what is here"
    if error is None:
        return ArtifactError(what, path="specializations", expected="one at least", got="none")
    if isinstance(error, Unlike):
        at, _, rest = str(error.reason).partition(": expected ")
        expected, _, got = rest.rpartition(", got ")
        if expected:
            return ArtifactError(what, path=at, expected=expected, got=got, fix=_FIX)
        return ArtifactError(
            what,
            path=at.partition(" has ")[0],
            expected="as it was",
            got=str(error.reason),
            fix=_FIX,
        )
    return ArtifactError(
        f"{what}: {error.what}", path=error.path, expected=error.expected, got=error.got, fix=_FIX
    )


_FIX = (
    "load it for what was saved, in the state that it had then; save it again; or "
    "strict=False, which traces what differs"
)
