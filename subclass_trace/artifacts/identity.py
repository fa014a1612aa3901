"""What a file belongs to besides what a description compares: libraries, the table of
decompositions; and the key by which a cache finds candidates.

A key only finds: whatever it finds is bound, and compared in full. So it may leave out what is
compared there, and holds
what is compared nowhere else: the code of this package above all.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import passes
from ..data.describe import versions
from ..data.objects import fingerprint, fingerprint_of_class
from ..errors import ArtifactError
from ..options import Options
from ..partition.min_cut import MinCut
from ..torch_api.lines import is_user_code
from ..torch_api.owners import Owner, owner_of
from ..torch_api.ranks import rank_and_size

#: namespaces of operations that torch itself registers: its version tells what they do
_OF_TORCH = frozenset(
    (
        "subclass_trace",  # ours: see `data.describe.versions`
        *(
            "aten",
            "prim",
            "prims",
            "quantized",
            "c10d",
            "_c10d_functional",
            "_c10d_functional_autograd",
            "_dtensor",
        ),
        *(
            "inductor",
            "mkldnn",
            "mkl",
            "onednn",
            "fsdp",
            "rngprims",
            "debugprims",
            "profiler",
            "symm_mem",
        ),
    )
)
#: kinds of names that begin with a Python module; see `data.objects`
_OF_MODULES = frozenset(("class", "function", "attribute", "module", "globals"))


def header_of(
    function: Any, options: Options, descriptions: list[dict[str, Any]]
) -> dict[str, Any]:
    """What a file says of itself, for `compare`. ``function``: for people."""
    libraries = sorted({name for data in descriptions for name in _libraries(data)})
    found = {name: version for name in libraries if (version := version_of(name)) is not None}
    devices = sorted({name for data in descriptions for name in _devices(data["plan"])})
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return {
        "function": name,
        "versions": versions(),
        "table": _table_digest(options),
        "libraries": found,
        "devices": {name: said for name in devices if (said := device_of(name)) is not None},
    }


def compare(header: Mapping[str, Any], options: Options) -> None:
    """May the file of this header serve here?

    Raises:
        ArtifactError: no; ``path`` says what differs.
    """
    rows: tuple[tuple[str, object], ...]
    rows = (("versions", versions()), ("table", _table_digest(options)))
    for field, now_of in (("libraries", version_of), ("devices", device_of)):
        table = header.get(field)
        for name, known in table.items() if isinstance(table, dict) else ():
            if known != (here := now_of(str(name))):
                raise ArtifactError(
                    f"the file was {_MADE[field]}", path=f"{field}.{name}", expected=known, got=here
                )
    for name, now in rows:
        if header.get(name) != now:
            raise ArtifactError(
                f"the file was {_MADE[name]}", path=name, expected=header.get(name), got=now
            )


_MADE = {
    "versions": "made by other versions of torch, Python or this package",
    "libraries": "made with another version of a library",
    "devices": "made for another device",
    "table": "made with another table of decompositions",
}


def version_of(library: str) -> str | None:
    """Of a library that is loaded."""
    found = getattr(sys.modules.get(library), "__version__", None)
    return None if found is None else str(found)


def device_of(name: str) -> str | None:
    """What a GPU is, whose kind decides which kernels a trace has met; None: there is none, or it
    is none."""
    if not name.startswith("cuda") or not torch.cuda.is_available():
        return None
    try:
        known = torch.cuda.get_device_properties(name)
    except (AssertionError, RuntimeError, ValueError):  # fewer of them
        return None
    return f"{known.name} {known.major}.{known.minor}"


def _devices(plan: Any) -> Iterator[str]:
    """The devices that a plan names."""
    waiting = [plan]
    while waiting:
        at = waiting.pop()
        if isinstance(at, list):
            if len(at) == 2 and at[0] == "device" and isinstance(at[1], str):
                yield at[1]
            waiting += at


def _libraries(data: Any) -> Iterator[str]:
    """The libraries, besides torch, of which a description names something. Its graphs name
    operations alone."""
    waiting = [data[name] for name in ("places", "classes", "plan", "guards", "templates")]
    while waiting:
        at = waiting.pop()
        if isinstance(at, list):
            if len(at) > 1 and type(at[0]) is type(at[1]) is str and at[0] in _OF_MODULES:
                yield at[1].partition(".")[0]
            waiting += at
        elif isinstance(at, dict):
            waiting += at.values()
    yield from _namespaces(data)


def _namespaces(data: Any) -> Iterator[str]:
    halves = [
        data["forward"],
        *(b["half"] for b in (data["backwards"] or {"compiled": ()})["compiled"]),
    ]
    waiting: list[Any] = [entry for half in halves for entry in half["body"]]
    while waiting:
        target = waiting.pop()[0]
        if target[0] == "op":
            yield target[1]


def unseen(options: Options, data: Any = None) -> str | None:
    """What decides a trace, or what its graph does, and is compared by nobody; None: all is.

    Args:
        data: a description.
    """
    for op, f in options.table(options.resolve_backend()).items():
        if not _is_of_torch(f) and (
            op in options.decompositions or version_of(_library_of(f)) is None
        ):
            return f"decompositions[{op}]: the code of a decomposition is not compared"
    if not isinstance(options.partitioner, (str, MinCut, type(None))):
        return "partitioner: the code of a partitioner is not compared"
    for choice in options.passes:
        code = getattr(run := passes.resolve(choice), "__code__", None)
        told = isinstance(choice, str) or not getattr(run, "__closure__", None)
        if code is None or is_user_code(code) or not told:
            return (
                f"passes: the code of {passes.name_of(run)}, or what it was made with, is not "
                "compared"
            )
    for name in {*_namespaces(data)} - _OF_TORCH if data is not None else ():
        if version_of(name) is None:
            return f"torch.ops.{name}: the code of an operation of one's own is not compared"
    return None


def _library_of(f: Any) -> str:
    return str(getattr(f, "__module__", "")).partition(".")[0]


def _is_of_torch(f: Any) -> bool:
    """Does torch's version, or the code of this package, say what a decomposition does?"""
    if isinstance(f, functools.partial):
        return _is_of_torch(f.func)
    code = getattr(f, "__code__", None)
    own = (
        owner_of(type(f)) in (Owner.TORCH, Owner.PYTHON) if code is None else not is_user_code(code)
    )
    return own and (not hasattr(f, "__wrapped__") or _is_of_torch(f.__wrapped__))


