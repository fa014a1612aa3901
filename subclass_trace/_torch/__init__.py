"""The only door to torch's private API. Everything else in this package uses public torch, or a name from here.

`tests/test_torch_door.py` lists these symbols and checks them on the installed torch. Supported: torch 2.11 to 2.13.
Anything that pulls in Dynamo or inductor is imported inside a function, so that ``import subclass_trace`` stays light.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import SymBool, SymFloat
from torch._C import DispatchKey, DispatchKeySet, _ExcludeDispatchKeyGuard
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_impls import fast_detach
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
)
from torch.fx.experimental.proxy_tensor import disable_autocast_cache as disable_autocast_cache
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    StatelessSymbolicContext,
    compute_unbacked_bindings,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode as TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._python_dispatch import autograd_would_have_decomposed as autograd_would_have_decomposed
from torch.utils._pytree import tree_map_only as tree_map_only

__all__ = ["pytree"]  # torch's own pytrees, for the arguments of higher order operators

# ---------------------------------------------------------------------------------------------- kinds of tensors
FAKE_TYPES: tuple[type, ...] = (FakeTensor,)


def is_fake(value: object) -> bool:
    """Is this a dense FakeTensor?"""
    return isinstance(value, FakeTensor)


def is_functorch_wrapped(value: torch.Tensor) -> bool:
    """Is this a tensor inside vmap, grad or jvp?"""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


def overrides_torch_dispatch(cls: type) -> bool:
    """Does the class define its own ``__torch_dispatch__``?"""
    own = getattr(cls, "__torch_dispatch__", None)
    return (
        own is not None and own is not torch._C._disabled_torch_dispatch_impl and own != torch.Tensor.__torch_dispatch__
    )


def is_opaque(value: object) -> bool:
    """Is this an object that torch lets a wrapper list beside its inner tensors, such as a DeviceMesh?"""
    try:
        from torch._opaque_base import OpaqueBase
    except ImportError:  # torch 2.11: no wrapper lists opaque attributes
        return False
    if isinstance(value, OpaqueBase):
        return True
    cls = type(value)
    if cls not in _OPAQUE_TYPES:
        _OPAQUE_TYPES[cls] = _is_opaque_type(cls)
    return _OPAQUE_TYPES[cls]


_OPAQUE_TYPES: dict[type, bool] = {}


def _is_opaque_type(cls: type) -> bool:
    try:
        from torch._library.opaque_object import is_opaque_type
    except ImportError:
        return False
    return bool(is_opaque_type(cls))


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """No user or tracing dispatch mode sees what runs inside."""
    with _disable_current_modes():
        yield


# ---------------------------------------------------------------------------------------------- capture


def storage_ref(t: torch.Tensor) -> StorageWeakRef:
    """Equal for tensors that share a storage; does not keep it alive."""
    return StorageWeakRef(t.untyped_storage())  # type: ignore[no-untyped-call]


def apply_function(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)``."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


PROXY_MODE_KEY = torch._C._TorchDispatchModeKey.PROXY
SYM_TYPES = (torch.SymInt, SymFloat, SymBool)


def fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """The mode in which the user function runs during capture."""
    return FakeTensorMode(shape_env=shape_env, static_shapes=True, allow_non_fake_inputs=False)


@contextlib.contextmanager
def quiet_fake_errors() -> Iterator[None]:
    """Fake kernels that refuse inside are not logged: the caller tries something that may fail."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def like_format_of(fake: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A fresh fake tensor with the memory format that ``other`` suggests."""
    from torch._prims_common import suggest_memory_format

    return torch.empty_like(fake, memory_format=suggest_memory_format(other))


def detached(mode: FakeTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """An alias of a fake tensor without autograd history; issues no operation that a mode could see."""
    return fast_detach(mode, fake, False)  # type: ignore[arg-type]


def fake_result(
    mode: FakeTensorMode,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    source: torch.Tensor | None,
) -> torch.Tensor:
    """A fake tensor of this metadata, in the storage of ``source`` or in one of its own; no fake kernel runs."""
    with in_kernel_invocation_manager(mode):
        if source is None:
            plain = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        else:
            plain = torch.as_strided(source, size, stride, offset)
    return FakeTensor(mode, plain, device)


def autograd_sequence_number() -> int:
    """The number that the last autograd node made on this thread carries."""
    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined]


