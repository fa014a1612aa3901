"""FakeTensorMode: making fake tensors, their aliases, and what fake kernels raise."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._dispatch.python import no_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef


def fake_mode(shape_env: ShapeEnv | None) -> FakeTensorMode:
    """The mode in which the user function runs during capture. (Making a `ShapeEnv` imports
    Dynamo.)"""
    return FakeTensorMode(shape_env=shape_env, static_shapes=True, allow_non_fake_inputs=False)


#: (operation, its arguments, what runs its fake kernel) -> its result
Remember: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any], Callable[..., Any]], Any]


def replace_cache(mode: FakeTensorMode, remember: Remember) -> None:
    """``remember`` takes the place of the mode's own cache of results, which takes longer than most
    fake kernels."""

    def dispatch(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            out = mode._dispatch_impl(func, types, args, kwargs)
            # as the dispatcher gives it
            if isinstance(out, (list, tuple)) and isinstance(func, OpOverload):
                return (tuple if len(func._schema.returns) > 1 else list)(out)
            return out

        return remember(func, args, kwargs, call)

    # Not a class of its own: higher order operators look up the rule for the type of the mode.
    mode._cached_dispatch_impl = dispatch  # type: ignore[method-assign]


def replace_conversion(mode: FakeTensorMode) -> None:
    """Dense strided tensors become fake ones of static sizes in a twentieth of the time; those of
    one storage share one.

    All else, such as sparse and conjugated tensors, goes to the mode.
    """
    slow, storages = mode.from_tensor, dict[StorageWeakRef, torch.UntypedStorage]()

    def from_tensor(real: torch.Tensor, **options: Any) -> torch.Tensor:
        plain = (
            type(real) is torch.Tensor and real.layout is torch.strided and not real.requires_grad
        )
        if (
            not plain
            or real.is_conj()
            or real.is_neg()
            or real.is_inference()
            or real.is_quantized
            or _wrapped(real)
        ):
            return slow(real, **options)
        of_real = real.untyped_storage()
        key = StorageWeakRef(of_real)  # type: ignore[no-untyped-call]
        with torch._C._DisableTorchDispatch(), torch.inference_mode(False), _NO_VERSIONS():
            storage = storages.get(key)
            if storage is None:
                size = of_real.nbytes()
                storage = torch.UntypedStorage(size, device="meta")  # type: ignore[no-untyped-call]
                storages[key] = storage
            data = torch.empty(0, dtype=real.dtype, device="meta")
            data.set_(storage, real.storage_offset(), real.shape, real.stride())
            torch._C._set_throw_on_mutable_data_ptr(data)
            return _faked(mode, data, real.device)

    mode.from_tensor = from_tensor  # type: ignore[assignment,method-assign]


_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_NO_VERSIONS = functools.partial(
    torch._C._ExcludeDispatchKeyGuard, DispatchKeySet(DispatchKey.ADInplaceOrView)
)


@contextlib.contextmanager
def quiet_fake_errors() -> Iterator[None]:
    """Fake kernels that refuse inside are not logged: the caller tries something that may fail."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def detached(
    mode: FakeTensorMode, fake: torch.Tensor, device: torch.device | None = None
) -> torch.Tensor:
    """An alias of a fake tensor without autograd history; issues no operation that a mode could
    see. ``device``: on which it is, if that is another one."""
    with torch._C._DisableTorchDispatch():
        return _faked(mode, fake, device or fake.fake_device)  # type: ignore[attr-defined]


def fake_result(
    mode: FakeTensorMode,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    source: torch.Tensor | None,
) -> torch.Tensor:
    """A fake tensor of this metadata, in the storage of ``source`` or in one of its own; no fake
    kernel runs."""
    if source is None:
        with torch._C._DisableTorchDispatch():
            plain = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        if mode._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(plain)
        else:
            torch._C._set_throw_on_mutable_data_ptr(plain)
    else:
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():
            # torch may have no kernels for the device
            torch._C._set_meta_in_tls_dispatch_include(True)
            plain = torch.as_strided(source, size, stride, offset)
    return _faked(mode, plain, device)


def fake_views(
    mode: FakeTensorMode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a view operation in C++ makes of a fake tensor of static sizes: the kernel that eager
    runs, on no data.

    The mode itself has it computed by Python code, for sizes that depend on data.
    """
    with (
        torch._C._DisableTorchDispatch(),
        torch._C._PreserveDispatchKeyGuard(),
        no_python_dispatcher(),
    ):
        torch._C._set_meta_in_tls_dispatch_include(True)
        out = func(*args, **kwargs)
    device = args[0].fake_device
    return (
        [_faked(mode, t, device) for t in out]
        if isinstance(out, (list, tuple))
        else _faked(mode, out, device)
    )


#: the attributes that FakeTensor's constructor sets, but for the mode, by device
_ATTRIBUTES: dict[torch.device, dict[str, Any]] = {}


def _faked(mode: FakeTensorMode, data: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``FakeTensor(mode, data, device)``, of which a capture makes a thousand and more, in a
    quarter of the time."""
    attributes = _ATTRIBUTES.get(device)
    if attributes is None:
        with torch._C._DisableTorchDispatch():
            made = FakeTensor(mode, torch.empty(0, device="meta"), device)
        attributes = _ATTRIBUTES[device] = {k: v for k, v in vars(made).items() if k != "fake_mode"}
    out = torch.Tensor._make_subclass(
        FakeTensor, data, False, dispatch_device=True, device_for_backend_keys=device
    )
    vars(out).update(attributes, fake_mode=mode)
    return out


NO_FAKE_KERNEL = UnsupportedOperatorException

DATA_DEPENDENT_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


def fake_like(
    mode: FakeTensorMode,
    size: Sequence[Any],
    stride: Sequence[Any],
    offset: Any,
    dtype: torch.dtype,
    device: torch.device,
    lazy: Sequence[bool],
) -> torch.Tensor:
    """A fake tensor that lies so in a storage of its own. ``lazy``: its conjugate and its negative
    bit."""
    with torch.no_grad():
        if type(offset) is int and not offset:
            made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        else:
            room = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
            made = torch.empty_strided([room], [1], dtype=dtype, device="meta").as_strided(
                size, stride, offset
            )
        made = torch._conj(made) if lazy[0] else made
        return _faked(mode, torch._neg_view(made) if lazy[1] else made, device)


def symbolic_number(env: Any, kind: str, expr: Any, hint: Any) -> Any:
    """A SymInt, SymFloat or SymBool of an expression; ``hint``: its value in the call that was
    traced."""
    make = {
        "int": env.create_symintnode,
        "float": env.create_symfloatnode,
        "bool": env.create_symboolnode,
    }[kind]
    return make(expr) if kind == "bool" else make(expr, hint=hint)
