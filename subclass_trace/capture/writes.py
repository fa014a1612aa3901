"""What an operation that changes its arguments writes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import torch_api
from ..errors import DataDependentError, NeedsEager, UnsupportedError
from ..subclass.protocol import is_traceable

Tensor = torch.Tensor
_OPERANDS = (Tensor, int, float, complex)


def written_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes, by its schema."""
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is None or not a.alias_info.is_write:
            continue
        value = kwargs[a.name] if a.name in kwargs else args[i] if i < len(args) else None
        for t in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(t, Tensor):
                yield t


def refuse_misfit(func: Any, args: Sequence[Any]) -> None:
    """Fake kernels let pass what real ones refuse: ``x.mul_(1j)`` of a real ``x``."""
    if torch.Tag.pointwise not in func.tags or len(args) < 2 or not all(isinstance(a, _OPERANDS) for a in args[:2]):
        return
    kind = torch.result_type(args[0], args[1])
    if not torch.can_cast(kind, args[0].dtype):
        raise RuntimeError(f"result type {kind} can't be cast to the desired output type {args[0].dtype}")


def refuse_growth(t: Tensor, func: Any, size: Any, line: str | None) -> None:
    """An argument that has got another size, as one of ``out=`` may: of a view, torch's functional form writes what the old
    size says. In place, fake kernels let pass what real ones refuse."""
    if not any(a.is_out for a in func._schema.arguments):
        raise RuntimeError(f"output with shape {list(size)} doesn't match the broadcast shape {list(t.shape)}")
    if t._is_view():
        raise NeedsEager(
            "an out= argument that is a view gets another size",
            path=line,
            expected=f"a result of shape {tuple(size)}",
            got=f"{func} with a result of shape {tuple(t.shape)}",
            fix="give it a view of the size of the result",
        )


def refuse_inference(written: Tensor) -> None:
    """Raise what eager raises for a write to an inference tensor outside of inference mode, which a fake one lets pass.

    Eager mode asks above the dispatch of wrappers: what a class does to its inner tensors there it may do.
    """
    if not written.is_inference() or torch.is_inference_mode_enabled():
        return
    if in_class_code(sys._getframe(1)):
        return
    raise RuntimeError(
        "Inplace update to inference tensor outside InferenceMode is not allowed."
        "You can make a clone to get a normal tensor before doing inplace update."
        "See https://github.com/pytorch/rfcs/pull/17 for more details."
    )


def in_class_code(frame: Any) -> bool:
    """Is this frame in what a wrapper class does for an operation?"""
    while frame is not None:
        if frame.f_code.co_name == "__torch_dispatch__":
            cls = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(cls, type) and is_traceable(cls):
                return True
        frame = frame.f_back
    return False


def parts_seen_as(func: Any) -> Any:
    """Around taking an operation apart: in inference mode its parts make views, and move version counters, as in eager."""
    if torch.is_inference_mode_enabled() and not in_class_code(sys._getframe(1)):
        return torch_api.books_kept(func)
    return contextlib.nullcontext()


def refused_write(kind: str, func: Any, written: Tensor, line: str | None) -> UnsupportedError:
    """The error for a write to memory of a ``kind`` of `_REFUSED` that others see, or of which the trace has a copy."""
    cls, what, expected, fix = _REFUSED[kind]
    return cls(what, path=line, expected=expected, got=f"{func} on a tensor of shape {tuple(written.shape)}", fix=fix)


_REFUSED: dict[str, tuple[type[UnsupportedError], str, str, str]] = {
    "late": (
        UnsupportedError,
        "the backward of the region writes to an input or a result of the region",
        "a backward that writes only to tensors of its own",
        "hand the new contents out as the gradient of that input (zoo.DelayedFP8Linear does), or call "
        "torch.autograd.grad inside the region, so that the backward is a part of it",
    ),
    "array": (
        UnsupportedError,
        "the region writes to a tensor that shares its memory with a numpy array (torch.from_numpy, torch.as_tensor)",
        "arrays that are only read",
        "pass torch.from_numpy(array) as an argument, or write to a copy: torch.tensor(array)",
    ),
    "shared": (
        DataDependentError,
        "the region writes to memory that two tensors share or not, depending on the values inside a tensor",
        "tensors of which the sizes tell whether they are views",
        "make a copy in any case, with .clone()",
    ),
}


def collective(func: Any, line: str | None) -> UnsupportedError:
    """The schemas of ``c10d`` say nothing of what is written, and a handle comes out, which no graph can hold."""
    return UnsupportedError(
        "the region calls a collective in place",
        path=line,
        expected="the functional forms in torch.distributed._functional_collectives",
        got=str(func),
        fix="call the functional form, or leave it to Dynamo, which exchanges them",
    )


def foreach_versions(func: Any, args: Sequence[Any]) -> list[tuple[Tensor, int]]:
    """The tensors that a ``_foreach_`` operation writes, with their versions, which its fake kernel does not move."""
    if not func._schema.is_mutable or not func._schema.name.startswith("aten::_foreach") or not args:
        return []
    if in_class_code(sys._getframe(1)):  # nobody counts there
        return []
    return [(t, t._version) for t in args[0] if isinstance(t, Tensor) and not t.is_inference()]
