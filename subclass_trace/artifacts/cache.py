"""The cache of a region: what any process of this user has traced, in a directory.

An entry is found by a key (`identity.key_of`), then bound and compared in full. What is damaged is
taken away, what does not fit stays for others; whatever goes wrong, the region traces as it does
without a cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

from ..data.describe import Description
from ..data.differences import difference
from ..errors import ArtifactError, DescriptionError
from ..options import Options
from ..report.names import name_of
from ..torch_api.lines import warn_user
from . import identity
from .container import pack, unpack
from .directory import Directory
from .source import Source

#: so many entries of one key are tried in a call
_TRIED = 8
_LIMIT = 1 << 30
#: which draws as it likes: no seed of the user's, and no state of their generator
_chance = random.SystemRandom()


def directory_path() -> str:
    """``SUBCLASS_TRACE_CACHE_DIR``, or a folder beside those of `torch.hub`."""
    if given := os.environ.get("SUBCLASS_TRACE_CACHE_DIR"):
        return given
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(
        os.environ.get("TORCH_HOME") or os.path.join(home, "torch"), "subclass_trace"
    )


def limit() -> int:
    """Of its bytes."""
    return int(os.environ.get("SUBCLASS_TRACE_CACHE_LIMIT") or _LIMIT)


@functools.cache
def opened(path: str) -> Directory | None:
    """The directory; None, after one warning, where there can be none."""
    try:
        return Directory(path, limit())
    except (OSError, ValueError) as error:
        warn_once(path, error)
        return None


#: directories of which a warning told
_warned: set[str] = set()


def warn_once(path: str, error: Exception) -> None:
    """A directory cannot be used."""
    if path not in _warned:
        _warned.add(path)
        warn_user(
            f"the cache in {path} cannot be used, and regions are traced as without it: {error}"
        )


class Cache(Source):
    """Of one region."""

    def __init__(self, function: Any, options: Options) -> None:
        self._function, self._options = function, options
        self._served: set[str] = set()
        self._why: list[str] = []

    @functools.cached_property
    def _keys(self) -> dict[int | None, str]:
        """Made at the first call, as the function is then; none: nothing is kept."""
        try:
            if (why := identity.unseen(self._options)) is None:
                return identity.keys_of(self._function, self._options)
        except Exception as error:  # code of classes may run
            why = f"{type(error).__name__}: {error}"
        self._why.append(f"nothing is kept: {why}")
        return {}

    def candidates(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Entries of the region's keys that are whole and of these libraries, the last used
        first."""
        directory = opened(directory_path()) if self._keys else None
        if directory is None:
            return
        found = [row[0] for key in self._keys.values() for row in directory.entries(key)[:_TRIED]]
        for name in found:
            held = None if name in self._served else directory.read(name)
            if held is None:
                continue
            try:
                header, descriptions = unpack(held)
                identity.compare(header, self._options)
                yield name, descriptions[0]
            except (ArtifactError, IndexError) as error:
                self.refused(name, error)

    def bound(self, name: str) -> None:
        """It serves from now on, and was used."""
        self._served.add(name)
        if (directory := opened(directory_path())) is not None:
            directory.used(name)

    def asks_for_a_trace(self) -> bool:
        """By chance, as often as ``verify=`` says."""
        return _chance.random() < self._options.verify

    def compared(
        self, name: str, data: dict[str, Any], describe: Callable[[], Description]
    ) -> bool:
        """What is stale goes, with a warning."""
        try:
            why = difference(data, describe().data)
        except Exception as error:  # of data that no trace has written
            why = f"{type(error).__name__}: {error}"
        if why is None:
            self.bound(name)
            return True
        self._remove(name)
        self._why.append(f"{name[41:]} was stale: {why}")
        warn_user(
            f"an entry of the cache for {name_of(self._function)} differs from a new trace, which "
            f"serves in its place; the entry is dropped. {why}"
        )
        return False

    def refused(self, name: str, error: Exception) -> None:
        """What is damaged goes; what is for another call stays."""
        if isinstance(error, (ArtifactError, DescriptionError, IndexError)):
            self._remove(name)
        self._why.append(f"{name[41:]}: {str(error).partition(chr(10))[0]}")

    def _remove(self, name: str) -> None:
        if (directory := opened(directory_path())) is not None:
            directory.remove(name)

    def made(self, describe: Callable[[], Description]) -> None:
        """Keep it."""
        if not self._keys or (directory := opened(directory_path())) is None:
            return
        try:
            described = describe()
            if described.gaps:
                self._why.append(f"not kept: {described.gaps[0]}")
                return
            if (why := identity.unseen(self._options, described.data)) is not None:
                self._why.append(f"not kept: {why}")
                return
            header = identity.header_of(self._function, self._options, [described.data])
            held = pack(header, [described.data])
            name = f"{self._keys[described.rank]}-{hashlib.sha256(held).hexdigest()[:16]}.stc"
            directory.write(name, held)
            self._served.add(name)
        except OSError as error:
            warn_once(directory.path, error)
        except Exception as error:  # what cannot be kept changes nothing
            self._why.append(f"not kept: {type(error).__name__}: {error}")

    def explain(self) -> str:
        """Where, and why something was not found or kept."""
        why = "".join(f"\n  {reason}" for reason in self._why[-8:])
        return f"cache in {directory_path()}: {len(self._served)} entries serve{why}"
