"""The table of torch's flags: rows read as their guards, are put back, and none is missing."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import torch

from subclass_trace.torch_api.flag_rows import GUARD_NAMES, Flag
from subclass_trace.torch_api.flags import (
    FLAG_NAMED,
    FLAGS,
    FLAGS_OF_GETTER,
    FLAGS_OF_SETTER,
    changed_flags,
    put_back_flags,
    read_flags,
)

#: pairs `_get_x`, `_set_x` of torch._C that are no flags: no operator asks for them
NO_FLAGS = {
    "dispatch_mode",
    "default_mobile_cpu_allocator",
    "fake_constant",
    "graph_exec_group",
    "graph_executor_optimize",
    "meta_in_tls_dispatch_include",
    "obj_in_tls",
    "only_lift_cpu_tensors",
    "print_stack_traces_on_fatal_signal",
    "tensor_metadata",
    "thread_name",
    "tracing_state",
    "value_trace",
}
#: asked as `x` and set as `y`
OTHER_NAMES = {"_set_sdp_use_mem_efficient": "_get_mem_efficient_sdp_enabled"}


def _others(value: Any) -> list[Any]:
    """Values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple) and value and all(isinstance(v, bool) for v in value):
        return [tuple(not v for v in value), (True,) * len(value)]
    more = {
        torch.float32: [torch.float64],
        "highest": ["medium"],
        "none": ["ieee"],
        "tf32": ["ieee"],
        "warn": ["error"],
        (): [(torch.device("meta"),)],
    }
    if isinstance(value, (torch.dtype, str)) or value == ():
        return more.get(value, [])
    return [value + 1] if type(value) is int else []


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_flag_reads_as_its_guard_and_is_put_back(flag: Flag) -> None:
    then = read_flags()
    assert flag.read() == eval(flag.code, dict(GUARD_NAMES)) == then[flag.name]
    hash(flag.read())
    if flag.write is None or flag.name in ("device of cuda", "quantized engine"):
        return
    for other in _others(flag.read()):
        with contextlib.suppress(RuntimeError):  # a library that this machine lacks
            flag.write(other)
        assert eval(flag.code, dict(GUARD_NAMES)) == flag.read()
        put_back_flags(then)
        assert read_flags() == then


def test_a_change_is_named() -> None:
    then = read_flags()
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        changed = changed_flags(then, read_flags())
        assert changed == ["default dtype", "deterministic algorithms"]
    finally:
        put_back_flags(then)
    assert torch.get_default_dtype() == torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


def test_settings_of_one_thing_by_old_and_new_names() -> None:
    then = read_flags()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert read_flags()["float32 matmul precision"] == "mixed"
    put_back_flags(then)
    assert torch.get_float32_matmul_precision() == "highest"
    assert read_flags() == then


def test_what_cannot_be_put_back_is_an_error() -> None:
    then = read_flags()
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match="inference mode: True, was False"),
    ):
        put_back_flags(then)


OF_THREAD = [f.name for f in FLAGS if f.of_thread and f.write and f.name != "device of cuda"]


@pytest.mark.parametrize("name", OF_THREAD)
def test_a_flag_of_the_thread(name: str) -> None:
    """It is each thread's own, or no other thread would compare it."""
    flag = FLAG_NAMED[name]
    values: list[Any] = []
    put_back_flags(then := read_flags())
    for other in _others(flag.read())[:1]:
        with contextlib.suppress(RuntimeError):
            flag.write(other)  # type: ignore[misc]
        thread = threading.Thread(target=lambda: values.append(flag.read()))
        thread.start()
        thread.join()
        put_back_flags(then)
        assert values == [then[name]]


def _pairs() -> list[tuple[str, str]]:
    names = set(dir(torch._C))
    pairs = []
    for setter in sorted(n for n in names if n.startswith(("_set_", "set_"))):
        bare = setter.removeprefix("_").removeprefix("set_")
        asked = [
            f"_get_{bare}",
            f"get_{bare}",
            f"_is_{bare}",
            f"is_{bare}",
            f"_{bare}",
            OTHER_NAMES.get(setter),
        ]
        pairs += [(setter, getter) for getter in asked if getter in names and bare not in NO_FLAGS]
    return pairs


@pytest.mark.parametrize(("setter", "getter"), _pairs())
def test_no_flag_of_torch_is_missing(setter: str, getter: str) -> None:
    assert getattr(torch._C, setter) in FLAGS_OF_SETTER
    assert getattr(torch._C, getter) in FLAGS_OF_GETTER


def test_the_search_for_missing_flags_can_fail() -> None:
    assert ("_set_mkldnn_enabled", "_get_mkldnn_enabled") in _pairs()
    assert torch._C._get_thread_name not in FLAGS_OF_GETTER
