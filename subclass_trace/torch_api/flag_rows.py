"""The rows of torch's flags that C++ keeps; `flags` adds those of Python, and makes one table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch._tensor_str
import torch.utils.checkpoint

from .dtensor_modes import dtensor_modes
from .modes import default_devices

#: decides how any code is traced: each region compares it
ALWAYS = "always"
#: decides nothing but what code does that asks for it, or sets it
ASKED = "asked"
#: decides where autocast is on, or where the region turns it on
AUTOCAST = "autocast"
#: decides where ``scaled_dot_product_attention`` was met
ATTENTION = "attention"
#: decides where ``torch.einsum`` was met
EINSUM = "einsum"
#: decides where a DTensor was met
DTENSOR = "dtensor"
#: each kernel reads it as it runs, so it decides only for a back end that makes its own kernels
KERNELS = "kernels"


@dataclass(frozen=True)
class Flag:
    """One flag of torch.

    Attributes:
        name: in the words of torch's documentation.
        read: its value now, in this thread: immutable, compared by ``==``.
        write: puts a value there that ``read`` gave; None where contexts alone set it.
        code: Python for a guard, of the names in `GUARD_NAMES`, whose value is what ``read`` gives.
        decides: `ALWAYS`, `ASKED`, or where something is met (`ATTENTION`, ...).
        of_thread: is each thread's own?
        lays_out: do fake kernels ask for it, so that it is part of the key of what they have found?
        getters: functions of torch whose answer is this flag, or is made of it and of constants.
        setters: functions of torch that set it.
        of_kernels: may a kernel ask for it as it runs, so that values depend on it?
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None
    code: str
    decides: str = ASKED
    of_thread: bool = False
    lays_out: bool = False
    getters: tuple[Callable[..., Any], ...] = ()
    setters: tuple[Callable[..., Any], ...] = ()
    of_kernels: bool = False


_C: Any = torch._C  # not all of it is annotated
#: what `Flag.code` may name
GUARD_NAMES: Mapping[str, Any] = MappingProxyType(
    {"torch": torch, "default_devices": default_devices, "dtensor_modes": dtensor_modes},
)


def evaluated(code: str) -> Callable[[], Any]:
    """What reads a flag as its code does."""
    read: Callable[[], Any] = eval(f"lambda: {code}", dict(GUARD_NAMES))
    return read


def found(*names: str) -> tuple[Callable[..., Any], ...]:
    """The functions of ``torch``, or of ``torch._C``, that this torch has."""
    holders = [torch, torch._C]
    found = (getattr(holder, name, None) for name in names for holder in holders)
    return tuple(dict.fromkeys(function for function in found if function is not None))


def of_c(
    name: str,
    getter: str,
    setter: str | None,
    decides: str = ASKED,
    *,
    asked_by: Sequence[str] = (),
    set_by: Sequence[str] = (),
    **more: Any,
) -> Iterable[Flag]:
    """A row of two functions of ``torch._C``; none where this torch lacks the getter."""
    read = getattr(torch._C, getter, None)
    if read is None:
        return
    write = None if setter is None else getattr(torch._C, setter)
    getters = found(getter, *asked_by)
    yield Flag(
        name,
        read,
        write,
        f"torch._C.{getter}()",
        decides,
        getters=getters,
        setters=found(*filter(None, (setter,)), *set_by),
        **more,
    )


# ---- of the thread
def _set_torch_function(state: tuple[bool, bool]) -> None:
    enabled, all_disabled = state
    states = _C._TorchFunctionState
    disabled = states.ALL_DISABLED if all_disabled else states.SUBCLASSES_DISABLED
    _C._set_torch_function_state(states.ENABLED if enabled else disabled)


def _set_default_devices(then: tuple[torch.device, ...] | None) -> None:
    """Contexts (``with torch.device(...)``) leave by themselves: the outermost one stays."""
    if default_devices() == then:
        return
    for outermost in (None, *(then or ())[:1]):
        torch.set_default_device(outermost)
        if default_devices() == then:
            return
    raise RuntimeError(f"default devices are {default_devices()}, and were {then}")