def node_sequence_number(node: Any) -> int:
    """The sequence number of an autograd node."""
    return int(node._sequence_nr())


def view_function(view: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Replays on a new base exactly the view operations that made ``view`` from its own base."""
    return view._view_func_unsafe


def is_multi_output_view(t: torch.Tensor) -> bool:
    """Is this one of several views that one operation made, such as a member of ``split``?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) == meta.MULTI_OUTPUT_NODE


def mark_multi_output_view(t: torch.Tensor) -> None:
    """Let autograd protect ``t`` as it protects a member of ``split``."""
    torch._C._autograd._set_creation_meta(t, torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE)


def creation_forbids_inplace(t: torch.Tensor) -> bool:
    """Would eager refuse an in-place operation on this view that autograd tracks?"""
    meta = torch._C._autograd.CreationMeta
    return t._is_view() and torch._C._autograd._get_creation_meta(t) not in (meta.DEFAULT, meta.NO_GRAD_MODE)


_GRAD_SOURCE: list[torch.Tensor] = []


def make_nonleaf(t: torch.Tensor) -> None:
    """Give ``t`` (a leaf, any class) an autograd history of its own, so that in-place operations move its ``grad_fn``.

    The history ends in a node that raises when run: differentiate with respect to its gradient edge.
    """
    if not _GRAD_SOURCE:
        _GRAD_SOURCE.append(torch.zeros((), requires_grad=True))
    torch._mirror_autograd_meta_to(_GRAD_SOURCE[0], t)  # type: ignore[attr-defined]


def set_version(t: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor."""
    torch._C._autograd._unsafe_set_version_counter((t,), (version,))


@contextlib.contextmanager
def compiling_flag() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is true inside, so that libraries take their traceable paths."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """Composite operations do not choose oneDNN's fused ones. (The public context manager warns about TF32.)"""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def original_views() -> Iterator[None]:
    """Views keep the whole chain of operations that made them."""
    with torch.autograd._force_original_view_tracking(True):  # type: ignore[attr-defined]
        yield


@contextlib.contextmanager
def without_tracing() -> Iterator[None]:
    """Operations on fake tensors inside are not recorded."""
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with disable_proxy_modes_tracing():
        yield


@contextlib.contextmanager
def without_dispatch() -> Iterator[None]:
    """No ``__torch_dispatch__`` runs, of no mode and no class: operations reach the C++ kernels of the outer tensor."""
    from torch.utils._mode_utils import no_dispatch

    with no_dispatch():
        yield


def saved_tensor_hooks_active() -> bool:
    """Has the caller set default saved-tensor hooks?"""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def keeps_graph() -> bool:
    """Inside a backward: does the running graph task retain the graph?"""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def is_custom_function_output(t: torch.Tensor) -> bool:
    """Was this made by a user's autograd.Function (Python or C++)?"""
    fn = t.grad_fn
    return isinstance(fn, torch.autograd.function.BackwardCFunction) or type(fn).__name__ == "CppFunction"


def input_source(name: str) -> Any:
    """A source (in the sense of torch's symbolic shapes) with nothing but a name."""
    from torch._dynamo.source import ConstantSource

    return ConstantSource(name)


def new_symbol(env: ShapeEnv, hint: int, name: str) -> Any:
    """A fresh SymInt for a size that no dense tensor carries (0 and 1 stay numbers)."""
    source = input_source(name)
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DUCK)
    return env.create_symintnode(symbol, hint=hint, source=source)


def new_number(env: ShapeEnv, hint: int, name: str) -> Any:
    """A fresh SymInt of which nothing is assumed, not even that it is neither 0 nor 1."""
    source = input_source(name)
    how: dict[str, Any] = {"positive": None, "do_not_specialize_zero_one": True}
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC, **how)
    return env.create_symintnode(symbol, hint=hint, source=source)


