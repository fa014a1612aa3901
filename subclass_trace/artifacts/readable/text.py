"""Values, places, specs and graphs as the text of saved source.

Raises:
    ExportError: by each function: it cannot be written; ``path`` says what.
"""

from __future__ import annotations

import enum
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
import torch.fx as fx

from ...data.graphs import group_arguments
from ...data.objects import name_of, shape_of_class
from ...data.places import may_be_called
from ...errors import ExportError
from ...partition.half import Half
from ...report.code import value_text
from ...state.place import EXPRESSIONS, Place, above, argument_text
from ...state.values import MISSING
from ...subclass.spec import SizeExpr
from ...torch_api.flags import FLAG_NAMED
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
#: steps to what no version tells
_OF_A_RUN = ("call", "cached", "weak", "fact")
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
        cls = class_text(type(value), path)
        if value.name in type(value).__members__:
            return f"{cls}[{value.name!r}]"
        return f"{cls}({literal(value.value, path)})"  # several flags
    refuse("a value", path, type(value).__qualname__)


def class_text(cls: type, path: object) -> str:
    """A class as an expression."""
    if cls in (torch.Tensor, torch.nn.Parameter):
        return "torch.Tensor" if cls is torch.Tensor else "torch.nn.Parameter"
    if "<locals>" in cls.__qualname__ or owner_of(cls) is Owner.OURS:
        refuse("a class that is not found without this process", path, cls.__qualname__)
    return f"class_of({named_text(cls)})"


def named_text(cls: type) -> str:
    """What tells a class, as arguments: its name; of a class of the user's what C code asks of it,
    too."""
    names = f"{cls.__module__!r}, {cls.__qualname__!r}"
    return names if _is_of_version(cls) else f"{names}, {shape_of_class(cls)!r}"


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
        if type(key) is dict:
            name = str(key.get("__name__"))
            loaded = vars(sys.modules[name]) is key if name in sys.modules else False
            return f"globals_of({name!r})" if loaded else None
        if isinstance(key, type) and "<locals>" not in key.__qualname__:
            return f"class_of({named_text(key)})"
        return thing_text(name_of(key))
    before = place_text(place.parent)
    if before is None:
        return None
    if place.kind == "call" and may_be_called(place.root.key):
        given = [thing_text(name_of(k)) or literal(k, place) for k in key]
        return f"{before}({', '.join(given)})"
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
    if kind == "flag":
        read = FLAG_NAMED[rest[0]].read
        kind, rest = "function", [read.__module__, read.__qualname__]
        if owner_of(read) is not Owner.TORCH or "<" in read.__qualname__:
            return None
    if kind in ("op", "packet"):
        return f"torch.ops.{'.'.join(part or 'default' for part in rest)}"
    if kind in ("class", "function", "attribute"):
        if "<locals>" in rest[1] or owner_of_name(rest[0]) is Owner.OURS:
            return None
        return f"class_of({', '.join(map(repr, rest))})"
    if kind == "member" and (owner := thing_text(rest[0])) is not None:
        return f"own({owner}, {rest[1]!r})"
    if kind == "builtin of":
        return f"class_of({rest[0][1]!r}, {f'{rest[0][2]}.{rest[1]}'!r})"
    return None


def is_of_torch(place: Place) -> bool:
    """Does the version of torch, or of Python, say what stands there? Not of what a call gives, or
    of what things of the user's are asked."""
    if place.root.kind != "const":
        return False
    keys = (k for at in above(place) for k in (at.key if type(at.key) is tuple else (at.key,)))
    return not any(at.kind in _OF_A_RUN for at in above(place)) and all(map(_is_of_version, keys))


def _is_of_version(thing: Any) -> bool:
    if type(thing) is dict:
        return owner_of_name(str(thing.get("__name__"))) is not Owner.USER
    if type(getattr(thing, "__module__", None)) is not str:
        return type(thing) in _ATOMS or owner_of(type(thing)) is not Owner.USER
    made = "<locals>" in getattr(thing, "__qualname__", "")
    return not made and owner_of(thing) is not Owner.USER


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