def _saved_hooks_message() -> str | None:
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()


def _set_saved_hooks_message(message: str | None) -> None:
    if message is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(message)


def modes_rows() -> Iterable[Flag]:
    """What a thread has switched on."""
    yield from of_c("grad mode", "is_grad_enabled", "_set_grad_enabled", ALWAYS, of_thread=True)
    yield from of_c(
        "inference mode",
        "is_inference_mode_enabled",
        None,
        ALWAYS,
        of_thread=True,
        lays_out=True,
    )
    code = "(torch._C._is_torch_function_enabled(), torch._C._is_torch_function_all_disabled())"
    yield Flag(
        "__torch_function__",
        evaluated(code),
        _set_torch_function,
        code,
        ALWAYS,
        of_thread=True,
        getters=found(
            "_is_torch_function_enabled",
            "_is_torch_function_all_disabled",
            "_get_torch_function_state",
        ),
        setters=found("_set_torch_function_state"),
    )
    yield Flag(
        "default devices",
        default_devices,
        _set_default_devices,
        "default_devices()",
        ALWAYS,
        of_thread=True,
        lays_out=True,
        getters=found("get_default_device"),
        setters=found("set_default_device"),
    )
    code = "(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())"
    yield Flag(
        "anomaly mode",
        evaluated(code),
        lambda state: torch.set_anomaly_enabled(*state),
        code,
        getters=found("is_anomaly_enabled", "is_anomaly_check_nan_enabled"),
        setters=found("set_anomaly_enabled"),
    )


def autograd_rows() -> Iterable[Flag]:
    """What a thread has switched on of the engine."""
    yield from of_c(
        "multithreaded backward",
        "_is_multithreading_enabled",
        "_set_multithreading_enabled",
        of_thread=True,
    )
    yield from of_c(
        "view replay",
        "_is_view_replay_enabled",
        "_set_view_replay_enabled",
        of_thread=True,
    )
    yield from of_c(
        "forward-mode AD",
        "_is_fwd_grad_enabled",
        "_set_fwd_grad_enabled",
        of_thread=True,
    )
    yield Flag(
        "saved-tensor hooks disabled",
        _saved_hooks_message,
        _set_saved_hooks_message,
        "torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()",
        of_thread=True,
        getters=(
            torch._C._autograd._saved_tensors_hooks_get_disabled_error_message,
            _C._autograd._saved_tensors_hooks_is_enabled,
        ),
        setters=(
            torch._C._autograd._saved_tensors_hooks_disable,
            torch._C._autograd._saved_tensors_hooks_enable,
        ),
    )


_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "mtia", "maia", "ipu", "privateuseone")
_OF_DEVICES = [f"autocast_{device}" for device in ("cpu", "gpu", "ipu", "xla")]
_ASK_AUTOCAST = (
    "is_autocast_enabled",
    "get_autocast_dtype",
    *[f"is_{name}_enabled" for name in _OF_DEVICES],
    *[f"get_{name}_dtype" for name in _OF_DEVICES],
)
_SET_AUTOCAST = (
    "set_autocast_enabled",
    "set_autocast_dtype",
    *[f"set_{name}_enabled" for name in _OF_DEVICES],
    *[f"set_{name}_dtype" for name in _OF_DEVICES],
)


def _set_autocast(device: str) -> Callable[[tuple[bool, torch.dtype]], None]:
    def write(state: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, state[0])
        torch.set_autocast_dtype(device, state[1])

    return write


def autocast_rows() -> Iterable[Flag]:
    """Whether it is on, and its dtypes also where it is off: contexts start from these."""
    yield from of_c("autocast", "_is_any_autocast_enabled", None, ALWAYS, of_thread=True)
    for device in filter(torch._C._is_autocast_available, _DEVICES):
        code = f"(torch.is_autocast_enabled({device!r}), torch.get_autocast_dtype({device!r}))"
        yield Flag(
            f"autocast on {device}",
            evaluated(code),
            _set_autocast(device),
            code,
            AUTOCAST,
            of_thread=True,
            getters=found(*_ASK_AUTOCAST),
            setters=found(*_SET_AUTOCAST),
        )
    yield from of_c(
        "autocast cache",
        "is_autocast_cache_enabled",
        "set_autocast_cache_enabled",
        AUTOCAST,
        of_thread=True,
    )


