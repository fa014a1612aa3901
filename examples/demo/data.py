"""Real text that is on every machine: the source of Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 256
SMALLEST = 100_000


class DataError(RuntimeError):
    """The text cannot be read."""


@dataclass(frozen=True)
class Text:
    """All files one after another.

    >>> text = load()
    >>> tokens, targets = next(text.batches(steps=1, batch=8, length=64, seed=0))
    >>> tokens.shape, bool((tokens[:, 1:] == targets[:, :-1]).all())
    (torch.Size([8, 64]), True)
    """

    data: Tensor
    files: int

    def batches(
        self, *, steps: int, batch: int, length: int, seed: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of tokens and the tokens that follow them, the same on every call with the same
        seed."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            starts = torch.randint(len(self.data) - length - 1, (batch, 1), generator=generator)
            window = self.data[starts + torch.arange(length + 1)].long()
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()


def load(folder: Path | None = None) -> Text:
    """Read the top-level modules of the standard library in the order of their names."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"), key=lambda file: file.name)
    content = b"".join(file.read_bytes() for file in files)
    if len(content) < SMALLEST:
        raise DataError(
            f"too little text to train on\n"
            f"  expected: at least {SMALLEST:,} bytes of Python source in the standard library's "
            "folder\n"
            f"  got:      {len(content):,} bytes in {len(files)} files\n"
            f"  fix:      use a Python whose standard library is installed as source"
        )
    return Text(torch.frombuffer(bytearray(content), dtype=torch.uint8), len(files))
