"""Collectives of the fake process group that write their results: before torch 2.13, some leave memory as it was."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist


def _collectives_write() -> bool:
    """Does the fake group write what it should receive?"""
    x = torch.ones(8)
    results = [torch.zeros(2), torch.zeros(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13 gives one of them another name
        dist.reduce_scatter_tensor(results[0], x)
    dist.all_to_all_single(results[1], x)
    return all(r.all() for r in results)


def _of_size(x: torch.Tensor, *size: int) -> torch.Tensor:
    """The numbers of ``x``, over and over: as good as what other ranks would send, and the same each time."""
    count = torch.Size(size).numel()
    return x.contiguous().reshape(-1).repeat(-(-count // max(x.numel(), 1)))[:count].reshape(size)


def _reduce_scatter(x: torch.Tensor, op: str, group_size: int, group: Any) -> torch.Tensor:
    return _of_size(x, x.shape[0] // group_size, *x.shape[1:])


def _all_to_all(x: torch.Tensor, output_splits: list[int], input_splits: list[int], group: Any) -> torch.Tensor:
    return _of_size(x, sum(output_splits), *x.shape[1:])


def _exchange_dims(x: torch.Tensor, gather_dim: int, shard_dim: int, group: Any) -> torch.Tensor:
    size = list(x.shape)
    size[gather_dim], size[shard_dim] = size[gather_dim] * 4, size[shard_dim] // 4
    return _of_size(x, *size)


@contextlib.contextmanager
def collectives_that_write() -> Iterator[None]:
    """Inside, they do. To be entered with the fake group of four set up."""
    if _collectives_write():
        yield
        return
    made = [torch.library.Library(name, "IMPL") for name in ("_c10d_functional", "_dtensor")]
    made[0].impl("reduce_scatter_tensor", _reduce_scatter, "CPU")
    made[0].impl("all_to_all_single", _all_to_all, "CPU")
    made[1].impl("shard_dim_alltoall", _exchange_dims, "CPU")
    try:
        yield
    finally:
        for library in made:
            library._destroy()
