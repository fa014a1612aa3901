"""A fake process group of four: this process is rank 1, and nothing is sent anywhere."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from fake_collectives import collectives_that_write


@pytest.fixture(scope="module")
def process_group():
    """Four ranks; the group is destroyed after the file, with what torch has cached of meshes over it."""
    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert not dist.is_initialized()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    with collectives_that_write():
        yield dist.group.WORLD
    dist.destroy_process_group()
    _clear_sharding_prop_cache()


@pytest.fixture
def mesh(process_group):
    """One dimension of four."""
    return dist.device_mesh.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


@pytest.fixture
def mesh_2d(process_group):
    """Two by two."""
    return dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """A global of torch that says whether a DTensor's random numbers were seeded; each test starts without it."""
    yield
    torch.distributed.tensor._random._rng_tracker = None
