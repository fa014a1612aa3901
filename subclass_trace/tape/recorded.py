"""A tape's own operations, without the functions that issue them.

A call of one of autograd's functions from Python costs more than the operations inside it: its arguments are boxed, its
results are checked. So the second run of a tape writes down which operations the functions issue, and later runs issue
those, through the cheapest bindings that are proved to do the same. The operations, their order and their arguments are
those of the first runs, so gradients are bitwise the same; hooks, unpacking and Python backwards stay where they are.

Note [What may be recorded]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
- Functions in `FORMULAS`: what they issue depends on the metadata of their arguments alone. Others look at values, or
  compute in another way while somebody watches (``prod``, ``cumprod``, ``index``); they are called.
- Plain tensors and integers. A guard compares types, dispatch keys, sizes, strides and numbers before each run; for
  other ones there is another recording (at most `LIMIT`), or the functions are called.
- When gradients are on, autocast or a mode is active, the tape runs without recordings.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import _torch
from .._torch import tape as _door
from ..runtime.rebuild import fit_strides
from ..runtime.round_trips import drops_kept_dimensions, is_fresh, without_keeping
from . import operations
from .cut import Run, cut, join
from .graph import Tape
from .program import Validation, make_program, plain

Tensor = torch.Tensor
#: kinds of arguments for which a run is recorded
LIMIT = 4
_NAMES = """
    Abs Add Addcdiv Addcmul Addmm Alias AvgPool2D Baddbmm Bmm Cat Clamp ClampMax ClampMin Clone Convolution Cos Div
    Dot Elu Embedding Exp Expand Gelu Hardtanh Hardswish LeakyRelu Log Log1P LogSoftmax LogSigmoid Lerp MaxPool2DWithIndices
    Mean Mm MseLoss Mul Mv NativeBatchNorm NativeDropout NativeGroupNorm NativeLayerNorm Neg NllLoss Permute Pow Reciprocal
    Relu ReshapeAlias Rsqrt Rsub Select Sigmoid Silu Sin Slice SmoothL1Loss Softmax Softplus Split SplitWithSizes Sqrt
    Squeeze Stack Sub Sum T Tanh Threshold ToCopy Transpose Unbind UnsafeSplit UnsafeView Unsqueeze View Where
