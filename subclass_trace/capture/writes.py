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


def written_arguments(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation writes, by its schema."""
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is None or not a.alias_info.is_write:
            continue
        value = kwargs[a.name] if a.name in kwargs else args[i] if i < len(args) else None
        for t in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(t, Tensor):
                yield t


def refuse_resized_view(t: Tensor, func: Any, size: Any, line: str | None) -> None:
    """An ``out=`` argument that has got another size: of a view, torch's functional form writes what the old size says."""
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


def late_write(func: Any, written: Tensor, line: str | None) -> UnsupportedError:
    """A backward runs when its region has long returned, and only computes gradients."""
    return UnsupportedError(
        "the backward of the region writes to an input or a result of the region",
        path=line,
        expected="a backward that writes only to tensors of its own",
        got=f"{func} on a tensor of shape {tuple(written.shape)}",
        fix="hand the new contents out as the gradient of that input (zoo.DelayedFP8Linear does), or call "
        "torch.autograd.grad inside the region, so that the backward is a part of it",
    )


def array_write(func: Any, written: Tensor, line: str | None) -> UnsupportedError:
    """A numpy array is a constant of the region, compared by value."""
    return UnsupportedError(
        "the region writes to a tensor that shares its memory with a numpy array (torch.from_numpy, torch.as_tensor)",
        path=line,
        expected="arrays that are only read",
        got=f"{func} on a tensor of shape {tuple(written.shape)}",
        fix="pass torch.from_numpy(array) as an argument, or write to a copy: torch.tensor(array)",
    )


def shared_write(func: Any, written: Tensor, line: str | None) -> DataDependentError:
    """Whether another tensor shows what is written depends on a size from inside a tensor."""
    return DataDependentError(
        "the region writes to memory that two tensors share or not, depending on the values inside a tensor",
        path=line,
        expected="tensors of which the sizes tell whether they are views",
        got=f"{func} on a tensor of shape {tuple(written.shape)}",
        fix="make a copy in any case, with .clone()",
    )


def foreach_versions(func: Any, args: Sequence[Any]) -> list[tuple[Tensor, int]]:
    """The tensors that a ``_foreach_`` operation writes, with their versions, which its fake kernel does not move."""
    if not func._schema.is_mutable or not func._schema.name.startswith("aten::_foreach") or not args:
        return []
    if in_class_code(sys._getframe(1)):  # nobody counts there
        return []
    return [(t, t._version) for t in args[0] if isinstance(t, Tensor) and not t.is_inference()]


def one_of_each(t: Tensor) -> Tensor:
    """A view of an expanded tensor that has each of its elements once."""
    for d in reversed(range(t.dim())):
        if t.stride(d) == 0:
            t = t.select(d, 0)
    return t


def context_write(func: Any, written: Tensor, line: str | None) -> UnsupportedError:
    """A plain tensor in the context of an input is a value that guards compare."""
    return UnsupportedError(
        "the region writes to a plain tensor that a flatten context holds",
        path=line,
        expected="tensors in contexts that are only read",
        got=f"{func} on a tensor of shape {tuple(written.shape)}",
        fix="let __tensor_flatten__ name it among the inner tensors",
    )
