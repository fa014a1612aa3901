"""The flags of torch that decide a trace: one table. Nobody else lists them.

A flag is hidden state of torch, of the thread or of the process: grad mode, autocast, the default
dtype, which kernels may be taken, ... Guards of a region, circumstances of a backward, what a
refusal puts back and the key of the fake results are projections of `FLAGS`:

>>> grad = FLAG_NAMED["grad mode"]
>>> with torch.no_grad():
...     then = read_flags()
>>> then["grad mode"], grad.read(), eval(grad.code, dict(GUARD_NAMES))
(False, True, True)
>>> changed_flags(then, read_flags())
['grad mode']
>>> [flag.name for flag in FLAGS_OF_GETTER[torch.get_default_dtype]]
['default dtype']

A flag that the installed torch does not have is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
import torch._tensor_str
import torch.utils.checkpoint

from .dtensor_modes import dtensor_modes
from .flag_rows import (
    ALWAYS,
    ASKED,
    DTENSOR,
    EINSUM,
    GUARD_NAMES,
    Flag,
    attention_rows,
    autocast_rows,
    autograd_rows,
    defaults_rows,
    evaluated,
    found,
    libraries_rows,
    modes_rows,
    of_c,
    precision_rows,
)


# ---- of torch's Python, and the rest
def _set_attribute(holder: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(holder, name, value)


def _of_python(
    name: str,
    module: str,
    attribute: str,
    decides: str = ASKED,
    *,
    asked_by: str = "",
    set_by: str = "",
) -> Flag:
    """A row that a variable of one of torch's modules keeps."""
    code = f"{module}.{attribute}"
    holder = eval(module, dict(GUARD_NAMES))
    getters = (getattr(holder, asked_by),) if asked_by else ()
    setters = (getattr(holder, set_by),) if set_by else ()
    write = _set_attribute(holder, attribute)
    return Flag(name, evaluated(code), write, code, decides, getters=getters, setters=setters)


def _python() -> Iterable[Flag]:
    einsum: Any = torch.backends.opt_einsum
    code = "(torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy)"
    yield Flag(
        "opt_einsum",
        evaluated(code),
        lambda state: einsum.set_flags(*state),
        code,
        EINSUM,
        setters=(einsum.set_flags,),
    )
    yield _of_python(
        "fast path of encoders",
        "torch.backends.mha",
        "_is_fastpath_enabled",
        asked_by="get_fastpath_enabled",
        set_by="set_fastpath_enabled",
    )
    distributions = "torch.distributions.Distribution"
    yield _of_python(
        "validation of distributions",
        distributions,
        "_validate_args",
        set_by="set_default_validate_args",
    )
    for what in ("overwrite", "swap"):
        text = f"{what}_module_params_on_conversion"
        yield _of_python(
            f"{what} parameters on conversion",
            "torch.__future__",
            f"_{text}",
            asked_by=f"get_{text}",
            set_by=f"set_{text}",
        )
    yield _of_python(
        "early stop of checkpoints",
        "torch.utils.checkpoint",
        "_enable_checkpoint_early_stop",
    )
    yield _of_python(
        "debugging of checkpoints",
        "torch.utils.checkpoint",
        "_checkpoint_debug_enabled",
    )


