"""Packed sequences in a region: `pack_padded_sequence`, recurrent layers on what it gives, `pad_packed_sequence`.

Torch's kernels read the lengths out of memory. In a region they have to be known: a Python list, which is guarded, or a
constant tensor. Then packing and padding are slices, and the kernel of a recurrent layer is handed the real batch sizes.
"""

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import Any

import torch

from .. import torch_api
from ..errors import DataDependentError
from .known import known_value

Tensor = torch.Tensor


def _known(recorder: Any, t: Tensor) -> Tensor:
    known = known_value(recorder, t) if recorder.knows(t) else None
    if known is None:
        raise DataDependentError(
            "the lengths of packed sequences are values inside a tensor",
            path=recorder.user_line(),
            expected="pack_padded_sequence inside of the region, with lengths that are a list of Python numbers",
            got=f"a tensor of shape {tuple(t.shape)} whose values differ between calls",
            fix="pass lengths.tolist(), which is guarded, and pack inside of the region; or move this part out of it",
        )
    return known


def _layer(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A recurrent layer; on a packed sequence it takes the batch sizes, too."""
    if not (len(args) > 3 and isinstance(args[3], (list, tuple))):
        # In C++ an LSTM is one of oneDNN's layers, which a graph does not call: see `torch_api.composites`.
        with torch_api.enable_python_dispatcher() if func.__name__ == "lstm" else contextlib.nullcontext():
            return func(*args, **kwargs)
    sizes = _known(recorder, args[1])
    with torch_api.no_python_dispatcher():  # its decomposition would read them one by one
        return func(args[0], sizes, *args[2:], **kwargs)


def _sized(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A function whose sizes may be tensors, as those of a first state are (``torch.zeros(layers, batch_sizes[0], 4)``)."""

    def number(n: Any) -> Any:
        if type(n) in (list, tuple):
            return tuple(map(number, n))
        return n.item() if isinstance(n, Tensor) and not n.dim() and torch_api.is_fake(n) else n

    values = tuple(map(number, args)), {k: number(v) for k, v in kwargs.items()}
    with torch_api.enable_python_dispatcher() if torch_api.holds_symbols(values) else contextlib.nullcontext():
        return func(*values[0], **values[1])


def _pack(recorder: Any, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    padded, lengths, batch_first = args
    known = _known(recorder, lengths)
    batch = int(padded.shape[0 if batch_first else 1])  # which is fixed: there is a length for each
    with torch_api.no_modes(), torch.no_grad():
        longest = int(known.max()) if known.numel() else 0
        sizes = func(torch.zeros(max(longest, 1), batch, 1), known, False)[1].tolist()  # it checks, too
    steps, rows, start = padded.transpose(0, 1) if batch_first else padded, list[Tensor](), 0
    for count, length in _runs(sizes):
        rows.append(steps[start : start + length, :count].reshape(-1, *steps.shape[2:]))
        start += length
    return torch.cat(rows), torch.tensor(sizes)


def _pad(recorder: Any, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    data, batch_sizes, batch_first, value, total = args
    sizes: list[int] = _known(recorder, batch_sizes).tolist()
    padded, place, start, parts = data.new_full((total, sizes[0], *data.shape[1:]), value), 0, 0, list[Tensor]()
    for count, length in _runs(sizes):
        part = data[place : place + count * length].reshape(length, count, *data.shape[1:])
        parts.append(torch.cat([part, padded[start : start + length, count:]], 1))
        place, start = place + count * length, start + length
    out = torch.cat([*parts, padded[start:]])
    lengths = torch.tensor([sum(size > k for size in sizes) for k in range(sizes[0])])
    return out.transpose(0, 1) if batch_first else out, lengths


def _runs(sizes: list[int]) -> list[tuple[int, int]]:
    """(batch size, for how many steps), in order."""
    return [(size, len([*run])) for size, run in groupby(sizes)]


#: name of a function -> what is called in its place, with the recorder, the function and the arguments
PACKED: dict[str, Any] = {
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
    **dict.fromkeys(("zeros", "pad", "interpolate"), _sized),
    **dict.fromkeys(("gru", "lstm", "rnn_tanh", "rnn_relu"), _layer),
}
