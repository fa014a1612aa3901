"""The bytes of a file: nothing that was changed, cut or made up by somebody is taken, nothing of it is run, nothing grows."""

from __future__ import annotations

import copy
import hashlib
import json
import lzma
import struct
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st_
from torch import nn

import subclass_trace as st
from subclass_trace.artifacts.container import MAGIC, pack, unpack
from subclass_trace.zoo import TwoTensor


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu() * torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "small.st"
    region, x = st.compile(Small(), frontend="trace"), torch.ones(2, 3)
    region(x).sum().backward()
    assert region.save(path, x) == ()
    return path.read_bytes()


def file_of(document: Any, constants: bytes = b"\x08\0\0\0\0\0\0\0{}      ") -> bytes:
    """A file that says what somebody wants it to say."""
    text = json.dumps(document).encode()
    body = lzma.compress(text)
    rest = struct.pack("<QQ", len(body), len(text)) + body + constants
    return MAGIC + hashlib.sha256(rest).digest() + rest


def test_every_byte_counts(whole: bytes) -> None:
    for k in range(0, len(whole), 3):
        for broken in (whole[:k], whole[:k] + bytes([whole[k] ^ 0x55]) + whole[k + 1 :]):
            with pytest.raises(st.ArtifactError) as caught:
                unpack(broken)
            assert caught.value.path
    with pytest.raises(st.ArtifactError):
        unpack(whole + b"more")


def test_no_bomb_grows() -> None:
    body = lzma.compress(b"0" * (64 << 20))
    for said in (100, 64 << 20, 1 << 60):
        rest = struct.pack("<QQ", len(body), said) + body
        with pytest.raises(st.ArtifactError):
            unpack(MAGIC + hashlib.sha256(rest).digest() + rest)


FOREIGN = {
    "no header": {"specializations": []},
    "a list": [],
    "deep": json.loads("[" * 300 + "]" * 300),
    "text": {"header": "x", "specializations": []},
    "no list": {"header": {}, "specializations": 3},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_documents(name: str) -> None:
    with pytest.raises(st.ArtifactError):
        unpack(file_of(FOREIGN[name]))


CONSTANTS = [
    *(b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}more", b"\x02\0\0\0\0\0\0\0[]"),
    b'\x3a\0\0\0\0\0\0\0{"c":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}     ',
    b'\x3a\0\0\0\0\0\0\0{"c":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}}     ',
    b'\x3a\0\0\0\0\0\0\0{"c":{"dtype":"U8","shape":[0],"data_offsets":[-1,0]}}    ',
]


@pytest.mark.parametrize("constants", CONSTANTS)
def test_foreign_constants(constants: bytes) -> None:
    with pytest.raises(st.ArtifactError) as caught:
        unpack(file_of({"header": {}, "specializations": []}, constants))
    assert caught.value.path == "constants"


def test_constants_are_safetensors(whole: bytes) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    (packed,) = struct.unpack_from("<Q", whole, len(MAGIC) + 32)
    (held,) = safetensors.load(whole[len(MAGIC) + 48 + packed :]).values()
    assert held.view(torch.float32).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.long
def test_two_thousand_nodes_are_25_kb() -> None:
    layers = [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(6)]
    model, x = nn.Sequential(*layers), torch.randn(2, 3, 8)
    for linear in (m for m in model.modules() if isinstance(m, nn.Linear)):
        w = linear.weight.detach()
        linear.weight = nn.Parameter(TwoTensor(w.clone(), w * 2))
    region = st.compile(model, frontend="trace")
    data = region.warm_up(x).describe(x).data
    nodes = len(data["forward"]["body"]) + sum(len(b["half"]["body"]) for b in data["backwards"]["compiled"])
    assert nodes > 1000
    assert len(pack({}, [data])) < 25_000 * nodes / 2000


# ---------------------------------------------------------------------------------------------- fuzz
_FORBIDDEN = ("os.", "subprocess.", "socket.", "pickle.", "marshal.", "shutil.", "ctypes.dlopen", "webbrowser.")
_heard: list[str] | None = None


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _heard is not None and event.startswith(_FORBIDDEN) and event not in ("os.putenv", "marshal.load"):
        _heard.append(f"{event} {args!r:.80}")


sys.addaudithook(_hear)
_INSTEAD = [None, 0, -1, 10**6, True, "x", "system", [], {}, ["at", 0], ["node", -1], ["named", "class", "os", "x"]]
_INSTEAD += [
    ["named", "attribute", "os", "system"],
    ["op", "aten", "from_file", ""],
    ["tensor", "float32", [1], [1], "x"],
]


@given(drawn=st_.data())
@pytest.mark.long
def test_any_field_may_be_another_one(
    whole: bytes, drawn: st_.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A typed error, or it is left out: then the region gives what eager gives. Or what was changed tells of no code."""
    global _heard
    header, descriptions = copy.deepcopy(unpack(whole))
    constants = {"constants": dict.fromkeys(descriptions[0]["constants"], "AACAPwAAAEAAAEBA")}
    document: Any = {"header": header, "data": [{**d, **constants} for d in descriptions]}
    at = document["data"][0] if drawn.draw(st_.integers(0, 9)) else document["header"]
    graph = False
    for _ in range(12):
        key = drawn.draw(st_.sampled_from([*at] if isinstance(at, dict) else [*range(len(at))]))
        graph |= key in ("forward", "backwards", "constants", "plan", "symbols", "templates", "proofs")
        inside = at[key]
        if not isinstance(inside, (dict, list)) or not inside or drawn.draw(st_.integers(0, 4)) == 0:
            at[key] = drawn.draw(st_.sampled_from(_INSTEAD))
            break
        at = inside
    path = tmp_path_factory.getbasetemp() / "fuzzed.st"
    model, x = Small(), torch.ones(2, 3)
    try:
        path.write_bytes(pack(document["header"], document["data"]))
    except (TypeError, ValueError, AttributeError, KeyError):  # no file can say so
        return
    _heard = []
    try:
        got = st.load(path, model, frontend="trace")(x)
    except st.SubclassTraceError:
        got = None
    except Exception:  # of torch's operations, of a graph that is another one
        assert graph
        got = None
    finally:
        heard, _heard = _heard, None
    assert not heard
    assert got is None or graph or torch.allclose(got, model(x))
