"""The part of the door that leads to the hooks of saved tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .this_thread import replaced_here


@contextlib.contextmanager
def saved_hooks_refused(refuse: Callable[[], None]) -> Iterator[None]:
    """Inside, ``refuse`` is called where this thread sets default saved-tensor hooks."""

    def push(*hooks: Any) -> None:
        refuse()

    with replaced_here(torch._C._autograd, "_push_saved_tensors_default_hooks", push):
        yield
