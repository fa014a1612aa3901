"""The kernel of ``nn.LSTM`` on a CPU keeps what its backward needs only where grad mode is on.

Programs run their operations with grad mode off.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

_kernel = torch.ops.aten.mkldnn_rnn_layer.default
_new_library: Any = torch.library.Library
_library = _new_library("subclass_trace", "FRAGMENT")
_library.define(str(_kernel._schema).replace("aten::", ""))


def _rnn_layer(*args: Any) -> Any:
    if torch.is_grad_enabled():
        return _kernel(*args)
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        return _kernel(*args)


_library.impl("mkldnn_rnn_layer", _rnn_layer, "CompositeExplicitAutograd")
_keeping: Any = torch.ops.subclass_trace.mkldnn_rnn_layer.default
_WORKSPACE = 3


def keep_workspaces(graph: torch.fx.Graph) -> None:
    """Where something reads what the kernel keeps, it is kept whatever the grad mode."""
    for node in graph.find_nodes(op="call_function", target=_kernel):
        parts = (n for n in node.users if n.target is operator.getitem)
        if any(n.args[1] == _WORKSPACE and n.users for n in parts):
            node.target = _keeping


def keeps_workspaces(graph: torch.fx.Graph) -> bool:
    """Is there such a one in the graph, or its backward?"""
    backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
    return any(node.target in (_keeping, backward) for node in graph.nodes)
