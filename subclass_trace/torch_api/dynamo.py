"""What `frontends/dynamo.py` needs of torch's private API: Dynamo's numbers, its operators, its
errors.

Nothing here imports Dynamo when it is imported: the functions run inside a compilation, where
Dynamo is loaded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._ops import HigherOrderOperator, _higher_order_ops
from torch._subclasses.fake_tensor import FakeTensor

from ..errors import GuardError, OptionError
from .dynamo_faults import READS_WORLD, TAKEN_FOR_CONSTANT
from .lines import warn_user
from .repairs.optimizers import keep_capturable
from .this_thread import replaced_here


def compile_alone(function: Callable[..., Any], **options: Any) -> Any:
    """``torch.compile`` with our back end, and with a limit of recompilations of its own.

    Otherwise (before torch 2.15) all that are compiled of one code object count as one, and run
    eagerly beyond the limit.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    register_our_backend()
    if isinstance(function, torch.jit.ScriptModule):  # which torch refuses
        function = function.__call__
    before = set(getattr(function, "__dict__", ()))
    compiled = torch.compile(function, backend=OUR_BACKEND, **options)
    if isinstance(function, torch.nn.Module) and "_is_torch_compile" not in before:
        # torch marks the module instead of its wrapper
        vars(function).pop("_is_torch_compile", None)
    return compiled


def placeholder_number(node: torch.fx.Node) -> Any:
    """The symbol that stands for the number in an input without dimensions, as Dynamo makes them of
    Python floats; or None."""
    fake = node.meta.get("example_value")
    number = fake.item_memo if isinstance(fake, FakeTensor) else None
    # one of a value inside a tensor has none
    return None if number is None or number.node.hint is None else number


def is_of_dynamo(error: Exception) -> bool:
    """Does Dynamo raise it of its own, or does an assertion fail of its, or of what it makes fake
    tensors with?"""
    from torch._dynamo.exc import TorchDynamoException

    if isinstance(error, TorchDynamoException):
        return True
    places, where = [""], error.__traceback__
    while where is not None:
        places.append(where.tb_frame.f_globals.get("__name__") or "")
        where = where.tb_next
    own = any(name.startswith("torch._dynamo.") for name in places)
    inner = ("torch._dynamo.", "torch._subclasses.", "torch.fx.experimental.")
    return own and isinstance(error, AssertionError) and places[-1].startswith(inner)


_here = threading.local()


def failures_run_eagerly(run: bool) -> bool:
    """Shall this thread run eagerly the code that Dynamo fails to compile, by a fault of its own or
    by an error of the code's, which eager mode then raises as it is? What it did so far."""
    before = failures_run_eagerly_here()
    _here.failures_run_eagerly = run
    return before


def failures_run_eagerly_here() -> bool:
    """See `failures_run_eagerly`."""
    return bool(getattr(_here, "failures_run_eagerly", False))


def _run_failures_eagerly() -> None:
    """(Its own switch, ``suppress_errors``, is of all threads, and hides what back ends say.)"""
    from torch._dynamo import convert_frame
    from torch._dynamo.exc import InternalTorchDynamoError, TorchRuntimeError
    from torch._dynamo.types import ConvertFrameReturn

    cls: Any = convert_frame.ConvertFrame
    original = cls.__call__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        ours = failures_run_eagerly_here()
        if ours and not TAKEN_FOR_CONSTANT.isdisjoint(frame.f_code.co_names):
            warn_user(f"a call of a region runs eagerly in part: {READS_WORLD}")
            return ConvertFrameReturn()
        # Dynamo takes it for sure that no hook comes later
        hooks = torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)
        try:
            with hooks if ours else contextlib.nullcontext():
                return original(self, frame, *args, **kwargs)
        except Exception as error:
            fault = isinstance(error, (InternalTorchDynamoError, TorchRuntimeError))
            fault = fault or (isinstance(error, AssertionError) and is_of_dynamo(error))
            if not fault or not ours:
                raise
            kind, line = type(error).__name__, next(iter(str(error).splitlines()), "")
            line = line if line.startswith(kind) else f"{kind}: {line}"
            # what follows a graph break is a function of its own
            name = re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", frame.f_code.co_name)
            warn_user(f"torch.compile fails to compile {name}, which runs eagerly: {line}")
            return ConvertFrameReturn()

    cls.__call__ = call


def frames_tried() -> tuple[int, int]:
    """How many frames Dynamo has tried to compile by now, in all threads, and how many of these it
    could not."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0, 0
    frames = utils.counters["frames"]
    return frames["total"], frames["total"] - frames["ok"]


def graph_breaks() -> dict[str, int]:
    """Dynamo's reasons for what it could not compile -> how often it met each."""
    from torch._dynamo.utils import counters

    return {**counters["graph_break"], **counters["unimplemented"]}


def recompile_limit() -> int:
    """So often Dynamo compiles a frame, before it lets it run eagerly."""
    return int(torch._dynamo.config.recompile_limit)


def autograd_operations_traced() -> Any:
    """Inside, Dynamo takes `torch.autograd.grad` and ``backward()`` into its graphs."""
    return torch._dynamo.config.patch(trace_autograd_ops=True)


#: what Dynamo says where it needs that
TRACES_AUTOGRAD = "trace_autograd_ops"


#: our back end, as the entry point of the package names it
OUR_BACKEND = "subclass_trace"
_WHERE = "subclass_trace.frontends.dynamo:subclass_trace"


_REGISTERING = threading.Lock()