def dynamic_context(dims: list[bool], alike: list[bool]) -> StatelessSymbolicContext[Any, Any]:
    """Which dimensions of a dense tensor become symbols; where ``alike``, equal sizes share one."""
    kinds = [DimDynamic.DUCK if same else DimDynamic.DYNAMIC for same in alike]
    return StatelessSymbolicContext(
        dynamic_sizes=[k if d else DimDynamic.STATIC for k, d in zip(kinds, dims, strict=True)]
    )


def unbacked_bindings(env: ShapeEnv, out: object) -> dict[Any, Any]:
    """Where in ``out`` the symbols sit that the last operation made (a data-dependent size)."""
    if not env.pending_fresh_unbacked_symbols:
        return {}
    return compute_unbacked_bindings(env, out) or {}


@contextlib.contextmanager
def unbound_symbols_set_aside(env: ShapeEnv | None) -> Iterator[None]:
    """A function is traced inside a running operation: its symbols are bound in it, those of the operation are not.

    Fake rules of operators that run a function several times have torch forget the symbols that it makes.
    """
    if env is None:
        yield
        return
    before, env.pending_fresh_unbacked_symbols = env.pending_fresh_unbacked_symbols, []
    ignored = env._ignore_fresh_unbacked_symbols_set(False)
    try:
        yield
    finally:
        env._ignore_fresh_unbacked_symbols_set(ignored)
        env.pending_fresh_unbacked_symbols = before


def sympy_to_nodes(expr: Any, env: dict[Any, Any]) -> Any:
    """Evaluate a sympy expression over fx proxies."""
    from torch.utils._sympy.interp import sympy_interp

    return sympy_interp(_proxy_analysis(), env, expr)


@functools.cache
def _proxy_analysis() -> Any:
    """Torch's arithmetic on plain Python numbers, with what would compute at once on a proxy as a node instead."""
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    def node(function: Callable[..., Any]) -> Any:
        return staticmethod(
            lambda x, *rest: (
                x.tracer.create_proxy("call_function", function, (x,), {})
                if isinstance(x, torch.fx.Proxy)
                else function(x)
            )
        )

    members = {
        "int_truediv": staticmethod(operator.truediv),
        "bitwise_and": staticmethod(operator.and_),
        "bitwise_or": staticmethod(operator.or_),
        "floor_to_int": node(math.floor),
        "ceil_to_int": node(math.ceil),
        "trunc_to_int": node(math.trunc),
        "round_to_int": node(round),
    }
    return type("ProxyAnalysis", (PythonReferenceAnalysis,), members)


def exclude_functionalize() -> Any:
    """Guard: the C++ functionalisation key does not run."""
    return _ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.Functionalize))


# --- for authors: what `zoo/` and `authoring/` need of torch's private names

return_and_correct_aliasing: Callable[..., Any] = _python_dispatch.return_and_correct_aliasing
make_wrapper_subclass: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
scaled_mm: Callable[..., torch.Tensor] = torch._scaled_mm
disabled_torch_function: Any = torch._C._disabled_torch_function_impl


def disable_autocast() -> Any:
    """Guard: autocast is off inside."""
    return torch._C._DisableAutocast()


def size_symbol(size: object) -> Any:
    """The sympy symbol that a size is, or None: not a SymInt, an expression, or a nested int."""
    if not isinstance(size, torch.SymInt) or size.node.is_nested_int():
        return None
    return size.node.expr if size.node.expr.is_Symbol else None


def ragged_parts(size: torch.SymInt) -> tuple[Any, Any] | None:
    """(symbol, coefficient) of a nested int that a trace made; None for one of eager mode."""
    node: Any = size.node
    env = getattr(node, "shape_env", None)
    if env is None:
        return None
    values = env.var_to_val if getattr(env, "backed_var_to_val", None) is None else env.backed_var_to_val
    for symbol in node.expr.free_symbols:
        if hasattr(values.get(symbol), "_coeff"):  # a SingletonInt
            return symbol, node.expr / symbol
    return None


def nested_int_id(size: torch.SymInt) -> int:
    """The number of a nested int of eager mode, without its coefficient."""
    return int(size.node.nested_int())


