"""Shared settings: hypothesis profiles, one torch thread, and which tests run by default.

Profiles (``HYPOTHESIS_PROFILE=...``): ci (default: the same examples in each run, so that none fails by chance), dev (others
each time), thorough (for ``-m fuzz``).
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import logging
import os
from collections import Counter

import pytest
import torch
import torch._dynamo.guards
from hypothesis import HealthCheck, Phase, settings

from subclass_trace import policy, verify

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]

_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
_COMMON = settings(deadline=None, suppress_health_check=_SLOW, phases=_PHASES, print_blob=True)

settings.register_profile("dev", _COMMON, max_examples=50)
settings.register_profile("ci", _COMMON, max_examples=50, derandomize=True, database=None)
settings.register_profile("thorough", _COMMON, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")

# Refusals of our own trace are raised; tests of the hand-over to Dynamo ask for it.
os.environ.setdefault("SUBCLASS_TRACE_FRONTEND", "trace")

# Between stages, every graph and plan that the tests make is checked.
verify.ENABLED = True
# And all guards on sizes are proved, where z3 is installed.
verify.PROVES = importlib.util.find_spec("z3") is not None

# Structured trace records of torch, thousands per capture: pytest would collect and print them.
logging.getLogger("torch.__trace").addFilter(lambda record: False)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a sweep all rows but each so-and-so-manieth are long; random search runs only when it is asked for: ``-m fuzz``."""
    seen = Counter[str]()
    for item in items:
        if (sweep := item.get_closest_marker("sweep")) and item.get_closest_marker("slow") is None:
            function = item.nodeid.partition("[")[0]
            if seen[function] % sweep.kwargs["every"]:
                item.add_marker(pytest.mark.long)
            seen[function] += 1
    if "fuzz" in (config.getoption("markexpr") or ""):
        return
    chosen = [i for i in items if i.get_closest_marker("fuzz") is None]
    if len(chosen) != len(items):
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("fuzz") is not None])
        items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests on a GPU say why they did not run."""
    if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")


@pytest.fixture
def own_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small regions of dense tensors have backwards of ours, as large ones have."""
    monkeypatch.setattr(policy, "POLICY", dataclasses.replace(policy.POLICY, few=0))


@pytest.fixture(autouse=True, scope="session")
def _no_latency_of_guards() -> None:
    """Dynamo measures how long its guards take after each compilation, on caches that it flushes: a fourth of a small one."""
    torch._dynamo.guards.profile_guard_manager = lambda *args: 0.0


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """A full collection walks what the module has made, not what hundreds of others have left behind."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_start() -> object:
    """Each test starts from one seed, in grad mode, and leaves no mode behind."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Importing torch's own test helpers forbids to set flags; its module `torch.backends` hides its variables.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    yield
    assert torch.is_grad_enabled(), "the test left grad mode off"
    torch.set_grad_enabled(True)
    assert not torch.compiler.is_compiling(), "the compiling flag was left on"
