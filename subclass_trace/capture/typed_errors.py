"""What torch raises while a region is captured, as a typed error with the user's line and what to do instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import _torch
from ..errors import DataDependentError, NeedsEager, SubclassTraceError, UnsupportedError
from ..subclass.protocol import is_traceable
from .distributed_calls import named_distributed_calls
from .memory import no_capsules
from .user_code import is_user_code, quoted, tracebacks, user_line

_OPTIMIZERS = str(Path(torch.optim.__file__).parent)

#: operations whose result no number of the graph could describe
_IN_EAGER = (torch.ops.aten.linalg_lstsq.default,)

#: parts of torch's messages for tensors without memory
_READS_MEMORY = (
    ".numpy()",
    ".tolist()",
    "data_ptr",
    "Not available for 'meta' device type",
    "only available on CPU",
    "its data is not allocated yet",
)

#: what torch says of an operator of the user's that has kernels for real tensors only
_NO_FAKE_IMPLEMENTATION = "There was no fake impl registered for"


#: what torch says of a wrapper, whose device is a real one, and a traced dense tensor
_FAKE_STORAGE = 'to a storage on different device "meta"'


@contextlib.contextmanager
def typed_errors(recorder: Any) -> Iterator[None]:
    """What torch raises for data-dependent code becomes a typed error with the user's line."""
    try:
        with named_distributed_calls(), no_capsules(recorder):
            yield
    except (DataDependentError, TypeError, *_torch.DATA_DEPENDENT_ERRORS) as error:
        formula = _optimizer_at_work(error)
        if formula is not None:  # TypeError: its list of numbers is a list of tensors while it is traced
            raise _reads_step_counters(formula, error) from error
        optimizer = None if isinstance(error, TypeError) else _stepping_optimizer(error)
        if optimizer is not None:
            raise _branches_in_step(optimizer, error) from error
        kernel = _triton_kernel_at_work(error)
        if kernel is not None:
            raise _launches(kernel, error) from error
        if not isinstance(error, _torch.DATA_DEPENDENT_ERRORS):
            raise
        raise _depends_on_data(error) from error
    except SubclassTraceError:
        raise
    except _torch.NO_FAKE_KERNEL as error:
        raise _has_no_fake_kernel(str(error), error) from error
    except RuntimeError as error:
        if isinstance(error.__cause__, _torch.DATA_DEPENDENT_ERRORS):  # DTensor raises another error from it
            raise _depends_on_data(error) from error
        text = " ".join(str(error).split())[:300]
        if "ArrayRef expected to contain only concrete integers" in text:
            raise _depends_on_data(error) from error
        if _NO_FAKE_IMPLEMENTATION in text:
            raise _has_no_fake_kernel(text.partition("<")[2].partition(">")[0] or text, error) from error
        if "is not supported under torch.compile" in text and "torch.distributed" in text:
            raise _without_functional_form(text, error) from error
        if "directly modify sizes for customized tensor" in text:
            raise UnsupportedError(
                "torch cannot resize a wrapper whose sizes are symbols",
                path=user_line(error),
                expected="sizes that are numbers",
                got="resize_ of a wrapper of sizes that differ between calls",
                fix="make a new wrapper (x.reshape(...)), or compile with dynamic=False",
            ) from error
        if _FAKE_STORAGE in text:
            raise NeedsEager(
                "torch gives a wrapper the storage of a dense tensor, which in a trace has none",
                path=user_line(error),
                expected="x.set_(y) where both are of one class",
                got=text,
                fix="call set_ on the inner tensors, or outside of the region",
            ) from error
        if not any(t in text for t in _READS_MEMORY):
            raise
        raise DataDependentError(
            "the region reads the values inside a tensor (.numpy(), .tolist(), data_ptr(), its storage)",
            path=user_line(error),
            expected="operations whose result is a tensor",
            got=text,
            fix="move this part out of the region (torch.stack makes a tensor of tensors)",
        ) from error
    except AssertionError as error:
        if "fake mode" not in str(error):
            raise
        raise UnsupportedError(
            "the region met a tensor of another trace",
            path=user_line(error),
            got=" ".join(str(error).split())[:300],
            fix="do not keep tensors from inside a region in Python state that another region reads",
        ) from error


def _has_no_fake_kernel(operation: str, error: BaseException) -> UnsupportedError:
    return UnsupportedError(
        f"the region uses an operation that has no kernel for fake tensors: {operation}",
        path=user_line(error),
        expected="operations that can be traced without data",
        got=" ".join(str(error).split())[:300],
        fix="register a fake kernel for it (torch.library.register_fake, or .register_fake of a custom_op), or move this "
        "part out of the region",
    )


def _without_functional_form(text: str, error: BaseException) -> UnsupportedError:
    return UnsupportedError(
        "the region calls a collective of torch.distributed.nn.functional",
        path=user_line(error),
        expected="torch.distributed.all_reduce and its siblings, or torch.distributed._functional_collectives",
        got=text,
        fix="use those of torch.distributed._functional_collectives (all_reduce_autograd and the like have gradients), "
        "or call it outside of the region",
    )