def new_ragged_size(mode: FakeTensorMode) -> torch.SymInt:
    """A symbol for the ragged size of a jagged tensor."""
    return mode.create_symbolic_nested_int()  # type: ignore[return-value]


def is_data_dependent(size: Any) -> bool:
    """Does a symbolic number depend on values inside tensors?"""
    node = size.node
    return not is_nested(size) and any(node.shape_env.is_unbacked_symint(s) for s in node.expr.free_symbols)


def maybe(condition: Any) -> bool:
    """Is the condition true, or not known because it depends on values inside tensors?"""
    if not isinstance(condition, SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return bool(guard_or_true(condition))


def surely(condition: Any) -> bool:
    """Is the condition true, whatever the values inside tensors are?"""
    if not isinstance(condition, SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def is_nested(size: Any) -> bool:
    """Is it a nested int?"""
    return bool(size.node.is_nested_int())


def is_dense(t: torch.Tensor) -> bool:
    """Is ``t`` non-overlapping and dense (each element of its range stands once)?"""
    from torch._prims_common import is_non_overlapping_and_dense_or_false

    return t.layout is torch.strided and bool(is_non_overlapping_and_dense_or_false(t))


class FunctionalReplay:
    """Running a graph once more under functional tensors and proxies, so that it comes out without in-place ones."""

    def __init__(self, mode: FakeTensorMode) -> None:
        from torch.fx.experimental.proxy_tensor import PythonKeyTracer

        self.mode = mode
        self.tracer: Any = PythonKeyTracer()
        self.tracer.root = torch.nn.Module()
        self.tracer.graph = torch.fx.Graph(tracer_cls=PythonKeyTracer)
        self.tracer.tensor_attrs = {}

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph that is being written."""
        return self.tracer.graph  # type: ignore[no-any-return]

    def adopt(self, root: torch.nn.Module, names: list[Any]) -> None:
        """Take over constants and sub-modules."""
        for name in names:
            setattr(self.tracer.root, name, getattr(root, name))

    def place(self, name: str, value: Any, meta: dict[str, Any]) -> None:
        """Add a graph input that stands for ``value``."""
        from torch.fx.experimental.proxy_tensor import track_tensor_tree

        proxy = self.tracer.create_proxy("placeholder", name, (), {}, name=name)
        track_tensor_tree(value, proxy, constant=None, tracer=self.tracer)
        proxy.node.meta.update({k: v for k, v in meta.items() if k == "alias_base"})
        proxy.node.meta.setdefault("val", value)

    def wrap(self, value: torch.Tensor) -> Any:
        """A functional tensor around a fake one."""
        from torch._subclasses.functional_tensor import FunctionalTensor

        return FunctionalTensor.to_functional(value)

    def constant(self, name: str, value: torch.Tensor) -> Any:
        """A functional tensor for a constant of the graph."""
        fake = value if is_fake(value) else self.mode.from_tensor(value)
        return self._tracked(fake, self.tracer.create_proxy("get_attr", name, (), {}))

    def adopt_value(self, value: torch.Tensor, node: torch.fx.Node) -> Any:
        """A functional tensor for what ``node`` computes."""
        return self._tracked(value, torch.fx.Proxy(node, self.tracer))

    def _tracked(self, value: torch.Tensor, proxy: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import track_tensor_tree

        with without_tracing():
            track_tensor_tree(value, proxy, constant=None, tracer=self.tracer)
        return self.wrap(value)

    def node_of(self, value: Any) -> Any:
        """The node that holds the current contents of a functional tensor, or of a symbolic number."""
        from torch.fx.experimental.proxy_tensor import get_proxy_slot

        if isinstance(value, SYM_TYPES):
            return get_proxy_slot(value, self.tracer).force().node
        if not isinstance(value, torch.Tensor):
            return value
        torch._sync(value)  # type: ignore[attr-defined,no-untyped-call]
        inner = torch._from_functional_tensor(value.elem)  # type: ignore[attr-defined]
        return get_proxy_slot(inner, self.tracer, None, lambda p: p.proxy.node)

    @contextlib.contextmanager
    def active(self, decompositions: dict[Any, Callable[..., Any]]) -> Iterator[dict[str, Any]]:
        """The modes of the replay; yields the dict that is copied into each new node's meta."""
        import torch.fx.traceback as fx_traceback
        from torch._subclasses.functional_tensor import FunctionalTensorMode
        from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, decompose, maybe_enable_thunkify

        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            enter(no_modes())
            enter(self.mode)
            enter(enable_python_dispatcher())
            enter(ProxyTorchDispatchMode(self.tracer, "symbolic"))
            enter(decompose(decompositions))
            enter(disable_autocast_cache())
            enter(fx_traceback.preserve_node_meta())
            enter(maybe_enable_thunkify())
            enter(exclude_functionalize())
            enter(FunctionalTensorMode())
            enter(torch.no_grad())
            enter(disable_autocast())
            meta = fx_traceback.current_meta
            meta["in_grad_fn"] = 1
            meta["grad_fn_seq_nr"] = [-1]
            yield meta

    def finish(self, outputs: list[Any]) -> torch.fx.GraphModule:
        """The finished graph."""
        self.tracer.create_node("output", "output", (outputs,), {})
        return graph_module(self.tracer.root, self.tracer.graph, "joint")


# --- op bindings and back ends
DispatchMode: Any = TorchDispatchMode  # Any, because torch's class is not annotated and could not be subclassed

_core: Any = torch._C

BINDING_HOLDERS: tuple[tuple[str, Any], ...] = (
    ("torch", _core._VariableFunctions),
    ("torch.Tensor", _core.TensorBase),
    ("torch._C._nn", _core._nn),
    ("torch._C._linalg", _core._linalg),
    ("torch._C._special", _core._special),
    ("torch._C._fft", _core._fft),
)


def raw_callable(op: OpOverload) -> Callable[..., Any]:
    """The C++ function behind ``op``: ``op(...)`` without its Python layer."""
    return op._op


def op_name(op: OpOverload) -> str:
    """The name of ``op`` without namespace and overload: ``add`` of ``aten::add.Tensor``."""
    return str(op._schema.name).rpartition("::")[2]


def op_schema(op: OpOverload) -> Any:
    """The schema of ``op``: its arguments (name, type, default, alias information) and returns."""
    return op._schema


class StandIn(torch.Tensor):
    """A tensor without data, with the dispatch keys of a real one. It is passed to operations that never run."""

    __torch_function__ = disabled_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{func} ran on a stand-in")

    @staticmethod
    def make(
        size: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        layout: torch.layout,
        requires_grad: bool,
    ) -> torch.Tensor:
        """A stand-in of this metadata."""
        make: Any = torch.Tensor._make_wrapper_subclass
        return make(StandIn, size, stride, 0, None, dtype, layout, device, False, requires_grad)  # type: ignore[no-any-return]


no_overrides: Any = torch._C.DisableTorchFunction  # context: no __torch_function__, no function modes


@contextlib.contextmanager
def plain_dispatch() -> Iterator[None]:
    """The state in which compiled graphs run: no modes, no overrides, no autocast, no gradients, no inference mode."""
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


def inductor_obstacle(devices: set[str]) -> str | None:
    """Why inductor cannot compile for these device types here; None if nothing is known to be missing."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    if not devices or "cpu" in devices:
        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            return "no working C++ compiler"
    if "cuda" in devices and not has_triton():
        return "no working Triton"
    return None


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's decomposition table for graphs whose random numbers are those of eager mode."""
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=True):
        return dict(select_decomp_table())


def needs_exact_strides(target: object) -> bool:
    """Must the inputs of this operation have the strides that they have in eager mode?"""
    from torch._library.utils import get_layout_constraint_tag

    exact = getattr(torch.Tag, "needs_exact_strides", None)
    return isinstance(target, OpOverload) and exact is not None and get_layout_constraint_tag(target) is exact


@contextlib.contextmanager
def _with_real_constants(mode: FakeTensorMode) -> Iterator[None]:
    """Inductor's passes may run operations on a graph's constants, which are real tensors."""
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def inductor_compile(
    gm: torch.fx.GraphModule, example_inputs: list[Any], *, is_backward: bool, is_inference: bool, visible: list[int]
) -> tuple[Callable[..., Any], list[tuple[Any, ...] | None]]:
    """Compile one dense graph, which inductor rewrites in place.

    Outputs at the places in ``visible`` keep their traced strides. Random numbers are those of eager mode.

    Returns: the boxed callable, and for each output the strides that it will have (None for what is no tensor);
    the list is empty where inductor reports none.
    """
    from torch._dynamo.convert_frame import compile_lock
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
    from torch._inductor.utils import BoxedBool
    from torch._inductor.virtualized import V

    vals = [node.meta.get("val") for node in gm.graph.nodes]
    mode = next((v.fake_mode for v in (*example_inputs, *vals) if isinstance(v, FakeTensor)), None) or FakeTensorMode()
    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) and not is_fake(x) else x for x in example_inputs]
    gm.graph.output_node().meta["user_visible_output_idxs"] = visible
    context = TracingContext(mode)
    with (
        compile_lock,
        plain_dispatch(),
        tracing(context),
        V.set_fake_mode(mode),
        _with_real_constants(mode),
        config.patch(fallback_random=True),
    ):
        if is_inference:  # in training torch runs these passes on the joint graph, which our partitioners have cut
            _recursive_joint_graph_passes(gm)
        with TracingContext.report_output_strides() as strides:
            compiled = compile_fx_inner(
                gm,
                fakes,
                static_input_idxs=(),
                cudagraphs=BoxedBool(False),
                is_backward=is_backward,
                is_inference=is_inference,
            )
    return compiled, list(strides or ())


