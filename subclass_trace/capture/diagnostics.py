"""What a capture tells its user: what reads memory, and torch's errors as typed ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import DataDependentError, SubclassTraceError, UnsupportedError
from ..torch_api.fakes import DATA_DEPENDENT_ERRORS, NO_FAKE_KERNEL
from ..torch_api.kinds import is_fake
from ..torch_api.owners import TORCH_FILES
from .user_code import tracebacks, user_line

Tensor = torch.Tensor
_OUTSIDE = "move this part out of the region"


# ---- calls that need memory
_READS = (
    DataDependentError,
    "values-read",
    "the region reads the values inside a tensor (.{}())",
    _OUTSIDE,
)
_LENDS = (
    UnsupportedError,
    "memory-lent",
    "the region hands the memory of a tensor to other code (.{}())",
    _OUTSIDE,
)
_EACH = (
    UnsupportedError,
    "function-for-each-element",
    "the region calls a Python function for each element of a tensor (.{}())",
    _OUTSIDE,
)
_PADDED = (
    "nn.TransformerEncoder looks into its padding mask, and leaves out what is padded at the end"
)
#: method -> the error, its code, what it does, and what helps
MEMORY: dict[str, tuple[type[UnsupportedError], str, str, str]] = {
    **dict.fromkeys(("numpy", "__array__"), _READS),
    "data_ptr": (
        *_READS[:3],
        "make a kernel of your own (Triton's, say) an operation by torch.library.custom_op",
    ),
    **dict.fromkeys(
        ("__dlpack__", "to_dlpack", "share_memory_", "pin_memory", "__reduce_ex__", "__deepcopy__"),
        _LENDS,
    ),
    **dict.fromkeys(("apply_", "map_", "map2_"), _EACH),
    "_nested_tensor_from_mask": (
        UnsupportedError,
        "padding-looked-at",
        _PADDED,
        "encoder.use_nested_tensor = False",
    ),
}
#: these make text of the values
TEXTS = frozenset({"__repr__", "__format__"})


def refuse_memory(name: str, args: Any, line: Callable[[], str | None]) -> None:
    """Refuse a method ``name`` (of `MEMORY`) of a traced tensor; ``line()`` says where."""
    if args and is_fake(args[0]):
        cls, code, what, fix = MEMORY[name]
        expected, got = (
            "operations on whole tensors",
            f"{name} on a tensor of shape {tuple(args[0].shape)}",
        )
        raise cls(what.format(name), code=code, path=line(), expected=expected, got=got, fix=fix)


def refuse_text(t: Tensor, line: str) -> DataDependentError:
    """The region makes text of a traced tensor."""
    return DataDependentError(
        "the region formats the values inside a tensor (str(), repr(), an f-string, print())",
        code="text-of-values",
        path=line,
        got=f"a tensor of shape {tuple(t.shape)}",
        fix="return the tensor, and make the text outside of the region",
    )


# ---- errors
@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """What torch raises for code that no trace can follow becomes a typed error with the user's
    line, by its class."""
    try:
        yield
    except SubclassTraceError:
        raise
    except DATA_DEPENDENT_ERRORS as error:
        raise refusal_of_data(error) from error
    except NO_FAKE_KERNEL as error:
        raise _has_no_fake_kernel(error) from error
    except (RuntimeError, AssertionError) as error:
        # DTensor raises another error from it
        if isinstance(error.__cause__, DATA_DEPENDENT_ERRORS):
            raise refusal_of_data(error) from error
        if "from the 'Sparse" in (told := str(error)) and "Meta' backend" in told:
            raise UnsupportedError(
                "the region computes with a sparse tensor, of which there are no fakes for this",
                code="kind-of-tensor",
                path=user_line(error),
                got=told.split(" with arguments")[0],
            ) from error
        # Of fake tensors, of operators of the user's, and of collectives that cannot be traced.
        if _raised_by_torch(error, "_subclasses", "_library", os.path.join("distributed", "nn")):
            raise _has_no_fake_kernel(error) from error
        raise


def _raised_by_torch(error: BaseException, *folders: str) -> bool:
    """Was it raised by torch's Python code in one of these folders?"""
    last = list(tracebacks(error))[-1:]
    begin = tuple(TORCH_FILES + folder for folder in folders)
    return any(tb.tb_frame.f_code.co_filename.startswith(begin) for tb in last)


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _has_no_fake_kernel(error: BaseException) -> UnsupportedError:
    # of what Dynamo refuses, too: an operator; efficient zeros under vmap, whose fakes get the
    # device "meta"
    anywhere = _raised_by_torch(error, "_library") or "same device" in str(error)
    return UnsupportedError(
        f"the region uses what has no kernel for fake tensors: {_told(error)}",
        code="no-fake-kernel-at-all" if anywhere else "no-fake-kernel",
        path=user_line(error),
        expected="operations that can be traced without data, on tensors of this trace",
        got=type(error).__name__,
        fix="register a fake kernel (torch.library.register_fake, or .register_fake of a "
        "custom_op), keep no tensors of "
        "another trace in Python state, or move this part out of the region",
    )


def refusal_of_data(error: BaseException, line: str | None = None) -> UnsupportedError:
    """The refusal for an error of torch's that says that code needs to know what is inside of a
    tensor.

    ``line``: of the user's code, where the error has not come through it yet.
    """
    line = user_line(error) or line
    if getattr(error, "func", None) is torch.ops.aten.linalg_lstsq.default:
        return UnsupportedError(
            "the sizes of what linalg_lstsq returns depend on the values inside a tensor",
            code="sizes-from-values",
            path=line,
        )
    return DataDependentError(
        "the region's control flow or sizes depend on the values inside a tensor",
        code="control-flow-on-values",
        path=line,
        expected="sizes and branches that follow from the inputs' metadata; such a number may be "
        "computed with, compared, "
        "returned, and be a size, but not be branched on, sorted by, or be an index of a list",
        got="a number from inside a tensor (.item(), int(x)) where Python needs its value"
        if "data-dependent expression" in str(error)
        else _told(error),
        fix=f"use torch.where or torch.cond, or {_OUTSIDE}",
    )


def refuse_branch(t: Tensor, line: str | None) -> DataDependentError:
    """Control flow that hangs on a value inside a tensor."""
    return DataDependentError(
        "the region branches on the value inside a tensor (`if`, `while`, `and`, `assert` or "
        "bool() of a tensor)",
        code="branch-on-value",
        path=line,
        expected="branches that follow from Python values and sizes: the graph is made once, for "
        "all values",
        got=f"a tensor of shape {tuple(t.shape)}",
        fix="choose with torch.where(condition, a, b), branch with torch.cond, or compute the "
        "condition outside "
        "of the region and pass it as a Python bool, which is guarded",
    )
