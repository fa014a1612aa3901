"""``torch.compile(model, backend="subclass_trace")``: Dynamo's graphs and guards, our capture, partition and run time.

>>> import torch
>>> from subclass_trace.frontends.dynamo import register
>>> register()  # not needed where the package is installed: torch finds its entry point
>>> f = torch.compile(lambda x: x.sin() * 2, backend="subclass_trace", options={"partitioner": "default"})
>>> f(torch.zeros(2))
tensor([0., 0.])

Dynamo hands over a graph and the tensors of a call. The graph is interpreted once, in Dynamo's own fake mode and shape
environment, so that what our trace assumes of sizes becomes a guard of Dynamo's. See docs/dynamo.md.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from .. import torch_api
from ..backends import resolve_backend
from ..capture.capture import Captured, Ran, capture
from ..capture.input_sizes import DynamicDims
from ..capture.inputs import Argument, Inputs
from ..capture.session import Session
from ..errors import NeedsEager, OptionError, UnsupportedError
from ..options import Options
from ..partition.interface import resolve_partitioner
from ..plan.values import Constant, Make, New, Output, Recipe
from ..runtime.backward import TRACE_LOCK
from ..runtime.planning import FlatArguments
from ..runtime.sizes import hint_of
from ..runtime.specialize import alias_guard, build_program
from ..runtime.trusted import TrustedEmitter
from ..subclass.paths import Path
from ..subclass.protocol import is_traceable
from ..subclass.template import Examples
from ..torch_api import dynamo as _dynamo
from .compile import make_options
from .dynamo_graph import GraphOfDynamo, GraphRecorder, frames
from .region import Region

aten = torch.ops.aten
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
        mode: ignored, with a warning: choose a back end and a partitioner by ``options``.
        options: those of `subclass_trace.compile`, without ``dynamic``, which is ``torch.compile``'s.

    Raises:
        OptionError: an unknown option or value. (Dynamo shows it as the cause of a ``BackendCompilerFailed``.)
        UnsupportedError: the graph holds an operator that cannot be traced; the message names it.
    """
    chosen = dynamo_options(mode, options)
    check_operators(graph)
    with TRACE_LOCK:
        return _Compilation(graph, chosen).compile(example_inputs)


def register() -> None:
    """Make the name known to ``torch.compile``, where the package is on the path without being installed."""
    _dynamo.register_our_backend()