# ---- of the process
def defaults_rows() -> Iterable[Flag]:
    """What holds for all threads and decides what operators do."""
    yield Flag(
        "default dtype",
        torch.get_default_dtype,
        torch.set_default_dtype,
        "torch.get_default_dtype()",
        ALWAYS,
        lays_out=True,
        getters=found("get_default_dtype"),
        setters=found(
            "set_default_dtype",
            "_set_default_dtype",
            "set_default_tensor_type",
            "_set_default_tensor_type",
        ),
    )
    ask = "torch._C._get_deterministic_algorithms"
    code = f"({ask}(), {ask}_warn_only())"
    yield Flag(
        "deterministic algorithms",
        evaluated(code),
        lambda state: torch._C._set_deterministic_algorithms(state[0], warn_only=state[1]),
        code,
        ALWAYS,
        lays_out=True,
        getters=found(
            "_get_deterministic_algorithms",
            "_get_deterministic_algorithms_warn_only",
            "are_deterministic_algorithms_enabled",
            "is_deterministic_algorithms_warn_only_enabled",
            "get_deterministic_debug_mode",
        ),
        setters=found(
            "_set_deterministic_algorithms",
            "use_deterministic_algorithms",
            "set_deterministic_debug_mode",
        ),
        of_kernels=True,
    )
    yield from of_c(
        "deterministic memory",
        "_get_deterministic_fill_uninitialized_memory",
        "_set_deterministic_fill_uninitialized_memory",
        of_kernels=True,
    )
    yield from of_c(
        "threads",
        "get_num_threads",
        "set_num_threads",
        KERNELS,
        asked_by=["get_num_threads"],
        set_by=["set_num_threads"],
    )
    yield from of_c(
        "threads between operators",
        "get_num_interop_threads",
        None,
        set_by=["set_num_interop_threads"],
    )


_CUDA = bool(torch._C._has_cuda)
#: a flag, and what it is called in ``torch._C``
_LIBRARIES = {
    "mkldnn deterministic": "mkldnn_deterministic",
    "cudnn depthwise kernel": "cudnn_depthwise_kernel",
    "miopen immediate": "miopen_immediate",
    "nnpack": "nnpack_enabled",
    "quantized engine": "qengine",
    "blas library": "blas_preferred_backend",
    "linalg library": "linalg_preferred_backend",
    "rocm attention library": "rocm_fa_preferred_backend",
    "reserved multiprocessors": "sm_carveout_experimental",
    "cublaslt for grouped products": "cublaslt_prefer_grouped_gemm",
    "kernels compiled ahead": "native_aot_enabled",
    "no exceptions from masked kernels": "native_aot_unconditional_masked",
}


def libraries_rows() -> Iterable[Flag]:
    """Which library's kernels are taken, and how exactly these compute."""
    yield from of_c("mkldnn", "_get_mkldnn_enabled", "_set_mkldnn_enabled", ALWAYS, lays_out=True)
    yield from of_c(
        "cudnn",
        "_get_cudnn_enabled",
        "_set_cudnn_enabled",
        ALWAYS if _CUDA else ASKED,
        lays_out=True,
    )
    yield from of_c(
        "cudnn deterministic",
        "_get_cudnn_deterministic",
        "_set_cudnn_deterministic",
        KERNELS,
    )
    yield from of_c("cudnn benchmark", "_get_cudnn_benchmark", "_set_cudnn_benchmark", KERNELS)
    for name, what in _LIBRARIES.items():
        yield from of_c(name, f"_get_{what}", f"_set_{what}")


def _or_mixed(read: Callable[[], Any]) -> Callable[[], Any]:
    """Torch refuses to read an old setting where a new one was set: that is a value, too."""

    def either() -> Any:
        try:
            return read()
        except RuntimeError:
            return "mixed"

    return either


