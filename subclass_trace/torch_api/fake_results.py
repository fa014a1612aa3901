"""Results of operations on fake tensors that have been seen before, made without running the fake
kernel again.

A model repeats its layers, so nine operations of ten have come before with the same sizes.
FakeTensorMode has a cache of its own (PyTorch PR 111310 and later), which serves every kind of
operation and so spends most of its time on the key. This one takes plain functional and view
operations of ATen on strided tensors with static sizes, and nothing else; what it does not take
goes to the mode. Where all sizes are static, it serves what fake kernels issue inside the mode as
well.

The common views never go to the mode: their kernels in C++ run on fake tensors, too. They are
quicker than the mode's in
Python, and those of eager to the stride: ``view(1, 3)`` of a tensor with strides (7, 1) has (3, 1),
the mode's (7, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import autograd_would_have_decomposed

from .fakes import fake_result, fake_views
from .flags import layout_key
from .float_arguments import plain_floats
from .kinds import FAKE_TYPES, storage_ref
from .repairs.fake_kernels import fake_kernels

Tensor = torch.Tensor
_aten = torch.ops.aten
_PLAIN = frozenset(
    {
        int,
        float,
        bool,
        complex,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
_SEQUENCES = (list, tuple)
_FAKE: Any = FAKE_TYPES[0]
#: their answers depend on more than the metadata that the key holds
_NEVER = frozenset({_aten.as_strided.default, _aten.lift_fresh.default})
#: views whose kernels in C++ run on fake tensors, too
_VIEWS = frozenset(
    {
        _aten.alias.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.squeeze.dim,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unbind.int,
        _aten.unsqueeze.default,
        _aten.view.default,
        _aten._unsafe_view.default,
    }
)
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}


@dataclass(frozen=True)
class _Made:
    """How a result looks: sizes, strides, offset, dtype and device, and whose storage it has."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    source: int | None  # position among the arguments of the tensor that it is a view of


#: what captures of static sizes have found, by the settings that may lay results out otherwise
_FOUND: dict[Any, dict[Any, tuple[type | None, tuple[_Made | None, ...]]]] = {}
#: so many results are kept
_MOST = 20_000


class FakeResults:
    """The results of one capture. Not used from several threads: a capture runs under its lock."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._kernels = fake_kernels()
        self._known: dict[Any, tuple[type | None, tuple[_Made | None, ...]]] = {}
        self._taken: dict[Any, bool] = {}
        self._composite: dict[Any, bool] = {}

    def share(self) -> None:
        """Also take what earlier captures have found, and let later ones take it: metadata, and no
        tensors."""
        self._known = _FOUND.setdefault(layout_key(), {})
        if len(self._known) > _MOST:
            self._known.clear()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func(*args, **kwargs)`` on fake tensors."""
        mended = self._kernels.get(func)
        return self.remembered(func, args, kwargs, mended or func, is_mended=mended is not None)

    def remembered(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any],
        *,
        is_mended: bool = False,
    ) -> Any:
        """The result of ``func``, which ``call`` makes where nothing is known.

        ``is_mended``: not by torch's own fake kernel, which ``call`` may ask on its way.
        """
        taken = self._taken.get(func)
        if taken is None:
            taken = self._taken[func] = _is_plain(func)
        key = _key(func, args, kwargs) if taken else None
        if key is not None and is_mended:
            key = (*key, "mended")
        if key is None:
            args, kwargs = plain_floats(func, args, kwargs)
            return call(*args, **kwargs)
        try:
            known = self._known.get(key)
        except TypeError:  # a symbolic size has no hash
            return call(*args, **kwargs)
        if known is None:
            out = self._run(func, args, kwargs, call)
            # the mode may have asked on its way
            made = None if key in self._known else _describe(out, args)
            if made is not None:
                self._known[key] = made
            return out
        return self._make(*known, args)

    def _run(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]
    ) -> Any:
        return (
            fake_views(self._mode, func, args, kwargs) if func in _VIEWS else call(*args, **kwargs)
        )

    def is_composite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Would the autograd engine have taken this operation apart, had it seen it (in inference
        mode it does not)?"""
        values = (*args, *kwargs.values())
        key = func, next((a.device.type for a in values if isinstance(a, Tensor)), None)
        if key not in self._composite:
            self._composite[key] = autograd_would_have_decomposed(func, values)
        return self._composite[key]

    def _make(
        self, kind: type | None, made: tuple[_Made | None, ...], args: tuple[Any, ...]
    ) -> Any:
        results = [
            None
            if m is None
            else fake_result(
                self._mode,
                m.size,
                m.stride,
                m.offset,
                m.dtype,
                m.device,
                None if m.source is None else args[m.source],
            )
            for m in made
        ]
        return results[0] if kind is None else kind(results)


def _is_plain(func: Any) -> bool:
    if type(func) is not OpOverload or func.namespace != "aten" or func in _NEVER:
        return False
    return not func._schema.is_mutable and _TAGS.isdisjoint(func.tags)


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the metadata of the result depends on; None if that cannot be told from a few plain
    values."""
    key: list[Any] = [func, torch.get_default_dtype()]  # numbers promote to the default dtype
    if not _extend(key, args):
        return None
    if kwargs:
        key.extend(kwargs)
        if not _extend(key, kwargs.values()):
            return None
    return tuple(key)