def _set_print_options(values: tuple[Any, ...]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(
        zip(sorted(vars(torch._tensor_str.PRINT_OPTS)), values, strict=True),
    )


#: what it is, its getter and its setter in C, and what else asks for it
_OF_C: tuple[tuple[str, str, str, Sequence[str]], ...] = (
    (
        "checks of sparse tensors",
        "_check_sparse_tensor_invariants",
        "_set_check_sparse_tensor_invariants",
        (),
    ),
    ("autograd fallback", "_get_autograd_fallback_mode", "_set_autograd_fallback_mode", ()),
    (
        "warnings of streams",
        "_warn_on_accumulate_grad_stream_mismatch",
        "_set_warn_on_accumulate_grad_stream_mismatch",
        (),
    ),
    (
        "stale streams",
        "_override_stale_capture_stream",
        "_set_override_stale_capture_stream",
        (),
    ),
    (
        "layout of gradients",
        "_is_grad_layout_enforcement_enabled",
        "_set_grad_layout_enforcement_enabled",
        (),
    ),
    ("warnings always", "_get_warnAlways", "_set_warnAlways", ("is_warn_always_enabled",)),
    (
        "warnings of broadcasting",
        "_get_backcompat_broadcast_warn",
        "_set_backcompat_broadcast_warn",
        (),
    ),
    (
        "warnings of keepdim",
        "_get_backcompat_keepdim_warn",
        "_set_backcompat_keepdim_warn",
        (),
    ),
)


def _others() -> Iterable[Flag]:
    for what, getter, setter, asked_by in _OF_C:
        yield from of_c(what, getter, setter, asked_by=asked_by)
    functorch: Any = torch._C._functorch
    yield Flag(
        "fallback of vmap",
        functorch._is_vmap_fallback_enabled,
        functorch._set_vmap_fallback_enabled,
        "torch._C._functorch._is_vmap_fallback_enabled()",
        getters=(functorch._is_vmap_fallback_enabled,),
        setters=(functorch._set_vmap_fallback_enabled,),
    )
    code = "tuple(value for _, value in sorted(vars(torch._tensor_str.PRINT_OPTS).items()))"
    yield Flag(
        "print options",
        evaluated(code),
        _set_print_options,
        code,
        setters=found("set_printoptions"),
    )
    code = "torch.cuda.current_device() if torch.cuda.is_initialized() else 0"
    yield Flag(
        "device of cuda",
        evaluated(code),
        torch.cuda.set_device,
        code,
        of_thread=True,
        getters=(torch.cuda.current_device,),
        setters=(torch.cuda.set_device,),
    )
    yield from of_c(
        "implicit replication",
        "_get_dtensor_allow_implicit_replication",
        "_set_dtensor_allow_implicit_replication",
        DTENSOR,
        of_thread=True,
    )
    yield Flag("modes of DTensor", dtensor_modes, None, "dtensor_modes()", DTENSOR)


#: all of them; what decides always comes first
FLAGS: tuple[Flag, ...] = tuple(
    sorted(
        (
            *modes_rows(),
            *autograd_rows(),
            *autocast_rows(),
            *defaults_rows(),
            *(replace(row, of_kernels=True) for row in (*libraries_rows(), *precision_rows())),
            *attention_rows(),
            *_python(),
            *_others(),
        ),
        key=lambda flag: flag.decides != ALWAYS,
    )
)
FLAG_NAMED: Mapping[str, Flag] = MappingProxyType({flag.name: flag for flag in FLAGS})


#: the function that reads a flag -> its name
FLAG_READ_BY: Mapping[Any, str] = MappingProxyType({flag.read: flag.name for flag in FLAGS})


def _by_function(functions: Callable[[Flag], tuple[Any, ...]]) -> Mapping[Any, tuple[Flag, ...]]:
    found: dict[Any, tuple[Flag, ...]] = {}
    for flag in FLAGS:
        for function in functions(flag):
            found[function] = (*found.get(function, ()), flag)
    return MappingProxyType(found)


#: a function of torch -> the flags that its answer is made of; -> the flags that it sets
FLAGS_OF_GETTER = _by_function(lambda flag: flag.getters)
FLAGS_OF_SETTER = _by_function(lambda flag: flag.setters)

#: functions of torch that have one answer for all calls of a process, or of a region
CONSTANT_GETTERS: frozenset[Any] = frozenset(
    (
        *found("_is_autocast_available", "_get_tracing_state", "_get_cpu_capability"),
        *found("_get_privateuse1_backend_name", "_is_flash_attention_available"),
        *found("_supported_qengines", "_is_ck_sdpa_available", "_is_tracing"),
        torch.amp.is_autocast_available,
        torch.compiler.is_compiling,
        torch.compiler.is_dynamo_compiling,
        torch.compiler.is_exporting,
        torch.cuda.device_count,
        torch.cuda.is_available,
        torch.distributed.is_available,
        torch._jit_internal.is_scripting,
        torch.jit._trace.is_tracing,
        torch.backends.cuda.is_built,
        torch.backends.cudnn.is_available,
        torch.backends.mkl.is_available,
        torch.backends.mkldnn.is_available,
        torch.backends.mps.is_available,
        torch.backends.mps.is_built,
        torch.backends.openmp.is_available,
        torch.backends.opt_einsum.is_available,
    )
)


def read_flags(flags: Iterable[Flag] = FLAGS) -> dict[str, Any]:
    """Name -> value now, in this thread."""
    return {flag.name: flag.read() for flag in flags}


def changed_flags(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of those whose values differ. What was not loaded then has not changed."""
    return [
        name
        for name, value in then.items()
        if now[name] != value and not (value is None and FLAG_NAMED[name].decides == DTENSOR)
    ]


def put_back_flags(then: Mapping[str, Any]) -> None:
    """Give each flag of ``then`` the value that it has there.

    Raises:
        RuntimeError: one differs and cannot be set, or does not take the value.
    """
    for name, value in then.items():  # in the order of the table: old settings set new ones, too
        flag = FLAG_NAMED[name]
        if flag.write is not None and flag.read() != value:
            flag.write(value)
    now = read_flags(FLAG_NAMED[name] for name in then)
    left = changed_flags(then, now)
    if left:
        rows = ", ".join(f"{name}: {now[name]!r}, was {then[name]!r}" for name in left)
        raise RuntimeError(f"flags of torch cannot be put back: {rows}")


def layout_key() -> tuple[Any, ...]:
    """The values of the flags that fake kernels ask for."""
    return tuple(flag.read() for flag in FLAGS if flag.lays_out)