"""
#: autograd functions that issue the same operations for the same metadata; see Note [What may be recorded]
FORMULAS = frozenset(_NAMES.split())
_FUNCTION = re.compile(r"(\w+?)Backward\d+$")
_T, _VIEW = torch.ops.aten.t.default, torch.ops.aten.view.default
_DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def may_be_recorded(node: fx.Node) -> bool:
    """May this call be replaced by the operations that it issues?"""
    kind = node.meta["kind"]
    if kind == "op":
        name = _FUNCTION.match(str(node.meta.get("note", "")))
        return node.target is fit_strides or (name is not None and name[1] in FORMULAS)
    if kind in ("inlined", "aten"):
        target = node.target
        return (
            isinstance(target, _torch.OpOverload)
            and target.namespace == "aten"
            and not _DATA_DEPENDENT.intersection(target.tags)
        )
    if kind == "accumulate":
        return node.args[2] is False and node.args[1] is not None
    return kind in ("validate", "sum", "size")


def join_recorded(tape: Tape) -> fx.GraphModule:
    """The tape with each run of what may be recorded as one call: a `Recorded`. Short runs stay as they are."""
    names = [n.name for n in tape.nodes]
    runs = []
    for run in cut(tape.graph.graph, may_be_recorded):
        worth = sum(n.meta["kind"] in ("op", "inlined", "aten", "sum") for n in run.nodes) >= 2
        runs += [run] if worth or not run.is_joined else [Run((n,), False) for n in run.nodes]
    return join(tape, runs, lambda part, inputs, number: Recorded(part, names), "recorded")


class Recorded:
    """One run: the functions of a tape, and what was recorded of them.

    Attributes:
        recordings: guard and program for each kind of arguments.
    """

    __name__ = "recorded"

    def __init__(self, part: fx.GraphModule, names: Sequence[str]) -> None:
        self.part, self.names = part, names
        self.functions = make_program(part, names)
        self.runs = self.attempts = 0
        self.recordings: list[tuple[Callable[..., bool], Callable[[list[Any]], Any]]] = []

    def __call__(self, given: list[Any]) -> Any:
        for check, operations_alone in self.recordings:
            if check(*given):
                return operations_alone(given)
        self.runs += 1
        if self.runs == 1 or self.attempts == LIMIT:
            return self.functions(given)
        self.attempts += 1
        made = guard(given)
        if made is None:
            return self.functions(given)
        recorder = Recorder(self.part, self.names, given)
        results = recorder.run()
        if recorder.graph is not None:
            program = make_program(_torch.graph_module(self.part, recorder.graph, "Recording"), self.names)
            self.recordings.append((made, program))
        return results


def guard(given: Sequence[Any]) -> Callable[..., bool] | None:
    """Are these the metadata and numbers that the recording was made for? None if there is no way to tell."""
    tensors = {k: v for k, v in enumerate(given) if isinstance(v, Tensor)}
    numbers = {k: v for k, v in enumerate(given) if type(v) is int}
    if len(tensors) + len(numbers) != len(given) or not all(map(_is_plain, tensors.values())):
        return None
    values = list(tensors.values())
    if len({id(v) for v in values}) != len(values):
        return None
    check = _torch.tensor_guard(values, [list(v.shape) for v in values], [list(v.stride()) for v in values])
    if not numbers:
        return check

    places = list(tensors)
    del tensors, values  # the guard shall not keep them alive

    def both(*now: Any) -> bool:
        return all(now[k] == v for k, v in numbers.items()) and check(*[now[k] for k in places])

    return both


def _is_plain(t: Tensor) -> bool:
    return type(t) in (Tensor, torch.nn.Parameter) and t.layout is torch.strided


class _Unrecorded(Exception):
    """This run cannot be recorded."""


class _Log(_torch.DispatchMode):  # type: ignore[misc]
    """The operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Recorder:
    """Runs the functions of a run, node by node, and writes the graph of the operations that they issue.

    Attributes:
        graph: the operations; None as soon as one call cannot be recorded. The run goes on all the same.
    """

    def __init__(self, part: fx.GraphModule, names: Sequence[str], given: list[Any]) -> None:
        self.part, self.names = part, names
        self.graph: fx.Graph | None = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.new: dict[fx.Node, Any] = {}
        self._dies: dict[fx.Node, list[fx.Node]] = {}
        seen: set[fx.Node] = set()
        for node in reversed(part.graph.nodes):
            self._dies[node] = [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)
        for node, value in zip(part.graph.find_nodes(op="placeholder"), given, strict=True):
            self.values[node] = value
            placeholder = self.graph.placeholder(node.name)
            self.new[node] = self._described(placeholder, value) if isinstance(value, Tensor) else value
        given.clear()

    def run(self) -> list[Any]:
        """The results, as the functions give them."""
        for node in self.part.graph.nodes:
            if node.op == "get_attr":
                self._constant(node)
            elif node.op == "output":
                if self.graph is not None:
                    self.graph.output(fx.map_arg(list(node.args[0]), self.new.__getitem__))
                    _settle(self.graph)
                return list(fx.map_arg(list(node.args[0]), self.values.__getitem__))
            elif node.op == "call_function" and node.meta["kind"] != "part":
                self._call(node)
                for n in self._dies[node]:
                    self.values.pop(n, None)
        raise AssertionError("a graph without an output")

    def _constant(self, node: fx.Node) -> None:
        self.values[node] = value = getattr(self.part, str(node.target))
        if self.graph is not None:
            if isinstance(value, Tensor) and _is_plain(value):
                self.new[node] = self._described(self.graph.get_attr(str(node.target)), value)
            else:
                self.graph = None

    def _call(self, node: fx.Node) -> None:
        kind = node.meta["kind"]
        if kind == "accumulate":
            return self._accumulate(node)
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        args, kwargs = plain(args), plain(kwargs)
        log = _Log()
        if self.graph is not None and kind in ("op", "validate"):
            args = _no_wrapped_numbers(args)
            with log:
                result = self._function(node)(*args, **kwargs)
        else:
            result = self._function(node)(*args, **kwargs)
        parts = [n for n in node.users if n.meta.get("kind") == "part" and n.args[0] is node]
        if self.graph is not None:
            try:
                new = self._recorded(kind, node, args, result, log)
            except _Unrecorded:
                self.graph = None
            else:
                self.new[node] = new
                self.new |= {p: new[p.args[1]] for p in parts}
        self.values |= {p: result[p.args[1]] for p in parts}
        if len(parts) != len(node.users):
            self.values[node] = result

    def _function(self, node: fx.Node) -> Callable[..., Any]:
        function = _door.without_layer(node.target)
        return Validation(self.names[node.meta["node"]], function) if node.meta["kind"] == "validate" else function

    def _recorded(self, kind: str, node: fx.Node, args: Any, result: Any, log: _Log) -> Any:
        """What stands for the result of a call in the new graph, which gets the operations of the call."""
        if kind == "size":
            return result
        if kind == "sum":
            return self._sum(node, args, result)
        if kind in ("inlined", "aten"):
            new_args, new_kwargs = fx.map_arg((node.args, node.kwargs), self.new.__getitem__)
            return self._operation(node.target, plain(new_args), plain(new_kwargs), result)
        known = {id(v): self.new[n] for n, v in _pairs(node.args, args) if isinstance(v, Tensor)}
        for func, func_args, func_kwargs, out in log.calls:
            if not isinstance(func, _torch.OpOverload) or _DATA_DEPENDENT.intersection(func.tags):
                raise _Unrecorded
            new = self._operation(func, _named(list(func_args), known), _named(dict(func_kwargs), known), out)
            outs, news = (out, new) if isinstance(out, (list, tuple)) else ([out], [new])
            for o, n in zip(outs, news, strict=True):
                if isinstance(o, Tensor):
                    known.setdefault(id(o), n)
        return _named(result, known)

    def _sum(self, node: fx.Node, args: Any, result: Any) -> Any:
        a, b = args
        if not (
            isinstance(a, Tensor) and isinstance(b, Tensor) and _is_plain(a) and _is_plain(b) and _is_plain(result)
        ):
            raise _Unrecorded
        new = [self.new[n] for n in node.args]  # type: ignore[index]
        if a.numel() < operations.WORTH_REUSING:
            return self._operation(torch.ops.aten.add.Tensor, new, {}, result)
        if a.stride() != b.stride() or a.shape != b.shape:  # the strides of the sum may depend on who owns what
            raise _Unrecorded
        assert self.graph is not None
        return self._described(self.graph.call_function(operations.add_grads, tuple(new)), result)

    def _accumulate(self, node: fx.Node) -> None:
        param_node, grad_node, _ = node.args
        assert isinstance(param_node, fx.Node) and isinstance(grad_node, fx.Node)
        param, grad = self.values[param_node], self.values[grad_node]
        if grad_node in self._dies[node]:  # nobody but this variable holds it
            del self.values[grad_node]
        if self.graph is not None and grad is not None:
            fits = operations.may_become_grad(param, grad)
            new = (self.new[param_node], self.new[grad_node], False)
            call = self.graph.call_function(operations.accumulate_grad, new)
            call.meta.update(kind="accumulate", node=node.meta["node"], fits=fits)
        operations.accumulate_grad(param, grad, False)
        del grad
        for n in self._dies[node]:
            self.values.pop(n, None)

    def _operation(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> Any:
        """An operation of the new graph: a node, or a list of nodes for its several results."""
        assert self.graph is not None
        if target is _T and args[0].target is _T and args[0].args[0].op != "placeholder":
            return args[0].args[0]  # weights are transposed on the way there and on the way back
        call = self.graph.call_function(target, tuple(args), kwargs)
        call.meta.update(kind="recorded", node=-1)
        if isinstance(out, Tensor):
            return self._described(call, out)
        if not isinstance(out, (list, tuple)):
            raise _Unrecorded
        items: list[Any] = []
        for k, o in enumerate(out):
            if o is None:
                items.append(None)
                continue
            part = self.graph.call_function(operator.getitem, (call, k))
            part.meta.update(kind="part", node=-1)
            items.append(self._described(part, o))
        return items

    def _described(self, node: fx.Node, value: Any) -> fx.Node:
        """With a stand-in of its value, by which the cheapest binding is chosen."""
        if not isinstance(value, Tensor) or not _is_plain(value):
            raise _Unrecorded
        meta = (tuple(value.shape), tuple(value.stride()), value.dtype, value.device, value.layout, value.requires_grad)
        node.meta.setdefault("kind", "recorded")
        node.meta.update(val=_torch.StandIn.make(*meta))
        return node


def _settle(graph: fx.Graph) -> None:
    """Which values may be taken over: those that are read for the last time.

    In the tape each reader has a variable of its own, which counts as an owner. Here they share one; and what an
    operation made for one reader alone has no other owner for certain ("sole").
    """
    last: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is _T and not node.users:
            graph.erase_node(node)
            continue
        if node.target is _VIEW and len(node.args[0].users) == 1 and drops_kept_dimensions(node, node.args[0]):
            total = node.args[0]
            total.args, total.meta["val"] = without_keeping(total), node.meta["val"]
            node.replace_all_uses_with(total)
            graph.erase_node(node)
            continue
        for read in node.all_input_nodes:
            last[read] = node
    for node in graph.nodes:
        if node.meta.get("kind") == "accumulate":
            node.meta["fits"] = node.meta["fits"] and last[node.args[1]] is node
            node.meta["fresh"] = fresh = is_fresh(node.args[1])
            node.meta["sole"] = fresh and len(node.args[1].users) == 1
        elif node.target is operations.add_grads and any(last[a] is not node for a in node.args):
            node.target = torch.ops.aten.add.Tensor


def _pairs(written: Any, value: Any) -> Iterator[tuple[fx.Node, Any]]:
    """The nodes among the arguments of a call, with their values."""
    if isinstance(written, fx.Node):
        yield written, value
    elif isinstance(written, (list, tuple)):
        for w, v in zip(written, value, strict=True):
            yield from _pairs(w, v)


def _no_wrapped_numbers(value: Any) -> Any:
    """``value`` with copies of tensors of rank 0.

    ``x * 2.0`` saves the number as a tensor with a flag by which a dispatch mode gets the number itself: its value would
    be taken for a constant. A copy has no such flag.
    """
    if isinstance(value, Tensor):
        return value.clone() if value.dim() == 0 else value
    if isinstance(value, (list, tuple)):
        items = [_no_wrapped_numbers(v) for v in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _named(value: Any, known: dict[int, Any]) -> Any:
    """``value`` with its tensors replaced by what stands for them."""
    if isinstance(value, Tensor):
        if id(value) not in known:
            raise _Unrecorded
        return known[id(value)]
    if isinstance(value, (list, tuple)):
        items = [_named(v, known) for v in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {k: _named(v, known) for k, v in value.items()}
    return value
