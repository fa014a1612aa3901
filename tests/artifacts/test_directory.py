"""The directory of the cache: private, whole, bounded; what goes wrong is one warning, and the region runs."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import subclass_trace as st
from subclass_trace.artifacts import cache
from subclass_trace.artifacts.container import LIMIT, pack, unpack
from subclass_trace.artifacts.directory import Directory
from subclass_trace.cli import main

KEY = "0" * 40
WRITER = """
import hashlib, random, sys
from subclass_trace.artifacts.container import pack
from subclass_trace.artifacts.directory import Directory
directory, drawn = Directory(sys.argv[1], 1 << 30), random.Random(int(sys.argv[2]))
print("ready", flush=True)
while True:
    held = pack({"n": drawn.random()}, [{"constants": {}, "many": [drawn.random()] * drawn.randrange(1, 20000)}])
    directory.write(f"{drawn.randrange(3):040x}-{0:016x}.stc", held)
"""


def entry(n: int, size: int = 100) -> tuple[str, bytes]:
    held = pack({"n": n}, [{"constants": {}, "random": random.Random(n).randbytes(size).hex()}])
    return f"{KEY}-{hashlib.sha256(held).hexdigest()[:16]}.stc", held


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test knows of another one's directory."""
    monkeypatch.setenv("SUBCLASS_TRACE_CACHE_DIR", str(tmp_path / "cache"))
    cache.opened.cache_clear()
    cache._warned.clear()
    yield
    cache.opened.cache_clear()
    cache._warned.clear()


def test_writers_that_are_killed_tear_nothing(tmp_path: Path) -> None:
    directory, whole = Directory(str(tmp_path), 1 << 30), 0
    drawn = random.Random(0)
    for n in range(2):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(n)]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        until = [time.monotonic() + drawn.uniform(0.05, 0.6) for _ in writers]
        for writer, when in zip(writers, sorted(until), strict=True):
            while time.monotonic() < when or not directory.entries():
                for name, _, _ in directory.entries():
                    held = directory.read(name)
                    assert held is not None
                    unpack(held)
                    whole += 1
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()  # type: ignore[union-attr]
    assert whole > 10
    for left in tmp_path.glob(".*.tmp"):
        os.utime(left, (0, 0))
    directory.write(*entry(1))
    assert not [*tmp_path.glob(".*.tmp")]


def test_it_is_ours_alone(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "made"), 1 << 20)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    name, held = entry(1)
    directory.write(name, held)
    assert (tmp_path / "made" / name).stat().st_mode & 0o777 == 0o600
    os.chmod(tmp_path / "made", 0o777)
    with pytest.raises(PermissionError):
        Directory(str(tmp_path / "made"), 1 << 20)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError):
        Directory(str(tmp_path / "link"), 1 << 20)


def test_what_it_does_not_read(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "made"), 1 << 20)
    (name, held), (other, _) = entry(1), entry(2)
    (tmp_path / "outside").write_bytes(held)
    (tmp_path / "made" / name).symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "made" / other)
    assert directory.read(name) is None and directory.read(other) is None
    for foreign in ("../outside", "x", f"{KEY}-{'0' * 16}.stc/..", ""):
        with pytest.raises(ValueError):
            directory.read(foreign)
    with open(tmp_path / "made" / entry(3)[0], "wb") as file:
        file.truncate(LIMIT + 1)
    assert directory.read(entry(3)[0]) is None


def test_what_was_not_used_for_the_longest_time_goes(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path), 5000)
    names = []
    for n in range(4):
        name, held = entry(n, 700)
        directory.write(name, held)
        os.utime(tmp_path / name, (n, n))
        names.append(name)
    directory.used(names[0])
    directory.write(*entry(9, 2000))
    kept = {e.name for e in directory.entries()}
    assert names[0] in kept and names[1] not in kept
    assert sum(e.size for e in directory.entries()) <= 5000


# ---------------------------------------------------------------------------------------------- regions
def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sin().sum()


def region() -> Any:
    return st.compile(scaled, frontend="trace", cache=True)


