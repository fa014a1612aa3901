"""Contexts that change what DTensor does with an operation: ``loss_parallel``,
``implicit_replication``, context parallel.

They are no dispatch modes: each sets an attribute of the one object that runs DTensor's operations.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any, NamedTuple


class DTensorModes(NamedTuple):
    """What of them is active: are tensors taken for replicated ones, and the functions that run
    operations by hand."""

    implicit_replication: bool
    handlers: tuple[tuple[Any, Any], ...]

    def __repr__(self) -> str:
        """Short, for messages of guards."""
        replication = "with" if self.implicit_replication else "without"
        return (
            f"<DTensor {replication} implicit replication, {len(self.handlers)} operations by hand>"
        )


def dtensor_dispatcher() -> Any:
    """The object that runs DTensor's operations; None while DTensor is not loaded."""
    module = sys.modules.get("torch.distributed.tensor._api")
    return None if module is None else module.DTensor._op_dispatcher


def dtensor_modes(classes: Collection[type] | None = None) -> DTensorModes | None:
    """What is active; None while DTensor is not loaded, or is not among ``classes``."""
    dispatcher = dtensor_dispatcher()
    if dispatcher is None or (
        classes is not None and sys.modules["torch.distributed.tensor._api"].DTensor not in classes
    ):
        return None
    handlers = dispatcher._custom_op_handlers
    return DTensorModes(bool(dispatcher._allow_implicit_replication), tuple(handlers.items()))


def other_dtensor_modes_code(dispatcher: str, modes: DTensorModes) -> str:
    """Python that asks whether something else is active; the contexts of torch differ in the number
    of their functions."""
    count = len(modes.handlers)
    flag = f"{dispatcher}._allow_implicit_replication is not {modes.implicit_replication}"
    return f"{flag} or len({dispatcher}._custom_op_handlers) != {count}"