def _extend(key: list[Any], values: Any) -> bool:
    for a in values:
        kind = type(a)
        if kind is _FAKE:
            if (
                a.layout is not torch.strided
                or a.is_conj()
                or a.is_neg()
                or a.is_inference()
                or a.is_quantized
            ):
                return False
            if a.constant is not None:
                return False
            key += (
                a.shape,
                a.stride(),
                a.storage_offset(),
                a.dtype,
                a.fake_device,
                a.requires_grad,
            )
        elif kind in _PLAIN:
            # the current one
            if kind is torch.device and a.index is None and a.type not in ("cpu", "meta"):
                return False
            key += (kind, a)
        elif kind in _SEQUENCES:
            key += (kind, len(a))
            if not _extend(key, a):
                return False
        else:
            return False
    return True


def _describe(
    out: Any, args: tuple[Any, ...]
) -> tuple[type | None, tuple[_Made | None, ...]] | None:
    results = out if type(out) in _SEQUENCES else (out,)
    made = []
    for t in results:
        row = None if t is None else _describe_one(t, args)
        if t is not None and row is None:
            return None
        made.append(row)
    fresh = [
        storage_ref(t)
        for t, m in zip(results, made, strict=True)
        if m is not None and m.source is None
    ]
    if len(set(fresh)) != len(fresh):  # results that share memory with each other
        return None
    return (None if results is not out else type(out)), tuple(made)


def _describe_one(t: Any, args: tuple[Any, ...]) -> _Made | None:
    if (
        type(t) is not _FAKE
        or t.layout is not torch.strided
        or t.is_conj()
        or t.is_neg()
        or t.is_inference()
    ):
        return None
    if (
        t.constant is not None
        or t.is_quantized
        or not all(type(n) is int for n in (*t.shape, *t.stride()))
    ):
        return None
    if any(t is a for a in args):
        return None
    mine = storage_ref(t)
    sources = [i for i, a in enumerate(args) if type(a) is _FAKE and storage_ref(a) == mine]
    listed = [b for a in args if type(a) in _SEQUENCES for b in a if type(b) is _FAKE]
    if any(storage_ref(b) == mine for b in listed):
        return None
    if t.dtype != args[sources[0]].dtype if sources else t.storage_offset() != 0:
        return None
    return _Made(
        tuple(t.shape),
        tuple(t.stride()),
        t.storage_offset(),
        t.dtype,
        t.fake_device,
        sources[0] if sources else None,
    )