def _table_digest(options: Options) -> str:
    table = options.table(options.resolve_backend())
    named = (
        (
            op,
            getattr(f, "__module__", ""),
            getattr(f, "__qualname__", f),
            version_of(_library_of(f)),
        )
        for op, f in table.items()
    )
    rows = sorted(" ".join(map(str, row)) for row in named)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


# ---- the key
def keys_of(function: Callable[..., Any], options: Options) -> dict[int | None, str]:
    """By what a cache finds candidates for a region, each 40 hexadecimal digits: those of this
    rank alone (rank -> key), and those of each rank (None -> key)."""
    here = rank_and_size()
    rows = [
        versions(),
        package_digest(),
        options.of_a_trace(),
        _table_digest(options),
        None if here is None else here[1],
        [*_identity(function)],
    ]

    def key(rank: int | None) -> str:
        return hashlib.sha256(json.dumps([*rows, rank]).encode()).hexdigest()[:40]

    return {rank: key(rank) for rank in (None, *(here or ())[:1])}


@functools.cache
def package_digest() -> str:
    """A digest of the code of this package."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _identity(function: Any) -> Iterator[str]:
    """What of a function or module is the same in another process, without what can only be told by
    a comparison."""
    if isinstance(function, torch.nn.Module):
        classes = {cls: _class(cls) for cls in {type(module) for module in function.modules()}}
        for name, module in function.named_modules():
            yield f"{name}: {classes[type(module)]}"
        for name, t in (*function.named_parameters(), *function.named_buffers()):
            yield f"{name}: {type(t).__qualname__} {t.dtype} {[*t.shape]} {t.requires_grad}"
    elif isinstance(function, types.MethodType):
        yield from _identity(function.__func__)
        yield from _identity(function.__self__)
    elif isinstance(function, functools.partial):
        yield from _identity(function.func)
    elif isinstance(function, types.FunctionType):
        yield f"{function.__module__}.{function.__qualname__} {fingerprint(function.__code__)}"
        for cell in function.__closure__ or ():
            held = _held(cell)
            yield from (
                _identity(held) if isinstance(held, torch.nn.Module) else (type(held).__qualname__,)
            )
    else:
        yield _class(type(function))


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _class(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__} {fingerprint_of_class(cls)}"
