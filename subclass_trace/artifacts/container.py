"""Descriptions <-> the bytes of a file.

A file is a line that says what it is, a digest of all that follows, two lengths, the descriptions
as compressed JSON, and the constants of their graphs as safetensors (each as plain bytes, by the
name that the descriptions have for it). Nothing in it is
run, and nothing is read that it does not have: lengths are compared before memory is taken.

>>> held = pack({"of": "f"}, [{"constants": {"c": "AAEC"}, "plan": 1}])
>>> header, (description,) = unpack(held)
>>> header, description["plan"], bytes(description["constants"]["c"])
({'of': 'f'}, 1, b'\\x00\\x01\\x02')
>>> unpack(held[:-1])
Traceback (most recent call last):
...
subclass_trace.errors.ArtifactError: the file is damaged
  where:    digest
  expected: ...
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArtifactError

#: of the files; the descriptions inside of one have a version of their own
MAGIC = b"subclass_trace 1\n"
#: no JSON and no list of constants of ours is longer
LIMIT = 1 << 28
#: equal layers stand far apart, further than zlib sees: a third less, at the speed of the fast
# modes
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 3, "pb": 0, "nice_len": 273, "depth": 200}]
_HEAD = struct.Struct("<32sQQ")
_LENGTH = struct.Struct("<Q")


def pack(header: Mapping[str, Any], descriptions: Sequence[Mapping[str, Any]]) -> bytes:
    """The bytes of a file.

    Args:
        header: what JSON holds.
        descriptions: `data.describe.Description.data` of each.
    """
    constants: dict[str, str] = {}
    rows = []
    for data in descriptions:
        constants.update(data["constants"])
        rows.append({name: value for name, value in data.items() if name != "constants"})
    text = json.dumps(
        {"header": dict(header), "specializations": rows}, separators=(",", ":")
    ).encode()
    body = lzma.compress(text, filters=_FILTERS)
    rest = _LENGTH.pack(len(body)) + _LENGTH.pack(len(text)) + body + _safetensors(constants)
    return MAGIC + hashlib.sha256(rest).digest() + rest


def unpack(held: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header, and the descriptions with their constants.

    Raises:
        ArtifactError: these are no such bytes, or not all of them; ``path`` says which part.
    """
    if not held.startswith(MAGIC):
        kind = held[: len(MAGIC)]
        fix = "save the region again" if kind.startswith(MAGIC.split()[0]) else None
        raise ArtifactError(
            "no file of this version of the package",
            path="magic",
            expected=MAGIC,
            got=kind,
            fix=fix,
        )
    rest = memoryview(held)[len(MAGIC) :]
    if len(rest) < _HEAD.size:
        raise _damaged("length", f"at least {_HEAD.size}", len(rest))
    digest, packed, whole = _HEAD.unpack_from(rest)
    now = hashlib.sha256(rest[32:]).digest()
    if now != digest:
        raise _damaged("digest", digest.hex(), now.hex())
    rest = rest[_HEAD.size :]
    if packed > len(rest) or whole > LIMIT:
        raise _damaged("json", f"{packed} bytes of {whole}", len(rest))
    try:
        document = json.loads(_decompressed(rest[:packed], whole))
        header, descriptions = document["header"], document["specializations"]
    except (ValueError, KeyError, TypeError, RecursionError, lzma.LZMAError) as error:
        raise _damaged(
            "json", "what this package writes", f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(header, dict) or not isinstance(descriptions, list):
        raise _damaged("json", "a header and descriptions", type(header).__name__)
    constants = _of_safetensors(rest[packed:])
    return header, [{**d, "constants": constants} for d in descriptions if isinstance(d, dict)]


def _decompressed(packed: memoryview, whole: int) -> bytes:
    machine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LIMIT)
    text = machine.decompress(packed, whole + 1)
    if len(text) != whole or not machine.eof or machine.unused_data:
        raise ValueError("another length")
    return text


def _damaged(path: str, expected: object, got: object) -> ArtifactError:
    return ArtifactError(
        "the file is damaged", path=path, expected=expected, got=got, fix="make it again"
    )


# ---- safetensors
def _safetensors(constants: Mapping[str, str]) -> bytes:
    """A file of safetensors; numbers of any dtype are bytes in it, as the descriptions say the
    rest."""
    rows: dict[str, Any] = {}
    parts, at = [], 0
    for name in sorted(constants):
        held = base64.b64decode(constants[name])
        rows[name] = {"dtype": "U8", "shape": [len(held)], "data_offsets": [at, at + len(held)]}
        at += len(held)
        parts.append(held)
    head = json.dumps(rows, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return b"".join((_LENGTH.pack(len(head)), head, *parts))


def _of_safetensors(held: memoryview) -> dict[str, bytes]:
    try:
        (length,) = _LENGTH.unpack_from(held)
        if length > min(LIMIT, len(held) - _LENGTH.size):
            raise ValueError("a header that is longer than the file")
        rows = json.loads(bytes(held[_LENGTH.size : _LENGTH.size + length]))
        data, at, found = held[_LENGTH.size + length :], 0, dict[str, bytes]()
        for name, row in rows.items():
            begin, end = row["data_offsets"]
            if (
                begin != at
                or not at <= end <= len(data)
                or row["dtype"] != "U8"
                or row["shape"] != [end - begin]
            ):
                raise ValueError(f"no constant of ours: {name}")
            found[name], at = bytes(data[begin:end]), end
        if at != len(data):
            raise ValueError("more bytes than constants")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise _damaged(
            "constants", "a file of safetensors", f"{type(error).__name__}: {error}"
        ) from error
