"""Values, places, specs and graphs as the text of saved source.

Raises:
    ExportError: by each function: it cannot be written; ``path`` says what.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
import torch.fx as fx

from ...data.graphs import group_arguments
from ...data.objects import name_of
from ...errors import ExportError
from ...partition.half import Half
from ...report.code import value_text
from ...state.place import EXPRESSIONS, Place, argument_text
from ...state.values import MISSING
from ...subclass.spec import SizeExpr
from ...torch_api.kinds import is_dense, is_lazy
from ...torch_api.operators import OpOverload
from ...torch_api.owners import Owner, owner_of, owner_of_name
from ...torch_api.symbols import expression_source

Names = Mapping[Any, str]
_ATOMS = (bool, int, str, bytes, type(None), type(...))
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_READS = {
    "attr": "attribute",
    "item": "item",
    "getattr": "by_class",
    "lookup": "lookup",
    "own": "own",
}
_MODULES = {"_operator": "operator", "math": "math", "torch": "torch", "builtins": ""}


def refuse(what: str, path: object, got: object = None) -> NoReturn:
    """It cannot be written."""
    fix = "save() writes a file that binds it with this package"
    raise ExportError(
        f"{what} cannot be written as source", path=str(path), got=got, fix=fix
    ) from None


def literal(value: Any, path: object) -> str:
    """A value as an expression."""
    if type(value) in _ATOMS:
        return repr(value)
    if type(value) is float:
        return repr(value)  # inf and nan are names of the file
    if type(value) is complex:
        return f"complex({value.real!r}, {value.imag!r})"
    if type(value) in _OF_TORCH:
        return str(value)
    if type(value) is torch.device:
        return f"device({str(value)!r})"
    if type(value) is torch.Size:
        return f"torch.Size({[*value]})"
    if type(value) in (list, tuple):
        inner = "".join(f"{literal(v, path)}, " for v in value)
        return f"[{inner}]" if type(value) is list else f"({inner})"
    if type(value) is dict:
        rows = (f"{literal(k, path)}: {literal(v, path)}" for k, v in value.items())
        return f"{{{', '.join(rows)}}}"
    if value is MISSING:
        return "MISSING"
    if isinstance(value, enum.Enum):
        return f"{class_text(type(value), path)}.{value.name}"
    refuse("a value", path, type(value).__qualname__)


def class_text(cls: type, path: object) -> str:
    """A class as an expression."""
    if cls in (torch.Tensor, torch.nn.Parameter):
        return "torch.Tensor" if cls is torch.Tensor else "torch.nn.Parameter"
    if "<locals>" in cls.__qualname__ or owner_of(cls) is Owner.OURS:
        refuse("a class that is not found without this process", path, cls.__qualname__)
    return f"class_of({cls.__module__!r}, {cls.__qualname__!r})"


# ---- places
def place_text(place: Place) -> str | None:
    """What stands at a place of a call, as an expression over ``f``, ``args`` and ``kwargs``; None
    where that is code, or a thing of a process."""
    key = place.key
    if place.parent is None:
        if place.kind == "self":
            return "f"
        if place.kind == "arg":
            return argument_text(key)
        if type(key) is dict and type(key.get("__name__")) is str:
            return f"globals_of({key['__name__']!r})"
        if isinstance(key, type) and "<locals>" not in key.__qualname__:
            return f"class_of({key.__module__!r}, {key.__qualname__!r})"
        return None
    before = place_text(place.parent)
    if before is None:
        return None
    if place.kind in EXPRESSIONS:
        return EXPRESSIONS[place.kind].format(before, key)
    read = _READS.get(place.kind)
    if read is None:
        return None
    plain = type(key) in (*_ATOMS, *_OF_TORCH, torch.device) or isinstance(key, enum.Enum)
    text = literal(key, place) if plain else thing_text(name_of(key))
    return None if text is None else f"{read}({before}, {text})"


def thing_text(name: Any) -> str | None:
    """A thing that has a name (`data.objects.name_of`), as an expression."""
    kind, *rest = name or [None]
    if kind in ("op", "packet"):
        return f"torch.ops.{'.'.join(part or 'default' for part in rest)}"
    if kind in ("class", "function", "attribute"):
        return f"class_of({rest[0]!r}, {rest[1]!r})"
    if kind in ("member", "builtin of"):
        return f"class_of({rest[0][1]!r}, {f'{rest[0][2]}.{rest[1]}'!r})"
    return None


def is_of_torch(place: Place) -> bool:
    """Does the version of torch, or of Python, say what stands there?"""
    key = place.root.key
    if place.root.kind != "const":
        return False
    if type(key) is dict:
        return owner_of_name(str(key.get("__name__"))) is not Owner.USER
    return owner_of(key if isinstance(key, type) else type(key)) is not Owner.USER


# ---- sizes
def size_text(n: Any, symbols: Names, path: object) -> str:
    """A size as an expression over the symbols of a call."""
    if type(n) is int:
        return str(n)
    if isinstance(n, SizeExpr) and n.expr.free_symbols <= symbols.keys():
        return expression_source(n.expr, dict(symbols))
    refuse("a size that no input tells", path, n)


def sizes_text(sizes: Any, symbols: Names, path: object) -> str:
    """A tuple of them."""
    return f"({''.join(f'{size_text(n, symbols, path)}, ' for n in sizes)})"


# ---- graphs
def graph_lines(half: Half, name: str, constants: Callable[[Any, str], str]) -> Iterator[str]:
    """A program as a function of its inputs.

    Args:
        constants: a tensor of the graph, and where it stands -> its name.
    """
    half = half if half.is_plain else Half.of_module(half.module)
    yield f"def {name}({', '.join(n.name for n in half.inputs)}):"
    for node in half.body:
        path = f"{name}.{node.name}"
        if node.meta.get("left_out") or any(group_arguments(node, node.args, node.kwargs)):
            refuse("a step that may be left out, or a collective", path, node.target)
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(half.owner)
            call = constants(held, path)
        else:
            call = _call(node, half, path)
        about = value_text(node.meta.get("val"))
        yield f"    {node.name} = {call}{f'  # {about}' if about else ''}"
    outputs = [_argument(o, half, f"{name}.output") for o in half.outputs]
    yield f"    return [{', '.join(outputs)}]"


def _call(node: fx.Node, half: Half, path: str) -> str:
    given = [_argument(a, half, path) for a in node.args]
    given += [f"{k}={_argument(v, half, path)}" for k, v in node.kwargs.items()]
    return f"{_target(node.target, path)}({', '.join(given)})"


def _target(target: Any, path: str) -> str:
    if isinstance(target, OpOverload):
        if target.namespace not in ("aten", "prims", "quantized", "mkldnn"):
            refuse("an operation that torch does not have", path, target)
        return f"torch.ops.{target}"
    module = _MODULES.get(str(getattr(target, "__module__", None)))
    name = str(getattr(target, "__name__", ""))
    if module is None or not name.isidentifier():
        refuse("an operation", path, target)
    return f"{module}.{name}" if module else name


def _argument(value: Any, half: Half, path: str) -> str:
    if isinstance(value, fx.Node):
        return str(half.merged.get(value, value).name)
    if isinstance(value, (list, tuple)):
        inner = "".join(f"{_argument(v, half, path)}, " for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return f"slice({', '.join(_argument(v, half, path) for v in parts)})"
    return literal(value, path)


def constant_text(value: Any, path: str) -> str:
    """A tensor of a graph as an expression."""
    if not isinstance(value, torch.Tensor) or not is_dense(value) or is_lazy(value):
        refuse("a constant", path, type(value).__qualname__)
    if value.numel() > 1 << 16 or value.device.type != "cpu" or value.requires_grad:
        refuse("a constant of this size or kind", path, f"{value.dtype} {[*value.shape]}")
    held = value.detach().contiguous().view(torch.uint8) if value.numel() and value.dim() else None
    if held is None:
        return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"
    data = bytes(held.flatten().tolist())
    shape = f".reshape({[*value.shape]})"
    return f"torch.frombuffer(bytearray({data!r}), dtype={value.dtype}){shape}"
