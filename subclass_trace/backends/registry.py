"""Back ends by name, and the one place where a back end's compiler is called."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.fx as fx

from ..errors import BackendError, OptionError, SubclassTraceError
from ..torch_api.inductor import inductor_decompositions
from ..torch_api.texts import text_of
from . import eager, inductor
from .cudagraphs.pool import Pool, Settings
from .cudagraphs.program import compile_graphed
from .eager.graph_code import BoxedGraph

Compiler: TypeAlias = "Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]"
Compiled: TypeAlias = "Callable[[list[Any]], Sequence[Any]]"
Decompositions: TypeAlias = "Callable[[], dict[Any, Callable[..., Any]]]"


@dataclass(frozen=True)
class Backend:
    """A back end.

    Attributes:
        name: for people, and for `resolve_backend` once it is registered.
        forward: compiles forward graphs of training: inputs to (outputs, saved activations).
        backward: compiles backward graphs: (saved activations, tangents) to gradients.
        inference: compiles graphs that are not differentiated.
        decompositions: makes the table of decompositions that capture applies; None for none.
        explain: what it tells of its programs.
        freezer: of a frozen region (`runtime.frozen.Freezer`), which cuts forwards before they are
        compiled.
    """

    name: str
    forward: Compiler
    backward: Compiler
    inference: Compiler
    decompositions: Decompositions | None = None
    explain: Callable[[], str] | None = None
    freezer: Any = None


#: the kernels of the eager back end, in CUDA graphs
CUDAGRAPHS = "cudagraphs"
_EAGER = Backend("eager", eager.compile_eager, eager.compile_eager, eager.compile_eager)
_INDUCTOR = Backend(
    "inductor",
    inductor.compile_with_inductor,
    functools.partial(inductor.compile_with_inductor, is_backward=True),
    functools.partial(inductor.compile_with_inductor, is_inference=True),
    inductor_decompositions,
)
_BUILT_IN: dict[str, Backend] = {
    "eager": _EAGER,
    "aot_eager": _EAGER,
    "inductor": _INDUCTOR,
    CUDAGRAPHS: dataclasses.replace(_EAGER, name=CUDAGRAPHS),
}
_registered: dict[str, Backend] = {}
_COMPILER = "a callable (graph_module, example_inputs) -> callable"


def register_backend(name: str, backend: Compiler | Backend, *, replace: bool = False) -> Backend:
    """Give a back end a name, which users will pass as ``backend``.

    Args:
        backend: a compiler for every graph, or a `Backend` with one for each role.
        replace: allow that another back end was registered under this name before.

    Raises:
        OptionError: the name is taken, or a compiler is not callable.
    """
    if name in _BUILT_IN or (name in _registered and not replace):
        raise OptionError(
            f"there is a back end {name!r} already", path="name", fix="choose another name"
        )
    _registered[name] = dataclasses.replace(resolve_backend(backend), name=name)
    return _registered[name]


def resolve_backend(
    backend: str | Compiler | Backend,
    *,
    fw_compiler: Compiler | None = None,
    bw_compiler: Compiler | None = None,
    how: Callable[[Backend], Backend] | None = None,
) -> Backend:
    """The back end that a user means.

    Args:
        backend: a name, a back end, or a callable ``(graph_module, example_inputs) -> callable``
            for every graph.
        fw_compiler: replaces the compiler of forward and inference graphs and, without
            ``bw_compiler``, that of backward graphs (as in ``functorch.compile.aot_function``).
        bw_compiler: replaces the compiler of backward graphs.
        how: what is made of the back end before that.

    Raises:
        OptionError: an unknown name, or something that is not callable.
    """
    if isinstance(backend, Backend):
        base = backend
    elif isinstance(backend, str):
        found = _BUILT_IN.get(backend) or _registered.get(backend)
        if found is None:
            names = ", ".join(map(repr, sorted({*_BUILT_IN, *_registered})))
            raise OptionError(
                f"there is no back end {backend!r}",
                path="backend",
                expected=f"one of {names}, or {_COMPILER}",
                fix="pass one of these, or name one: "
                f"subclass_trace.backends.register_backend({backend!r}, compiler)",
            )
        base = found
    else:
        base = Backend(_name(backend, "backend"), backend, backend, backend)
    if how is not None:
        base = how(base)
    elif base is _BUILT_IN[CUDAGRAPHS]:
        base = with_cudagraphs(base, Settings())
    if fw_compiler is not None:
        name = _name(fw_compiler, "fw_compiler")
        base = dataclasses.replace(
            base, name=name, forward=fw_compiler, backward=fw_compiler, inference=fw_compiler
        )
    if bw_compiler is not None:
        name = f"{base.name}+{_name(bw_compiler, 'bw_compiler')}"
        base = dataclasses.replace(base, name=name, backward=bw_compiler)
    return base


def with_cudagraphs(base: Backend, settings: Settings) -> Backend:
    """The back end's programs, in CUDA graphs that share one pool.

    Raises:
        BackendError: there is no CUDA, and no other recorder.
    """
    pool = Pool(settings)

    def graphed(role: str) -> Compiler:
        backward, compiler = role == "backward", getattr(base, role)
        inner = functools.partial(compile_with, compiler, is_backward=backward, name=base.name)
        by_operation = runs_operations(compiler)
        rest: Any = {"pool": pool, "role": role, "opaque": not by_operation}

        def compile_recorded(gm: fx.GraphModule, examples: Sequence[Any]) -> Any:
            return _Boxed(compile_graphed(gm, examples, inner=inner, **rest))

        compile_recorded.by_operation = by_operation  # type: ignore[attr-defined]
        return compile_recorded

    forward, backward, inference = map(graphed, ("forward", "backward", "inference"))
    rest = base.decompositions, pool.explain
    return Backend(base.name, forward, backward, inference, *rest)


def runs_operations(compiler: Compiler) -> bool:
    """Does what it compiles run operation by operation? Then nothing is fused, and an inference
    graph may write to its inputs."""
    return compiler is eager.compile_eager or getattr(compiler, "by_operation", False)


@dataclass(frozen=True)
class _Boxed:
    """What has the boxed convention already."""

    function: Compiled

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        return self.function(inputs)


def _name(compiler: Any, path: str) -> str:
    if not callable(compiler):
        got = f"{text_of(compiler)} of type {type(compiler).__name__}"
        raise OptionError(
            "a back end's compiler must be callable", path=path, expected=_COMPILER, got=got
        )
    return str(getattr(compiler, "__name__", None) or type(compiler).__name__)


# ---- calling a compiler
def compile_with(
    compiler: Compiler,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    is_backward: bool,
    name: str,
    of_dynamo: bool = False,
) -> Compiled:
    """Compile a graph with a back end's compiler, and bring the result into the boxed convention.

    The compiler may return a boxed function (attribute ``_boxed_call`` is true: it takes one list)
    or a plain one, which may return a single tensor for a graph with one output.
    ``gm.meta["is_backward"]`` tells it which it is.

    Args:
        compiler: of the role that fits the graph.
        gm: the dense graph.
        example_inputs: fake tensors and sizes. At run time inputs have their sizes and strides.
        is_backward: is it a backward graph?
        name: of the back end, for messages.
        of_dynamo: it returns what Dynamo calls with one argument for each input, whatever
            attributes that has (AOTAutograd's has ``_boxed_call`` and takes no list).

    Returns: takes a list of inputs, empties it, and returns the flat outputs as a tuple or list.

    Raises:
        BackendError: the compiler raised something, or did not return a callable.
    """
    gm.meta["is_backward"] = is_backward
    which = "backward" if is_backward else "forward"
    outputs = gm.graph.output_node().args[0]  # before the compiler, which may rewrite the graph
    count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
    try:
        compiled = compiler(gm, example_inputs)
    except SubclassTraceError:
        raise
    except Exception as error:
        raise BackendError(
            f"the back end {name!r} failed on the {which} graph",
            expected="a compiler that returns a callable",
            got=f"{type(error).__name__}: {error}",
            fix='look at the exception above; backend="eager" shows whether the graph itself is '
            "right",
        ) from error
    if isinstance(compiled, (BoxedGraph, _Boxed)):
        return compiled.function
    if not callable(compiled):
        raise BackendError(
            f"the back end {name!r} did not return a callable for the {which} graph",
            expected="a callable that takes the inputs of the graph",
            got=f"{text_of(compiled)} of type {type(compiled).__name__}",
            fix="return graph_module.forward to run the graph as it is",
        )
    takes_list = bool(getattr(compiled, "_boxed_call", False)) and not of_dynamo
    what = f"the callable that the back end {name!r} made for the {which} graph"
    return _boxed(compiled, count, what, takes_list)


def _boxed(compiled: Callable[..., Any], count: int, what: str, takes_list: bool) -> Compiled:

    def run(inputs: list[Any]) -> Sequence[Any]:
        if takes_list:
            results = compiled(inputs)
            inputs.clear()
        else:
            values = tuple(inputs)
            inputs.clear()
            results = compiled(*values)
        if count == 0 and results is None:
            results = ()
        if count == 1 and (results is None or isinstance(results, torch.Tensor)):
            results = (results,)
        if not isinstance(results, (tuple, list)) or len(results) != count:
            raise BackendError(
                f"{what} returned something else than the outputs of the graph",
                expected=f"a tuple or list of {count} values",
                got=f"{len(results)} values"
                if isinstance(results, (tuple, list))
                else f"a {type(results).__name__}",
            )
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
