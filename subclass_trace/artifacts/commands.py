"""``subclass-trace cache``: list, verify and clear the directory; pack it into one file, and unpack
such a file.

A file of a fleet is a zip of entries, each with a digest of its own; what has another name or is
damaged is not unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..data.describe import versions
from ..errors import ArtifactError, OptionError
from .cache import directory_path, limit
from .container import LIMIT, unpack
from .directory import NAME, Directory


def run(action: str, file: str | None, directory: str | None) -> int:
    """Returns 1 where `verify` or `unpack` finds what is damaged, else 0.

    Raises:
        OptionError: no file is given.
        OSError: the directory cannot be opened, or is not this user's alone.
        ArtifactError: a file is no packed cache.
    """
    if (action in ("pack", "unpack")) != (file is not None):
        expected = "a file for pack and unpack, none for others"
        raise OptionError(
            f"`cache {action}` has another number of arguments", expected=expected, got=file
        )
    return _ACTIONS[action](
        Directory(os.path.abspath(directory or directory_path()), limit()), file
    )


def _list(directory: Directory, _: str | None) -> int:
    entries = directory.entries()
    for name, size, _used in entries:
        print(f"{name[:8]}..{name[41:57]}  {size:>10,} bytes  {_said(directory.read(name))}")
    print(f"{len(entries)} entries, {sum(e.size for e in entries):,} bytes in {directory.path}")
    return 0


def _said(held: bytes | None) -> str:
    try:
        header, _ = unpack(held or b"")
    except ArtifactError as error:
        return f"damaged: {error.path}"
    ranks = "" if header.get("ranks") is None else f", rank {header['ranks']}"
    old = "" if header.get("versions") == versions() else f", made by {header.get('versions')}"
    return f"{header.get('function')}{ranks}{old}"


def _verify(directory: Directory, _: str | None) -> int:
    """What is damaged goes."""
    damaged = [
        entry.name
        for entry in directory.entries()
        if _said(directory.read(entry.name)).startswith("damaged")
    ]
    for name in damaged:
        directory.remove(name)
        print(f"removed {name}")
    print(f"{len(directory.entries())} entries are whole, {len(damaged)} were damaged")
    return 1 if damaged else 0


def _clear(directory: Directory, _: str | None) -> int:
    for entry in (entries := directory.entries()):
        directory.remove(entry.name)
    print(f"removed {len(entries)} entries of {directory.path}")
    return 0


def _pack(directory: Directory, file: Any) -> int:
    with _open(file, "wb") as target, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as packed:
        entries = directory.entries()
        for entry in reversed(entries):
            if (held := directory.read(entry.name)) is not None:
                packed.writestr(entry.name, held)
    print(f"packed {len(entries)} entries into {file}")
    return 0


def _unpack(directory: Directory, file: Any) -> int:
    """Only what is whole, under the name that it has as a whole."""
    done, refused = 0, 0
    try:
        with _open(file, "rb") as source, zipfile.ZipFile(source) as packed:
            for member in packed.infolist():
                held = _member(packed, member)
                if held is None:
                    refused += 1
                else:
                    directory.write(member.filename, held)
                    done += 1
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise ArtifactError(
            f"{file} was not made by `cache pack`, or is damaged", path=file, got=error
        ) from error
    print(f"unpacked {done} entries into {directory.path}; {refused} are damaged or foreign")
    return 1 if refused else 0


def _member(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes | None:
    if (
        not NAME.fullmatch(member.filename)
        or member.file_size > LIMIT
        or member.compress_type != zipfile.ZIP_STORED
    ):
        return None
    try:
        with packed.open(member) as file:
            held = file.read(LIMIT)
        unpack(held)
    except (ArtifactError, zipfile.BadZipFile, RuntimeError):
        return None
    return held if hashlib.sha256(held).hexdigest()[:16] == member.filename[41:57] else None


@contextlib.contextmanager
def _open(file: str, mode: str) -> Iterator[Any]:
    if "://" in file:
        import fsspec  # torch has it

        with fsspec.open(file, mode) as opened_file:
            yield opened_file
    else:
        with Path(file).open(mode) as opened_file:
            yield opened_file


_ACTIONS = {"list": _list, "verify": _verify, "clear": _clear, "pack": _pack, "unpack": _unpack}
