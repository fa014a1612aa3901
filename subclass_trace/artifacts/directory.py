"""Files by name in a directory that is ours alone, written by many processes at once and torn by
none.

The directory is owned by this user, writable by nobody else, and no link; files are opened relative
to it. A file is written under another name, flushed to the disk and renamed, so that a reader sees
all of it or none, whenever a writer is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
from typing import NamedTuple

from .container import LIMIT

#: a key, and a digest of what the file has
NAME = re.compile(r"[0-9a-f]{40}-[0-9a-f]{16}\.stc")
_LEFT_OVER = 3600  # seconds, after which nobody writes a file any more


class Entry(NamedTuple):
    """A file of the directory. ``used``: when it last served, in seconds."""

    name: str
    size: int
    used: float


class Directory:
    """An open directory.

    Args:
        limit: of bytes; above it, what was not used for the longest time goes.

    Raises:
        OSError: it cannot be made or opened, or is not ours alone.
    """

    def __init__(self, path: str, limit: int) -> None:
        if not {os.open, os.rename, os.unlink} <= os.supports_dir_fd:
            raise OSError("this system opens no file relative to a directory")
        self.path, self._limit = path, limit
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            os.close(self._fd)
            raise PermissionError(
                f"{path} has to be owned by this user, and writable by nobody else"
            )

    def entries(self, key: str = "") -> list[Entry]:
        """The files whose names begin so, the last used first."""
        found = []
        for name in os.listdir(self._fd):
            if name.startswith(key) and NAME.fullmatch(name):
                with contextlib.suppress(OSError):
                    known = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
                    found.append(Entry(name, known.st_size, known.st_mtime))
        return sorted(found, key=lambda entry: -entry.used)

    def read(self, name: str) -> bytes | None:
        """A file; None: there is none of ours."""
        self._check(name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(name, flags, dir_fd=self._fd), "rb") as file:
                known = os.fstat(file.fileno())
                if (
                    not stat.S_ISREG(known.st_mode)
                    or known.st_uid != os.getuid()
                    or known.st_size > LIMIT
                ):
                    return None
                return file.read(LIMIT)
        except OSError:
            return None

    def write(self, name: str, held: bytes) -> None:
        """Put a file there, whole.

        Raises:
            OSError: the disk is full, the directory cannot be written.
        """
        self._check(name)
        temporary = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, 0o600, dir_fd=self._fd)
        try:
            with os.fdopen(file, "wb") as open_file:
                open_file.write(held)
                open_file.flush()
                os.fsync(open_file.fileno())
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            self._unlink(temporary)
            raise
        self._sweep()

    def used(self, name: str) -> None:
        """It served: it goes last."""
        self._check(name)
        with contextlib.suppress(OSError):
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Take a file away, if it is there."""
        self._check(name)
        self._unlink(name)

    def _check(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"no name of the cache: {name!r}")

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def _sweep(self) -> None:
        """What writers that were killed have left; what is above the limit."""
        for name in os.listdir(self._fd):
            if name.startswith(".") and name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    if os.stat(name, dir_fd=self._fd).st_mtime < time.time() - _LEFT_OVER:
                        self._unlink(name)
        entries = self.entries()
        whole = sum(entry.size for entry in entries)
        for entry in reversed(entries if whole > self._limit else []):
            self._unlink(entry.name)
            whole -= entry.size
            if whole <= 0.9 * self._limit:
                break