def _set_old(write: Callable[[Any], object]) -> Callable[[Any], None]:
    def unless_mixed(value: Any) -> None:
        if value not in ("mixed", None):  # None: this build of torch has no such setting
            write(value)

    return unless_mixed


def precision_rows() -> Iterable[Flag]:
    """How exactly products are computed: old settings, then new ones, which the old ones set."""
    yield Flag(
        "float32 matmul precision",
        _or_mixed(_C._get_float32_matmul_precision),
        _set_old(_C._set_float32_matmul_precision),
        "torch._C._get_float32_matmul_precision()",
        getters=found("_get_float32_matmul_precision", "get_float32_matmul_precision"),
        setters=found("_set_float32_matmul_precision", "set_float32_matmul_precision"),
    )
    for name, getter, setter in (
        ("cublas tf32", "_get_cublas_allow_tf32", "_set_cublas_allow_tf32"),
        ("cudnn tf32", "_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
        ("mkldnn tf32", "_get_onednn_allow_tf32", "_set_onednn_allow_tf32"),
    ):
        read, write = getattr(_C, getter), getattr(_C, setter)
        yield Flag(
            name,
            _or_mixed(read),
            _set_old(write),
            f"torch._C.{getter}()",
            getters=(read,),
            setters=(write,),
        )
    for backend, op in _fp32_pairs():
        code = f"torch._C._get_fp32_precision_getter({backend!r}, {op!r})"
        yield Flag(
            f"fp32 precision of {backend} {op}",
            evaluated(code),
            functools.partial(_C._set_fp32_precision_setter, backend, op),
            code,
            KERNELS,
            getters=(_C._get_fp32_precision_getter,),
            setters=(_C._set_fp32_precision_setter,),
        )
    halves = "fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction"
    for name in (*halves, "fp16_accumulation"):
        yield from _of_cublas(name)
    yield from of_c(
        "fp16 reduction on cpu",
        "_get_cpu_allow_fp16_reduced_precision_reduction",
        "_set_cpu_allow_fp16_reduced_precision_reduction",
    )


def _of_cublas(name: str) -> Iterable[Flag]:
    """The setters take apart what the getters give together, where that is a pair."""
    read = getattr(torch._C, f"_get_cublas_allow_{name}")
    write = getattr(torch._C, f"_set_cublas_allow_{name}")
    yield Flag(
        f"cublas {name.replace('_', ' ')}",
        read,
        lambda value: write(*value) if isinstance(value, tuple) else write(value),
        f"torch._C._get_cublas_allow_{name}()",
        KERNELS,
        getters=(read,),
        setters=(write,),
    )


def _fp32_pairs() -> Iterable[tuple[str, str]]:
    """(library, operator) of which this torch keeps a precision."""
    for backend in ("generic", "cuda", "mkldnn"):
        for op in ("all", "matmul", "conv", "rnn"):
            try:
                torch._C._get_fp32_precision_getter(backend, op)
            except RuntimeError:
                continue
            yield backend, op


_SDP = ("flash", "fa3", "mem_efficient", "math", "cudnn", "overrideable")


def attention_rows() -> Iterable[Flag]:
    """Which kernels attention may take (``torch.nn.attention.sdpa_kernel``), in which order."""
    for kernel in _SDP:
        yield from of_c(
            f"attention by {kernel}",
            f"_get_{kernel}_sdp_enabled",
            f"_set_sdp_use_{kernel}",
            ATTENTION,
        )
    code = "tuple(torch._C._get_sdp_priority_order())"
    yield Flag(
        "order of attention kernels",
        evaluated(code),
        lambda order: torch._C._set_sdp_priority_order(list(order)),
        code,
        ATTENTION,
        getters=found("_get_sdp_priority_order"),
        setters=found("_set_sdp_priority_order"),
    )
    yield from of_c(
        "half reductions of attention",
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_set_math_sdp_allow_fp16_bf16_reduction",
        ATTENTION,
    )