def dynamo_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options of a region from the keywords of ``torch.compile``.

    Raises:
        OptionError: an unknown option or value, or one that is ``torch.compile``'s own.
    """
    if mode is not None and mode != "default":
        warnings.warn(
            f"backend={NAME!r} ignores mode={mode!r}; instead choose by options={{'backend': 'inductor', "
            "'partitioner': 'min_cut', 'activation_memory_budget': 0.5}",
            stacklevel=2,
        )
    given = dict(options or {})
    for name in ("dynamic", "automatic_dynamic"):
        if name in given:
            raise OptionError(
                f"{name!r} is no option of this back end, because Dynamo decides which sizes are symbols",
                path=f"options[{name!r}]",
                got=repr(given[name]),
                fix="write torch.compile(..., dynamic=True), or mark a size by torch._dynamo.mark_dynamic",
            )
    return make_options(given)


# ---------------------------------------------------------------------------------------------- operators of the graph
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
    {"associative_scan", "cond", "flex_attention", "flex_attention_backward", "map_impl", "scan", "while_loop"}
)
_ELSE = "keep this part out of the compiled function with torch.compiler.disable, or write it without the operator"
_KERNEL = f"make the kernel an operation with torch.library.custom_op and register_fake, or {_ELSE.split(', or')[0]}"
_INSTEAD = dict.fromkeys(("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional"), _KERNEL)


def check_operators(graph: fx.GraphModule) -> None:
    """Refuse higher order operators that cannot be traced.

    Raises:
        UnsupportedError: names the operator and the line of the user.
    """
    for module in graph.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            name = _dynamo.higher_order_name(node.target) if node.op == "call_function" else None
            if name is not None and name not in _INLINED | _KEPT:
                raise UnsupportedError(
                    f"the higher order operator {name!r} is not supported",
                    path=_last_line(node),
                    expected=f"one of {', '.join(sorted(_INLINED | _KEPT))}",
                    got=name,
                    fix=_INSTEAD.get(name, _ELSE),
                )


def _last_line(node: fx.Node) -> str | None:
    found = frames(node.meta.get("stack_trace"))
    return f"{found[0][0].co_filename}:{found[0][1]}" if found else None


# ---------------------------------------------------------------------------------------------- Dynamo's symbols
@dataclasses.dataclass(frozen=True, eq=False)
class _Origin:
    """Where Dynamo found a tensor, what it decided about its sizes, and its symbol for the number inside."""

    source: Any
    context: Any
    number: Any = None


class _DynamoSession(Session):
    """A capture in Dynamo's fake mode: fake leaves and outer sizes get the symbols that Dynamo made for them."""

    def __init__(self, mode: Any, origins: Mapping[str, _Origin], numbers: bool, table: dict[Any, Any]) -> None:
        dynamic = numbers or any(_dynamo.has_symbols(o.context) for o in origins.values())
        super().__init__(dynamic=dynamic, decompositions=table, mode=mode, recorder=GraphRecorder)
        self.origins = origins

    def dtensor_modes(self) -> None:
        """Dynamo has left what the code entered before its graph is captured, and guards nothing of it: nor do we."""
        return None

    def fake(self, real: Tensor, name: str, dims: Sequence[int]) -> Tensor:
        """A fake dense leaf with Dynamo's symbols; those of one storage share a fake storage."""
        origin = self.origins.get(name)
        if origin is None or origin.context is None:
            return self.mode.from_tensor(real, static_shapes=True)
        return _dynamo.fake_input(self.mode, real, origin.source, origin.context, origin.number)

    @property
    def items(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The numbers that were read from inputs."""
        assert isinstance(self.recorder, GraphRecorder)
        return self.recorder.items

    def outer_size(self, wrapper: Tensor, path: Path, dims: Sequence[int]) -> tuple[Any, ...]:
        """The outer size of a wrapper, with Dynamo's symbols."""
        origin = self.origins.get(str(path))
        if origin is None or origin.context is None:
            return tuple(wrapper.shape)
        fake = _dynamo.fake_input(self.mode, wrapper, origin.source, origin.context)
        return tuple(fake.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class _DynamoDims(DynamicDims):
    """Which tensors have symbols; which of their sizes these are is Dynamo's business."""

    origins: Mapping[str, _Origin]

    def sizes(self, path: Path, t: Tensor) -> list[int]:
        """All of a tensor's sizes, or none."""
        origin = self.origins.get(str(path))
        return [int(origin is not None and _dynamo.has_symbols(origin.context))] * t.dim()


def _origins(
    context: Any, arguments: Sequence[Argument], sources: Mapping[int, Any], numbers: Mapping[int, Any]
) -> dict[str, _Origin]:
    """The origins of all arguments and of their inner tensors, by path."""
    found: dict[str, _Origin] = {}

    def walk(value: Tensor, path: Path, source: Any, symbolic: Any, number: Any = None) -> None:
        found[str(path)] = _Origin(source, symbolic, number)
        if not is_traceable(value):
            return
        names = value.__tensor_flatten__()[0]  # type: ignore[attr-defined]
        for name in names:
            inner = getattr(value, name)
            if isinstance(inner, Tensor):
                rest = _dynamo.attribute_source(source, name), _dynamo.inner_context(symbolic, name)
                walk(inner, path.attr(name), *rest)

    for a in arguments:
        if (source := sources.get(a.position)) is not None:
            walk(a.value, a.path, source, _dynamo.symbolic_context(context, a.value), numbers.get(a.position))
    return found


_SLOTS = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")


def readable(name: str) -> str:
    """The name of a source as a user would write it.

    >>> readable("L['self']._modules['layers']._modules['0']._parameters['weight']")
    'self.layers[0].weight'
    """
    name = re.sub(r"^[LG]\['([^']*)'\]", r"\1", name)
    return _SLOTS.sub(lambda m: f"[{m[1]}]" if m[1].isdigit() else f".{m[1]}", name)


# ---------------------------------------------------------------------------------------------- compiling
@dataclasses.dataclass(frozen=True, eq=False)
class _Flat:
    """The flat arguments of a graph: what Dynamo hands over, then the tensors that the graph itself holds.

    Attributes:
        values: all of them; ``count``: how many are handed over.
        arguments: the tensors among them.
    """

    values: list[Any]
    count: int
    arguments: list[Argument]

    @classmethod
    def of(cls, example_inputs: Sequence[Any], module: GraphOfDynamo, sources: Mapping[int, Any]) -> _Flat | None:
        """None where something is handed over that is no number, or a tensor twice, or one whose sizes stay static for us."""
        values = [*example_inputs, *module.held]
        arguments = []
        for k, value in enumerate(values):
            if not isinstance(value, Tensor):
                if not isinstance(value, (*torch_api.SYM_TYPES, int)):
                    return None
                continue
            own = k - len(example_inputs)
            path = Path(f"graph[{own}]") if own >= 0 else _path(k, sources)
            arguments.append(Argument(value, path, k, static=own >= 0 or isinstance(value, torch.nn.Parameter)))
        if len({id(a.value) for a in arguments}) < len(arguments) or any(a.value.is_nested for a in arguments):
            return None
        return cls(values, len(example_inputs), arguments)

    def numbers(self) -> dict[int, Any]:
        """Position -> symbol, for those that are numbers."""
        return {k: v for k, v in enumerate(self.values) if isinstance(v, torch_api.SYM_TYPES)}


class _Compilation:
    """One graph: compiled for the call that Dynamo guards, with a region of our own for calls it cannot tell apart."""

    def __init__(self, graph: fx.GraphModule, options: Options) -> None:
        self.graph, self.options = graph, dataclasses.replace(options, frontend="trace")
        self.module = GraphOfDynamo(graph)
        floats = {k for k, n in enumerate(_placeholders(graph)) if _is_float(n)}
        region = Region(self.module, self.options)
        self.region = _with_numbers(region, floats, self.module.held)
        self.static = _with_numbers(
            Region(self.module, dataclasses.replace(self.options, automatic_dynamic=False)), (), self.module.held
        )

    def compile(self, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The callable that Dynamo calls instead of the graph."""
        context = _dynamo.tracing_context()
        sources = self._sources()
        flat = None if context is None else _Flat.of(example_inputs, self.module, sources)
        if context is None or flat is None:
            return self.region
        options = self.options
        backend = resolve_backend(options.backend, fw_compiler=options.fw_compiler, bw_compiler=options.bw_compiler)
        partitioner = resolve_partitioner(options.partitioner, options.activation_memory_budget)
        env = context.fake_mode.shape_env
        try:
            captured, recipe = self._capture(context, flat, sources, options.table(backend))
            numbers = {a.position: k for k, a in enumerate(flat.arguments)}
            plan = FlatArguments(tuple(map(numbers.get, range(len(flat.values)))), recipe)
            program, _ = build_program(captured, plan, backend, partitioner)
        except NeedsEager:
            return self.graph
        except Exception:  # some kernels take a float only as a number
            _dynamo.trace_again_with_numbers(_dynamo.float_arguments(env))
            raise
        if program.backwards is not None and not program.backwards.compiled:  # as above, of the backward
            _dynamo.trace_again_with_numbers(_dynamo.float_arguments(env))
            if captured.session.dynamic:  # torch may know no derivative for a number that is a symbol (``x ** n``)
                return self.static
        torch_api.fix_rounded(env)
        alias = alias_guard(captured, [_input_of(row, flat.values) for row in captured.inputs.rows])
        others = (self.region, self.graph)
        with torch.no_grad():
            examples = Examples(captured.session.mode, hint_of)
            return TrustedEmitter(program, alias, flat.values, flat.count, examples, *others).emit().call

    def _capture(
        self, context: Any, flat: _Flat, sources: Mapping[int, Any], table: dict[Any, Callable[..., Any]]
    ) -> tuple[Captured, Recipe]:
        origins = _origins(context, flat.arguments, sources, self._numbers())
        symbols = flat.numbers()
        session = _DynamoSession(context.fake_mode, origins, bool(symbols), table)
        assert isinstance(session.recorder, GraphRecorder)
        recipes: list[Recipe] = []

        def run(inputs: Inputs) -> Ran:
            for position, symbol in symbols.items():
                session.know_number(position, symbol)
                inputs.add_number(symbol)
            traced = inputs.add(flat.arguments, _DynamoDims(origins))
            handed = list(flat.values)
            for argument, stand_in in zip(flat.arguments, traced, strict=True):
                handed[argument.position] = stand_in
            outputs: list[Any] = []
            recipes.append(_recipe(self.module(*handed), outputs))
            return Ran(outputs, handed)

        self.module.recorder = session.recorder
        try:
            return capture(run, session), recipes[0]
        finally:
            self.module.recorder = None

    def _sources(self) -> dict[int, Any]:
        """Dynamo's source of each placeholder, by position."""
        rows = enumerate(_placeholders(self.graph))
        return {k: s for k, n in rows if (s := _dynamo.placeholder_source(n)) is not None}

    def _numbers(self) -> dict[int, Any]:
        """Dynamo's symbols for numbers that are handed over in a tensor (Python floats), by position."""
        rows = enumerate(_placeholders(self.graph))
        return {k: n for k, node in rows if (n := _dynamo.placeholder_number(node)) is not None}


def _input_of(row: Any, values: Sequence[Any]) -> Tensor:
    value: Tensor = values[row.position]
    return value if row.gradient_of is None else value.grad  # type: ignore[return-value]


def _recipe(value: Any, outputs: list[Any]) -> Recipe:
    """How the result of a graph, which is made of tuples and lists, is made of its ``outputs``, which are collected."""
    if isinstance(value, (Tensor, *torch_api.SYM_TYPES)):
        outputs.append(value)
        return Output(len(outputs) - 1)
    if type(value) is list:
        return New(id(value), list, items=tuple([_recipe(v, outputs) for v in value]))
    if isinstance(value, tuple):
        return Make(type(value), tuple([_recipe(v, outputs) for v in value]))
    return Constant(value)


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [n for n in graph.graph.nodes if n.op == "placeholder"]


def _is_float(node: fx.Node) -> bool:
    """Is it an input without dimensions of which the graph reads nothing but the number, as it does of Python floats?"""
    number = _dynamo.placeholder_number(node)
    return isinstance(number, torch.SymFloat) and all(u.op == "call_method" and u.target == "item" for u in node.users)


def _with_numbers(region: Region, floats: Collection[int], held: Sequence[Tensor]) -> Callable[..., Any]:
    """Calls a region with the tensors that the graph holds, and with the numbers in ``floats``, which it guards by value."""
    return lambda *args: region(*[a.item() if k in floats else a for k, a in enumerate(args)], *held)


def _path(position: int, sources: Mapping[int, Any]) -> Path:
    source = sources.get(position)
    return Path("args").item(position) if source is None else Path(readable(_dynamo.source_text(source)))