NO_FAKE_KERNEL = UnsupportedOperatorException
DATA_DEPENDENT_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


@contextlib.contextmanager
def functorch_config(**values: Any) -> Iterator[None]:
    """Options of torch's partitioner, set while inside."""
    import torch._functorch.config as config

    with config.patch(**values):
        yield


#: the generator behind non-reentrant ``torch.utils.checkpoint.checkpoint``
CHECKPOINT_GENERATOR = "_checkpoint_without_reentrant_generator"


# ---------------------------------------------------------------------------------------------- thread state
def autocast_state() -> tuple[Any, ...]:
    """Empty when autocast is off everywhere; else (device, dtype) pairs and whether the cache is on."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    devices = [d for d in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(d)]
    return (*[(d, torch.get_autocast_dtype(d)) for d in devices], torch.is_autocast_cache_enabled())


def functorch_active() -> bool:
    """Is a vmap, grad or jvp around the call?"""
    return torch._C._functorch.peek_interpreter_stack() is not None


def forward_ad_level() -> int:
    """Level of forward-mode AD; -1 when there is none."""
    return int(torch.autograd.forward_ad._current_level)


def dispatch_modes_active() -> bool:
    """Is a ``__torch_dispatch__`` mode active?"""
    from torch._C import _len_torch_dispatch_stack

    return _len_torch_dispatch_stack() > 0


def default_devices() -> tuple[torch.device, ...] | None:
    """The devices of ``torch.set_default_device`` and ``with torch.device(...)`` that are active, outermost first.

    None when another ``__torch_function__`` mode is active as well.
    """
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if not all(isinstance(m, DeviceContext) for m in modes):
        return None
    return tuple(m.device for m in modes)


def function_modes_active() -> bool:
    """Is a ``__torch_function__`` mode active, other than a default device?"""
    return int(torch._C._len_torch_function_stack()) > 0 and default_devices() is None


# ---------------------------------------------------------------------------------------------- pytrees
def pytree_namespace() -> str:
    """optree's namespace that holds every pytree node registered with torch (and, by inheritance, globally)."""
    import torch.utils._cxx_pytree  # noqa: F401

    return "torch"


