"""Only the package `subclass_trace/torch_api/` touches torch's private API, and all that it touches exists in the installed torch."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import subclass_trace
from subclass_trace.torch_api import testing
from subclass_trace.torch_api.repairs.fake_kernels import _fft_dims_are_sorted

ROOT = pathlib.Path(subclass_trace.__file__).parent
DOOR = sorted((ROOT / "torch_api").rglob("*.py"))
FILES = sorted(p for p in ROOT.rglob("*.py") if p not in DOOR)
for _path in DOOR:  # one of them defines the operations of this package
    importlib.import_module(".".join(_path.relative_to(ROOT.parent).with_suffix("").parts))
#: private by name, but torch documents them for authors of subclasses, or they are part of the protocol
ALLOWED_ATTRIBUTES = {"torch.__file__", "torch.__version__", "torch._check"}


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return None if head is None else f"{head}.{node.attr}"
    return None


def _private(dotted: str) -> bool:
    parts = dotted.split(".")
    own = dotted in ALLOWED_ATTRIBUTES
    return (
        not own
        and parts[0] in ("torch", "functorch")
        and any(p.startswith("_") and not p.endswith("__") for p in parts)
    )


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> what it is in torch, for ``import torch.x as y`` and ``from torch.x import y``."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                names[a.asname or a.name.split(".")[0]] = a.name if a.asname else a.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for a in node.names:
                names[a.asname or a.name] = f"{node.module}.{a.name}"
    return names


def private_uses(source: str) -> list[str]:
    """``line: name`` of each private torch name that a source reads, imports or sets."""
    tree = ast.parse(source)
    names = _aliases(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(node.lineno, a.name) for a in node.names if _private(a.name)}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {
                (node.lineno, f"{node.module}.{a.name}") for a in node.names if _private(f"{node.module}.{a.name}")
            }
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            if dotted is not None:
                head, _, rest = dotted.partition(".")
                full = f"{names.get(head, '?')}.{rest}"
                if _private(full):
                    found.add((node.lineno, full))
    return [f"{line}: {name}" for line, name in sorted(found)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_door_touches_private_torch(path: pathlib.Path) -> None:
    assert private_uses(path.read_text()) == []


def test_the_scan_can_fail() -> None:
    assert private_uses("import torch\ntorch._C.x") == ["2: torch._C", "2: torch._C.x"]
    assert private_uses("from torch._ops import OpOverload") == ["1: torch._ops.OpOverload"]
    assert private_uses("import torch.utils.checkpoint as c\nc._private") == ["2: torch.utils.checkpoint._private"]
    assert private_uses("import torch\ntorch.sin(x); x._version") == []


def _imports_of_the_door() -> list[tuple[str, str]]:
    rows = []
    for node in (n for path in DOOR for n in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch"):
            rows += [(node.module, a.name) for a in node.names]
    return sorted(set(rows))


@pytest.mark.parametrize(("module", "name"), _imports_of_the_door())
def test_what_the_door_imports_exists(module: str, name: str) -> None:
    found = importlib.import_module(module)
    assert hasattr(found, name) or importlib.import_module(f"{module}.{name}")


def _attributes_of_the_door() -> list[str]:
    names = set()
    for node in (n for path in DOOR for n in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)) and dotted.startswith("torch."):
            names.add(dotted)
    return sorted(names)


@pytest.mark.parametrize("dotted", _attributes_of_the_door())
def test_what_the_door_reads_exists(dotted: str) -> None:
    value = torch
    for part in dotted.split(".")[1:]:
        value = getattr(value, part)


#: what the door asks for at run time (``hasattr``, ``in``), because not every supported torch has it -> since when
SINCE: dict[str, tuple[tuple[int, int], Callable[[], bool]]] = {
    "the dimensions of a Fourier transform in the order of the real kernel": ((2, 12), _fft_dims_are_sorted),
    "opaque objects among the inner values of a DTensor": ((2, 12), lambda: testing.is_opaque_object(_mesh())),
    "ShapeEnv._replacements_version_counter": ((2, 12), lambda: hasattr(ShapeEnv(), "_replacements_version_counter")),
    "a fake kernel of aten._unique": ((2, 13), lambda: torch.ops.aten._unique.default in op_implementations_dict),
    "ShardingPropagator runs unrecorded": (
        (2, 13),
        lambda: (
            "disable_proxy_modes_tracing"
            in _sharding_prop().ShardingPropagator._propagate_tensor_meta_non_cached.__code__.co_names
        ),
    ),
    "torch.autograd.Function.boxed_grads_call": ((2, 13), lambda: hasattr(torch.autograd.Function, "boxed_grads_call")),
    "AutogradCompilerInstance.accumulate_grad takes variable_grad": (
        (2, 13),
        lambda: "variable_grad" in _parameters_of_accumulate_grad(),
    ),
}


def _sharding_prop() -> Any:
    return importlib.import_module("torch.distributed.tensor._sharding_prop")


def _mesh() -> object:
    return object.__new__(importlib.import_module("torch.distributed.device_mesh").DeviceMesh)


def _parameters_of_accumulate_grad() -> list[str]:
    compiler = importlib.import_module("torch._dynamo.compiled_autograd").AutogradCompilerInstance
    return list(inspect.signature(compiler.accumulate_grad).parameters)


@pytest.mark.parametrize("name", SINCE)
def test_what_not_every_version_has(name: str) -> None:
    """Both ways: what has appeared in a version that this table does not know, or has gone, shows here."""
    since, present = SINCE[name]
    version = tuple(int(n) for n in torch.__version__.split(".")[:2])
    assert present() is (version >= since), f"{name}: present in torch {torch.__version__} is {present()}"


def test_the_door_defines_each_name_once() -> None:
    trees = [ast.parse(path.read_text()) for path in DOOR]
    names = [n.name for tree in trees for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    assert sorted(names) == sorted(set(names))
