"""Calls that reach into the memory of a tensor, which a traced one does not have: refused at the user's line.

Some of them would end the process: nothing between Python and the memory asks whether there is any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .. import _torch
from ..errors import DataDependentError, UnsupportedError

Tensor = torch.Tensor
#: these read the numbers
_READ = frozenset({"numpy", "data_ptr", "__array__"})
#: these hand the memory to other code (``copy.copy`` and pickle by the last)
_LENT = frozenset({"__dlpack__", "to_dlpack", "share_memory_", "pin_memory", "__reduce_ex__"})
#: these run a Python function for each element
_EACH = frozenset({"apply_", "map_", "map2_"})
#: these make a nested tensor by the numbers in a padding mask (nn.TransformerEncoder)
_PADDING = frozenset({"_nested_tensor_from_mask"})
#: all methods that `refuse_memory` has an opinion of
NAMES = _READ | _LENT | _EACH | _PADDING
#: these make text of the values
TEXTS = frozenset({"__repr__", "__format__"})
_OUTSIDE = "move this part out of the region"


def refuse_memory(name: str, args: Any, line: Any) -> None:
    """Refuse a method ``name`` (one of `NAMES`) of a traced tensor, if it needs the memory; ``line()`` says where.

    Raises:
        DataDependentError, UnsupportedError: it does.
    """
    if not args or not _torch.is_fake(args[0]):
        return
    got = f"{name} on a tensor of shape {tuple(args[0].shape)}"
    if name in _READ:
        raise DataDependentError(
            f"the region reads the values inside a tensor (.{name}())",
            path=line(),
            expected="operations whose result is a tensor",
            got=got,
            fix=_OUTSIDE,
        )
    if name in _PADDING:
        raise DataDependentError(
            "nn.TransformerEncoder looks into its padding mask: where the padding is at the end, it leaves it out",
            path=line(),
            expected="an encoder that computes what is padded as well, or a call with gradients, in which it does",
            got="src_key_padding_mask in inference",
            fix="nn.TransformerEncoder(..., enable_nested_tensor=False), or encoder.use_nested_tensor = False",
        )
    if name in _EACH:
        raise UnsupportedError(
            f"the region calls a Python function for each element of a tensor (.{name}())",
            path=line(),
            expected="operations on whole tensors",
            got=got,
            fix=f"write the formula with operations (x.copy_(...)), or {_OUTSIDE}",
        )
    if name in _LENT:
        raise UnsupportedError(
            f"the region hands the memory of a tensor to other code (.{name}())",
            path=line(),
            expected="operations whose result is a tensor",
            got=got,
            fix=_OUTSIDE,
        )


def refuse_text(t: Tensor, line: str) -> DataDependentError:
    """The region makes text of a traced tensor, for other code than a log."""
    return DataDependentError(
        "the region formats the values inside a tensor (str(), repr(), an f-string)",
        path=line,
        expected="text that does not depend on values: the graph is made once, for all calls",
        got=f"a tensor of shape {tuple(t.shape)}",
        fix="return the tensor, and make the text outside of the region; print(x) itself shows the traced tensor",
    )


@contextlib.contextmanager
def no_capsules(recorder: Any) -> Iterator[None]:
    """``torch.utils.dlpack.to_dlpack`` refuses traced tensors while inside. No mode sees the call of it."""
    dlpack: Any = torch.utils.dlpack
    holders, real = [torch, dlpack], dlpack.to_dlpack

    def to_dlpack(t: Any) -> Any:
        refuse_memory("to_dlpack", (t,), recorder.user_line)
        return real(t)

    with contextlib.ExitStack() as stack:
        for h in holders:
            stack.enter_context(_torch.replaced_here(h, "to_dlpack", to_dlpack))
        yield