def _depends_on_data(error: BaseException) -> UnsupportedError:
    cls = _class_at_work(error)
    whose = "the region's control flow or sizes" if cls is None else f"control flow or sizes inside {cls}"
    values = f"values of {cls} in eager, outside of the region: its own code reads what is inside tensors"
    elsewhere = "use torch.where or torch.cond, or move this part out of the region"
    line = user_line(error)
    if getattr(error, "func", None) in _IN_EAGER:
        return NeedsEager(
            f"the sizes of what {getattr(error, 'func', None)} returns depend on the values inside a tensor",
            path=line,
            expected="sizes that follow from the inputs' metadata",
            fix="move this part out of the region",
        )
    got = " ".join(str(error).split())[:300]
    if cls is None and "data-dependent expression" in got:
        code = quoted(line)
        got = (
            f"a number from inside a tensor (.item(), int(x)) where Python needs its value{f': {code}' if code else ''}"
        )
    return DataDependentError(
        f"{whose} depend on the values inside a tensor",
        path=line,
        expected="sizes and branches that follow from the inputs' metadata; such a number may be computed with, compared, "
        "returned, and be a size, but not be branched on, sorted by, or be an index of a list",
        got=got,
        fix=elsewhere if cls is None else f"use {values}",
    )


def _class_at_work(error: BaseException) -> str | None:
    """The name of the wrapper class in whose ``__torch_dispatch__`` or ``__torch_function__`` the error was raised."""
    found = None
    for tb in tracebacks(error):
        cls = tb.tb_frame.f_locals.get("cls")
        method = "__torch_" in tb.tb_frame.f_code.co_name
        if method and isinstance(cls, type) and is_traceable(cls):
            found = cls.__qualname__
    return found


def _reads_step_counters(formula: str, error: BaseException) -> DataDependentError:
    """Every optimizer has a form over tensors alone, which torch keeps for CUDA graphs and for Dynamo."""
    return DataDependentError(
        f"torch.optim's {formula} computes with the numbers inside its step counters",
        path=user_line(error),
        expected="a formula over tensors: the graph is made once, for all steps",
        got=_line_of_optimizer(error),
        fix="call the optimizer's step() after the region, or compile that alone: torch.compile(optimizer.step, "
        'backend="subclass_trace"); in a region, capturable=True is taken on all devices (by eager mode not on a CPU)',
    )


def _line_of_optimizer(error: BaseException) -> str:
    """Torch's line that needs the numbers."""
    rows = (f"{tb.tb_frame.f_code.co_filename}:{tb.tb_lineno}" for tb in tracebacks(error))
    line = [row for row in rows if row.startswith(_OPTIMIZERS)][-1]
    return f"{line.removeprefix(_OPTIMIZERS)[1:]}: {quoted(line)}"


def _branches_in_step(optimizer: str, error: BaseException) -> DataDependentError:
    return DataDependentError(
        f"the step of torch.optim's {optimizer} branches on the values inside tensors",
        path=user_line(error),
        expected="steps that follow from the metadata of parameters: the graph is made once, for all values",
        got=_line_of_optimizer(error),
        fix="call step() outside of the region; what it calls to compute the loss (its closure) may be a region",
    )


def _stepping_optimizer(error: BaseException) -> str | None:
    """The class of an optimizer of torch's in whose own code the error was raised."""
    found = None
    for tb in tracebacks(error):
        code, self = tb.tb_frame.f_code, tb.tb_frame.f_locals.get("self")
        if code.co_filename.startswith(_OPTIMIZERS) and isinstance(self, torch.optim.Optimizer):
            found = type(self).__qualname__
        elif is_user_code(code):  # which it calls
            found = None
    return found


def _optimizer_at_work(error: BaseException) -> str | None:
    """The function of ``torch.optim`` that was called with ``capturable=False``, and raised the error."""
    for tb in tracebacks(error):
        frame = tb.tb_frame
        if frame.f_code.co_filename.startswith(_OPTIMIZERS) and frame.f_locals.get("capturable") is False:
            return frame.f_code.co_name
    return None


def _launches(kernel: str, error: BaseException) -> UnsupportedError:
    """Triton asks each tensor for its address, which a fake one does not have."""
    return UnsupportedError(
        f"the region launches the Triton kernel {kernel}",
        path=user_line(error),
        expected="operations, which are nodes of the graph",
        got="a kernel that takes the addresses of tensors",
        fix="make an operation of the function that launches it, with torch.library.custom_op and register_fake",
    )


def _triton_kernel_at_work(error: BaseException) -> str | None:
    """The name of the kernel in whose launch the error was raised."""
    for tb in tracebacks(error):
        frame = tb.tb_frame
        if str(frame.f_globals.get("__name__")).partition(".")[0] == "triton":
            kernel = getattr(frame.f_locals.get("self"), "fn", None)
            if kernel is not None:
                return str(getattr(kernel, "__name__", None) or type(kernel).__name__)
    return None
