"""Programs that Dynamo itself refuses, whatever the back end: the rows of a table in docs/dynamo.md."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from compare import dense, two
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

import subclass_trace as st
from subclass_trace.errors import SubclassTraceError
from subclass_trace.zoo import Constant


@dataclass(frozen=True)
class Refused:
    """A program, what the table calls it, and a part of Dynamo's message (``earlier``: of those before torch 2.13)."""

    what: str
    function: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    error: str
    package: str = "torch"
    dynamic: bool | None = None
    earlier: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Can the program be made here?"""
        return importlib.util.find_spec(self.package) is not None


class Labelled(torch.Tensor):
    """One inner tensor, and any object as context."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, label: Any) -> Labelled:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor, label: Any) -> None:
        self.inner, self.label = inner, label

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self.label

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], label: Any, size: Any, stride: Any) -> Labelled:
        return Labelled(inner["inner"], label)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        label = next(a.label for a in args if isinstance(a, Labelled))
        out = func(*(a.inner if isinstance(a, Labelled) else a for a in args), **(kwargs or {}))
        return cls(out, label) if isinstance(out, torch.Tensor) else out


class NoAnswer:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no answer")

    __hash__ = object.__hash__


def masked() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


def observer() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.gptq.observer import GPTQObserverTensor
    return torch.randn(2, 8), GPTQObserverTensor.from_hp(torch.randn(8, 8))


SAME_FRAME = "Guard failed on the same frame it was created"
NO_WRAPPER = "Expected FakeTensor, got"
PROGRAMS = {
    "no inner tensor": Refused(
        "a wrapper without any inner tensor",
        lambda x: x * 2,
        lambda: (Constant(2.0, (3, 3)),),
        "`tensor` needs to be a `FakeTensor`",
        earlier=("got mixed fake and real tensors",),
    ),
    "no inner tensor, symbolic sizes": Refused(
        "the same with `dynamic=True`",
        lambda x: x + 1,
        lambda: (Constant(2.0, (3, 4)),),
        "Expect size to be a plain tuple of ints",
        dynamic=True,
        earlier=("got mixed fake and real tensors", "created from an shape env other than current one"),
    ),
    "context without equality": Refused(
        "a context that is not equal to a copy of itself (an object compared by identity)",
        lambda x: x * 2,
        lambda: (Labelled(torch.ones(3), object()),),
        SAME_FRAME,
    ),
    "array in a tuple": Refused(
        "a context with a numpy array inside a tuple",
        lambda x: x * 2,
        lambda: (Labelled(torch.ones(3), (np.arange(3),)),),
        SAME_FRAME,
    ),
    "context that cannot be compared": Refused(
        "a context whose `==` raises", lambda x: x * 2, lambda: (Labelled(torch.ones(3), NoAnswer()),), SAME_FRAME
    ),
    "cond over wrappers": Refused(
        "`cond` over wrappers, on which Dynamo runs it as wrappers of fake tensors",
        lambda x, p: torch.cond(p, lambda x: x.sin(), lambda x: x.cos() * 2, (x,)),
        lambda: (two(4), torch.tensor(True)),
        "fake tensor",
        earlier=(NO_WRAPPER,),
    ),
    "scan over wrappers": Refused(
        "`scan` over wrappers",
        lambda c, x: scan(lambda c, x: (c * x, (c + x).sin()), c, x),
        lambda: (two(3), two(5, 3)),
        "scan",
    ),
    "while_loop over wrappers": Refused(
        "`while_loop` over wrappers",
        lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1],
        lambda: (two(3, grad=False),),
        "traceable wrapper subclasses",
        earlier=(NO_WRAPPER, "no rule registered"),
    ),
    "a masked tensor": Refused("a `MaskedTensor`", lambda x: x * 2, lambda: (masked(),), "[Mm]asked"),
    "a class that branches on values": Refused(
        "a class whose code branches on values (torchao's GPTQ observer)",
        torch.nn.functional.linear,
        observer,
        "data-dependent",
        package="torchao",
    ),
    "flex attention with gradients on a CPU": Refused(
        "gradients of `flex_attention` on a CPU",
        lambda q: flex_attention(q, q, q),
        lambda: (dense(1, 2, 16, 8),),
        "does not support backward on CPU",
    ),
}


def through_dynamo(program: Refused, backend: str) -> Exception | None:
    """What Dynamo raises, if it does."""
    torch.compiler.reset()
    compiled = torch.compile(program.function, backend=backend, fullgraph=True, dynamic=program.dynamic)
    try:
        compiled(*program.make())
    except Exception as error:
        return error
    return None


def functionally(program: Refused) -> str:
    """The cell of the table for `st.compile`: "runs" (and the type of the result is that of eager), or an error."""
    try:
        got = st.compile(program.function, dynamic=bool(program.dynamic))(*program.make())
    except SubclassTraceError as error:
        return f"`{type(error).__name__}`"
    except Exception as error:
        return f"`{type(error).__name__}`, as in eager" if _fails_in_eager(program) else f"`{type(error).__name__}`"
    assert type(got) is type(program.function(*program.make()))
    return "runs"


def _fails_in_eager(program: Refused) -> bool:
    torch.compiler.reset()
    try:
        out = program.function(*program.make())
        torch.autograd.backward([out], [torch.ones_like(out)])
    except Exception:
        return True
    return False


def row(program: Refused) -> str:
    """A line of the table."""
    found = through_dynamo(program, "eager")
    assert found is not None
    shown = program.error.replace("[Mm]", "M").replace("`", "")
    return f"| {program.what} | `{type(found).__name__}`: {shown} | {functionally(program)} |"