def runs_as_eager() -> Any:
    made, x = region(), torch.ones(3)
    assert made(x).equal(scaled(x))
    return made


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fault", ["full", "read-only", "a file", "writable by others"])
def test_a_fault_is_one_warning(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "full":
        monkeypatch.setattr(os, "fsync", no_space)
    elif fault == "read-only":
        monkeypatch.setattr(Directory, "write", lambda *_: os.close(-1))
    elif fault == "a file":
        (tmp_path / "cache").write_text("")
    else:
        (tmp_path / "cache").mkdir()
        os.chmod(tmp_path / "cache", 0o777)
    with pytest.warns(UserWarning, match="cache") as caught:
        runs_as_eager()
        runs_as_eager()
    assert len(caught) == 1
    assert not [*tmp_path.glob("cache/*")]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:40] + b"\0" + b[41:], lambda b: b + b"x"]
)
def test_what_is_damaged_is_a_miss_and_goes(damage: Any, tmp_path: Path) -> None:
    runs_as_eager()
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    made = runs_as_eager()
    assert "damaged" in made.explain() or "no file" in made.explain()
    assert [p.read_bytes() for p in (tmp_path / "cache").iterdir()] == [whole]  # another trace has written it


def test_what_says_nonsense_is_a_miss(tmp_path: Path) -> None:
    runs_as_eager()
    (path,) = (tmp_path / "cache").iterdir()
    header, (data,) = unpack(path.read_bytes())
    path.write_bytes(pack(header, [{**data, "plan": 3, "constants": {}}]))
    runs_as_eager()


def test_what_cannot_be_compared_is_not_kept(tmp_path: Path) -> None:
    @torch.library.custom_op("st_artifacts::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    library = torch.library.Library("st_artifacts", "FRAGMENT")
    library.define("thrice(Tensor x) -> Tensor")
    library.impl("thrice", lambda x: x * 3, "CompositeImplicitAutograd")
    generator, x = torch.Generator(), torch.ones(3)

    def with_operation(x: torch.Tensor) -> torch.Tensor:
        return twice(x)

    def with_kernel(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.st_artifacts.thrice(x)

    def with_generator(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3, generator=generator)

    def with_decomposition(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    def with_pass(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    def idle(graph: Any) -> None:
        pass

    options: dict[Any, Any] = {
        with_pass: {"passes": [idle]},
        with_decomposition: {"decompositions": {torch.ops.aten.gelu: lambda x, **_: x.tanh()}},
    }
    for function in (with_operation, with_kernel, with_generator, with_decomposition, with_pass):
        made = st.compile(function, frontend="trace", cache=True, **options.get(function, {}))
        made(x)
        assert "kept" in made.explain(), made.explain()
        assert not [*(tmp_path / "cache").glob("*.stc")], function
        with pytest.raises(st.ArtifactError) as caught:
            made.save(tmp_path / "file.st", x)
        assert "[0]" in str(caught.value.got) and not (tmp_path / "file.st").exists()
    library._destroy()


# ---------------------------------------------------------------------------------------------- the command
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs_as_eager()
    (path,) = (tmp_path / "cache").iterdir()
    assert main(["cache", "list"]) == 0 and "scaled" in capsys.readouterr().out
    assert main(["cache", "pack", str(tmp_path / "fleet")]) == 0
    assert main(["cache", "verify"]) == 0
    assert main(["cache", "clear"]) == 0 and not [*(tmp_path / "cache").iterdir()]
    assert main(["cache", "unpack", str(tmp_path / "fleet")]) == 0
    assert path.exists()
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["cache", "verify"]) == 1 and not path.exists()
    capsys.readouterr()
    assert main(["cache", "pack"]) == 2 and "file" in capsys.readouterr().err
    (tmp_path / "foreign").write_bytes(b"PK\3\4")
    assert main(["cache", "unpack", str(tmp_path / "foreign")]) == 2
    assert main(["cache", "list", "--directory", str(tmp_path / "foreign")]) == 2


def test_no_member_is_written_outside(tmp_path: Path) -> None:
    import zipfile

    name, held = entry(1)
    with zipfile.ZipFile(tmp_path / "fleet", "w") as packed:
        for member in ("../" + name, "/" + name, name.upper(), name.replace("-", "/"), f"{KEY}-{'a' * 16}.stc"):
            packed.writestr(member, held)
        packed.writestr(name, held)
    assert main(["cache", "unpack", str(tmp_path / "fleet")]) == 1
    assert [p.name for p in tmp_path.rglob("*.stc")] == [name]