def shape_conditions(env: ShapeEnv, known: Any) -> list[Any]:
    """What a trace assumed of its size symbols, as sympy conditions: branches taken, and ranges of the symbols."""
    import sympy  # type: ignore[import-untyped]

    conditions = [g.expr for g in env.guards]
    for symbol in known:
        bounds = env.var_to_range.get(symbol)
        if bounds is not None and bounds.lower.is_Integer and bounds.lower > 0:
            conditions.append(sympy.Ge(symbol, bounds.lower, evaluate=False))
    return [c for c in conditions if c is not sympy.true]


# ---------------------------------------------------------------------------------------------- fast construction
def build_wrapper(cls: type, size: Any, stride: Any, offset: int, dtype: Any, layout: Any, device: Any) -> torch.Tensor:
    """``Tensor._make_wrapper_subclass`` with positional arguments (a quarter faster than by keyword)."""
    return WRAPPER_CONSTRUCTOR(cls, size, stride, offset, None, dtype, layout, device, False, False)


WRAPPER_CONSTRUCTOR: Callable[..., torch.Tensor] = torch.Tensor._make_wrapper_subclass


def dispatch_keys(t: torch.Tensor) -> int:
    """The dispatch key set of a tensor as a number."""
    return int(torch._C._dispatch_keys(t).raw_repr())


class DispatchLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that runs inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note it and run it."""
        if func.namespace != "prim":
            self.operations.append(func)
        return func(*args, **(kwargs or {}))


#: class -> (attribute that alone decides the flatten context and opaque attributes, constructor from that attribute)
def context_shortcut(cls: type) -> str | None:
    """An attribute of which the flatten context (and any opaque attribute) is a function; None when there is none known."""
    return "_spec" if _is_dtensor(cls) else None


def _is_dtensor(cls: type) -> bool:
    if cls.__name__ != "DTensor" or not cls.__module__.startswith("torch.distributed"):
        return False
    from torch.distributed.tensor import DTensor

    return cls is DTensor


def shortcut_constructor(cls: type) -> Callable[..., torch.Tensor] | None:
    """``make(cls, local tensor, spec, requires_grad=False)`` for DTensor, where this torch has it."""
    return getattr(torch.Tensor, "_dtensor__new__", None) if _is_dtensor(cls) else None


def tensor_guard(tensors: list[torch.Tensor], sizes: list[Any], strides: list[Any]) -> Callable[..., bool] | None:
    """A C++ check of types, dispatch keys, dtypes, devices, requires_grad, sizes and strides, and of distinctness.

    ``sizes`` and ``strides``: per tensor a list of ints, None where a dimension is not checked. None when this torch
    has no such check: then the generated code compares in Python.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        return None
    check: Callable[..., bool] = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def call_backward_directly(function: type[torch.autograd.Function]) -> None:
    """Let the engine call ``function.backward`` without the frame that looks it up on each call.

    The engine calls ``apply`` of the node's class; torch's version of it serves ``vjp`` and boxed gradients as well.
    """
    node_class: Any = function._backward_cls
    node_class.apply = function.backward


def base_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its Python prologue; only right when no functorch transform is active."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


peek_functorch = torch._C._functorch.peek_interpreter_stack
dispatch_stack_length = torch._C._len_torch_dispatch_stack
function_stack_length = torch._C._len_torch_function_stack
any_autocast = torch._C._is_any_autocast_enabled
grad_enabled = torch.is_grad_enabled
set_grad = torch._C._set_grad_enabled
keeps_graph_now = torch._C._autograd._get_current_graph_task_keep_graph
forward_ad = torch.autograd.forward_ad


def expression_source(expr: Any, names: dict[Any, str]) -> str:
    """A sympy expression over size symbols as Python source with these local names."""
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    renamed = expr.xreplace({s: sympy.Symbol(n, integer=True) for s, n in names.items()})
    return f"({PythonPrinter().doprint(renamed)})"


def graph_module(root: Any, graph: torch.fx.Graph, name: str = "GraphModule") -> torch.fx.GraphModule:
    """A graph module that writes its Python code only when somebody reads or calls it."""
    from torch.fx._lazy_graph_module import _make_graph_module

    with lazy_graph_modules():
        return _make_graph_module(root, graph, name)


@contextlib.contextmanager
def lazy_graph_modules() -> Iterator[None]:
    """Graph modules that torch makes inside are lazy as well."""
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        yield
