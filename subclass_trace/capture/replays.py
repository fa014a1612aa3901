"""Trying how a view is made of its base, on values that nobody sees: fresh aliases of the traced leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from .. import torch_api
from ..subclass.flatten import flatten, leaves_of
from ..subclass.spec import Spec, spec_leaves
from ..subclass.visit import rebuild
from .recorder import Recorder

Tensor = torch.Tensor
_Made = TypeVar("_Made")


def fresh(t: Tensor, recorder: Recorder) -> Tensor:
    """The same value over aliases of its leaves: nothing that is done to it is seen by the traced one."""
    with torch_api.without_tracing(), torch.no_grad():
        leaves, spec = flatten(t)
        made = rebuild(spec, iter([recorder.bare(leaf) for leaf in leaves]))
        return made.requires_grad_(False) if made.requires_grad else made  # type: ignore[no-any-return]


def places(spec: Spec) -> list[Any]:
    """Shapes and places in memory, of the value and of its leaves."""
    rows: list[Any] = [(s.size, s.stride, s.storage_offset) for s in spec_leaves(spec)]
    return [*rows, spec.size, spec.stride]  # type: ignore[union-attr]


def share_memory(leaves: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Do all of these leaves lie in memory of others? Not where ``.data`` of one was set after a view was made."""
    storages = {torch_api.storage_ref(t) for t in others if t.layout is torch.strided}
    return all(torch_api.storage_ref(t) in storages for t in leaves if t.layout is torch.strided)


@contextlib.contextmanager
def aside(recorder: Recorder) -> Iterator[None]:
    """Inside, views at places that depend on data are made, and no operation of the graph makes the symbols of these."""
    with torch_api.unbound_symbols_set_aside(recorder.mode.shape_env):
        yield


@contextlib.contextmanager
def unseen(recorder: Recorder) -> Iterator[None]:
    """Inside, views are made for a look at them, of which the graph has nothing."""
    with aside(recorder), torch_api.without_tracing(), torch_api.quiet_fake_errors(), torch.no_grad():
        yield


def tried(way: Callable[[Tensor], _Made], base: Tensor) -> _Made | None:
    """What ``way`` makes of a fresh ``base``, or None where it has none such. No version counter moves."""
    counters = [t for t in (base, *leaves_of(base)) if not t.is_inference()]
    versions = [t._version for t in counters]
    try:
        return way(base)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return None
    finally:  # an alias shares the counter of the traced tensor, which a node may have saved
        for t, version in zip(counters, versions, strict=True):
            torch_api.set_version(t, version)


def gives(way: Callable[[Tensor], Tensor], base: Tensor, spec: Spec, recorder: Recorder) -> bool:
    """Is the view of ``base`` laid out as ``spec`` says?"""
    with unseen(recorder):
        again = fresh(base, recorder)
        made = tried(way, again)
        if made is None:
            return False
        leaves, found = flatten(made)
        return share_memory(leaves, leaves_of(again)) and places(found) == places(spec)  # ``ravel`` may copy