def register_our_backend() -> None:
    """Let ``torch.compile`` find our back end by its name, where the package is on the path without
    being installed."""
    from torch._dynamo.backends import registry

    with _REGISTERING:  # two threads may hand over their first regions at once
        if OUR_BACKEND not in registry.list_backends(exclude_tags=()):
            registry.register_backend(compiler_fn=pkgutil.resolve_name(_WHERE), name=OUR_BACKEND)
        registry.lookup_backend(OUR_BACKEND)  # which loads that of an entry point, once
        keep_capturable(OUR_BACKEND)
        _run_failures_eagerly()


_F = TypeVar("_F", bound=Callable[..., Any])


def never_compiled(function: _F) -> _F:
    """Dynamo leaves calls of this function alone, and all that they call.

    Without it, a backward or a region that runs while a ``torch.compile`` further out is active
    would be compiled.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


#: what ``torch._dynamo.mark_dynamic`` and its kind leave in the ``__dict__`` of a tensor
MARKS = frozenset(
    [
        "_has_dynamo_dim_marking",
        "_specialize_on",
        "_dynamo_dynamic_range",
        "_dynamo_hint_overrides",
        "_dynamo_shape_ids",
    ]
    + [
        f"_dynamo_{kind}_indices"
        for kind in ("dynamic", "weak_dynamic", "static", "unbacked", "strict_unbacked")
    ]
    + ["_dynamo_unbacked_bounds"]
)


def marked(t: torch.Tensor, *marks: str) -> frozenset[int]:
    """Dimensions with one of these marks."""
    return frozenset(d for mark in marks for d in getattr(t, f"_dynamo_{mark}_indices", ()) or ())


def marked_dims(t: torch.Tensor) -> frozenset[int]:
    """Dimensions marked with ``torch._dynamo.mark_dynamic`` or ``maybe_mark_dynamic`` (or
    ``mark_unbacked``)."""
    return marked(t, "dynamic", "weak_dynamic", "unbacked")


def check_marks(t: torch.Tensor, spec: Any, path: str) -> None:
    """A size that ``mark_dynamic`` marks is an error where the region fixes it, as with
    ``torch.compile``.

    Raises:
        OptionError: it is.
    """
    for d in marked(t, "dynamic"):
        # 0 and 1 are numbers in each trace, as in torch's
        if type(spec.size[d]) is int and spec.size[d] > 1:
            raise OptionError(
                "a size that torch._dynamo.mark_dynamic marks is a number in the region",
                path=f"{path}.shape[{d}]",
                expected="a region that holds for every size",
                got=f"code, or a class, that holds for {spec.size[d]} alone",
                fix="mark it by torch._dynamo.maybe_mark_dynamic, or not at all",
            )


def disabled_function(frame: types.FrameType) -> Any:
    """The function that ``torch.compiler.disable`` wraps, where this is the frame of such a
    wrapper; else None."""
    code = frame.f_code
    if code.co_freevars in (("fn", "self"), ("fn",)) and code.co_name in (
        "_fn",
        "nonrecursive_disable_wrapper",
    ):
        return frame.f_locals["fn"]
    return None


def _stance() -> str:
    # where Dynamo is not loaded, nobody has set one
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return "default" if frames is None else frames._stance.stance


def eager_by_stance(*, first: bool) -> str | None:
    """Why a call that nothing serves runs eagerly; ``first``: there was none yet."""
    stance = _stance()
    runs = stance == "eager_on_recompile" or (first and stance.endswith("eager_then_compile"))
    return f"torch.compiler.set_stance({stance!r}) is active" if runs else None


def check_stance(reason: Callable[[], str]) -> None:
    """A call would be compiled, for this reason.

    Raises:
        GuardError: ``torch.compiler.set_stance`` does not want that.
    """
    if _stance() == "fail_on_recompile":
        what = (
            "a call would be compiled, and torch.compiler.set_stance('fail_on_recompile') is active"
        )
        raise GuardError(what, expected="calls that the specializations serve", got=reason())


def eager_is_forced_code(bind: Callable[[str, Any], str]) -> str:
    """An expression of the same."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return f"{bind('eager_forced', eager_is_forced)}()"
    return f"{bind('frames', frames)}._stance.stance == 'force_eager'"


def eager_is_forced() -> bool:
    """Does ``torch.compiler.set_stance`` ask for eager calls? Asked in each call."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and frames._stance.stance == "force_eager"


def higher_order_name(target: object) -> str | None:
    """The name of a higher order operator; None for any other target of a node."""
    operator: Any = target
    return str(operator.name()) if isinstance(target, HigherOrderOperator) else None


def higher_order_named(name: str) -> Any:
    """The higher order operator of this name.

    Raises:
        KeyError: none is loaded.
    """
    return _higher_order_ops[name]


def no_proxies() -> Any:
    """Inside, an `autograd.Function` of Dynamo's does not look for proxies of what it keeps: it
    would take the mode that records for torch's own."""
    import torch.fx.experimental.proxy_tensor as proxies

    return replaced_here(proxies, "_get_proxies", lambda t: [], absent=lambda t: [])


def dynamo_lock() -> Any:
    """Dynamo's lock around compilations, which comes before ours; nothing where Dynamo is not
    loaded."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    lock = getattr(frames, "compile_lock", None)
    return contextlib.nullcontext() if lock is None else lock


class _Reset:
    """Looks like a back end to Dynamo, whose `reset` asks each back end to forget."""

    def __init__(self) -> None:
        self.regions = weakref.WeakSet[Any]()

    def reset(self) -> None:
        """All regions forget; Dynamo holds its lock."""
        for region in list(self.regions):
            region.reset()


_RESET = _Reset()


def reset_with_dynamo(region: Any) -> None:
    """``torch.compiler.reset()`` calls ``region.reset()``, too, once (Dynamo forgets its back
    ends). Where Dynamo is not loaded, as after a start from a file, it does not."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", None)
    if backends is not None:
        _RESET.regions.add(region)
        backends[id(_RESET)] = _RESET
