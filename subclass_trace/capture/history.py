"""The autograd graph as the user's code sees it while a region is traced: ``y.grad_fn.next_functions`` and so on.

The nodes are those of the trace, which are eager's, up to the inputs. There the trace ends in a node of its own, in whose
place the code gets what eager has: the `AccumulateGrad` of a leaf, or a stand-in that knows its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


class ShownNodes:
    """What stands for the nodes of a trace.

    Args:
        of_input: what stands for the node that an input comes with; None for a node that is none.
    """

    def __init__(self, of_input: Callable[[Any], Any]) -> None:
        self._of_input = of_input
        self._shown: dict[Any, Any] = {}

    def of(self, node: Any) -> Any:
        """What the code gets for a node: the same object each time."""
        if node is None:
            return None
        if node not in self._shown:
            found = self._of_input(node)
            self._shown[node] = self._stand_in(node) if found is None else found
        return self._shown[node]

    def _stand_in(self, node: Any) -> Any:
        members = {
            "__class__": property(lambda _: type(node)),
            "__repr__": lambda _: repr(node),
            "__getattr__": lambda _, name: getattr(node, name),
            "next_functions": property(lambda _: tuple((self.of(n), k) for n, k in node.next_functions)),
        }
        return type(type(node).__name__, (), members)()


def accumulate_grad(variable: Tensor) -> Any:
    """What stands for the node that adds to the gradient of a leaf."""
    members = {
        "name": lambda _: "torch::autograd::AccumulateGrad",
        "__repr__": lambda self: f"<AccumulateGrad object at {id(self):#x}>",
        "next_functions": (),
        "variable": variable,
        "metadata": {},
    }
    return type("AccumulateGrad", (), members)()
