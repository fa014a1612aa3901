"""``torch.compile(model, backend="subclass_trace")``: Dynamo's graphs and guards, our capture,
partition and run time.

>>> import torch
>>> from subclass_trace.frontends.dynamo import register
>>> register()  # not needed where the package is installed: torch finds its entry point
>>> options = {"partitioner": "default"}
>>> f = torch.compile(lambda x: x.sin() * 2, backend="subclass_trace", options=options)
>>> f(torch.zeros(2))
tensor([0., 0.])

Dynamo hands over a graph and the tensors of a call. The graph becomes a region like any other:
traced in its first call, guarded by what Dynamo cannot see (memory that inputs share, sizes on
which a wrapper branches). See docs/dynamo.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from ..capture.user_code import frames_of_text
from ..errors import GuardError, OptionError, UnsupportedError
from ..options import MODES, OF_FRONT_ENDS, Options
from ..subclass.paths import Path
from ..torch_api import dynamo as _dynamo
from ..torch_api.dynamo_faults import skip_known_faults
from ..torch_api.lines import warn_user
from ..torch_api.texts import text_of
from .compile import make_options
from .dynamic import SizeHistory, each_tensor
from .dynamo_graph import GraphOfDynamo
from .hand_over import graphs_run
from .region import Region

Tensor = torch.Tensor
NAME = "subclass_trace"


def subclass_trace(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The back end that Dynamo calls for each graph.

    Args:
        graph: what Dynamo traced.
        example_inputs: the tensors and sizes of the call, in the order of the graph's placeholders.
        mode: as `compile` means it, where the back end in ``options`` honours it; else ignored,
            with a warning.
        options: those of `subclass_trace.compile`, without those that are ``torch.compile``'s own.

    Raises:
        OptionError: an unknown option or value. (Dynamo shows it as the cause of a
            ``BackendCompilerFailed``.)
        UnsupportedError: the graph holds an operator that cannot be traced; the message names it.
            What else is refused is so in the first call. (What a region of `compile` was handed
            over for runs eagerly then, with a warning.)
    """
    chosen = dataclasses.replace(dynamo_options(mode, options), frontend="trace")
    skip_known_faults(graph)
    lenient = _dynamo.failures_run_eagerly_here()
    try:
        check_operators(graph)
    except UnsupportedError as error:
        if not lenient:
            raise
        warn_user(f"a graph of torch.compile's runs eagerly: {error}")
        return graph
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    function = GraphOfDynamo(graph)
    region = Region(function, chosen, history=_history(inputs), lenient=lenient)
    size = sum(n.op != "placeholder" for n in graph.graph.nodes)
    floats = {k for k, node in enumerate(inputs) if _is_float(node)}

    def call(*args: Any) -> Any:
        graphs_run[0] += 1
        graphs_run[1] += size
        values = [a.item() if k in floats else a for k, a in enumerate(args)] if floats else args
        try:
            return region(*values, *function.held)
        except GuardError:  # beyond the limit of specializations, as Dynamo beyond its own
            return graph(*args)

    return call


def register() -> None:
    """Make the name known to ``torch.compile``, where the package is on the path without being
    installed."""
    _dynamo.register_our_backend()


def dynamo_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options of a region from the keywords of ``torch.compile``.

    Raises:
        OptionError: an unknown option or value, or one that is ``torch.compile``'s own.
    """
    given = dict(options or {})
    if mode in MODES and given.get("backend") in MODES[mode]:
        given["mode"] = mode
    elif mode is not None and mode != "default":
        warn_user(
            f"backend={NAME!r} ignores mode={mode!r}; instead choose by options={{'backend': "
            "'inductor', "
            "'partitioner': 'min_cut', 'activation_memory_budget': 0.5}"
        )
    for name in given.keys() & OF_FRONT_ENDS:
        raise OptionError(
            f"{name!r} is no option of this back end: what decides before a back end is asked is "
            "torch.compile's",
            path=f"options[{name!r}]",
            got=text_of(given[name]),
            fix=f"write torch.compile(..., {name}={given[name]!r})"
            if name != "frontend"
            else "use st.compile",
        )
    return make_options(given)


# ---- operators of the graph
#: their body is traced as if it stood in the graph
_INLINED = frozenset(
    {
        "autograd_function_apply",
        "hints_wrapper",
        "invoke_subgraph",
        "register_hook",
        "strict_mode",
        "tag_activation_checkpoint",
        "wrap",
        "wrap_activation_checkpoint",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    }
)
#: they stay nodes of the dense graph, with branches that are traced as well
_KEPT = frozenset(
    {
        "associative_scan",
        "cond",
        "flex_attention",
        "flex_attention_backward",
        "map_impl",
        "scan",
        "while_loop",
    }
)


def check_operators(graph: fx.GraphModule) -> None:
    """Refuse higher order operators that cannot be traced.

    Raises:
        UnsupportedError: names the operator and the line of the user.
    """
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            name = _dynamo.higher_order_name(node.target) if node.op == "call_function" else None
            if name is not None and name not in _INLINED | _KEPT:
                lines = frames_of_text(node.meta.get("stack_trace"))
                raise UnsupportedError(
                    f"the higher order operator {name!r} is not supported",
                    code="operator-in-dynamo",
                    path=f"{lines[0][0].co_filename}:{lines[0][1]}" if lines else None,
                    expected=f"one of {', '.join(sorted(_INLINED | _KEPT))}",
                    got=name,
                    fix="keep this part out of the compiled function with "
                    "torch.compiler.disable, or write it without the "
                    "operator (a Triton kernel: make it one with torch.library.custom_op and "
                    "register_fake)",
                )


# ---- inputs of the graph
def _history(inputs: Sequence[fx.Node]) -> SizeHistory:
    """What Dynamo made symbols of is symbols in our first trace."""
    history = SizeHistory(all_numbers=True)

    def note(t: Tensor, path: Path) -> None:
        dims = frozenset(d for d, n in enumerate(t.shape) if isinstance(n, torch.SymInt))
        if dims:
            history.varying[str(path)] = dims

    for k, node in enumerate(inputs):
        value = node.meta.get("example_value")
        if isinstance(value, Tensor):
            each_tensor(value, Path("args").item(k), note)
    return history


def _is_float(node: fx.Node) -> bool:
    """Is it an input without dimensions of which the graph reads nothing but the number, as it does
    of Python floats?"""
    number = _dynamo.placeholder_number(node)
    return isinstance(number, torch.SymFloat) and all(
        u.op == "call_method" and u.target == "item" for u in node.users
    )
