"""What the installed torch can do, for tests whose subject some supported versions do not have. Each asks torch."""

from __future__ import annotations

import functools

import torch
from torch._subclasses import FakeTensorMode

from subclass_trace.zoo import Constant, TwoTensor


@functools.cache
def fakes_of_wrappers_without_tensors() -> bool:
    """Can torch make a fake of a wrapper that lists no inner tensor? Torch 2.11 looks for the mode of the first one."""
    try:
        FakeTensorMode().from_tensor(Constant(0.5, (4,)))
    except IndexError:
        return False
    return True


VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


@functools.cache
def scaled_mm_by_rows() -> bool:
    """Does ``torch._scaled_mm`` take one scale for each row on a CPU?"""
    x = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(x, x.t(), torch.ones(16, 1), torch.ones(1, 16), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


@functools.cache
def dynamo_passes_wrappers_to_operators() -> bool:
    """Does Dynamo run a nested compile region over wrappers? Before torch 2.13 it asks for fake tensors there."""
    torch.compiler.reset()
    x = TwoTensor(torch.ones(2), torch.ones(2))
    region = torch.compiler.nested_compile_region(lambda x: x.sin())
    try:
        torch.compile(lambda x: region(x), backend="eager", fullgraph=True)(x)
    except (AssertionError, RuntimeError):
        return False
    return True


class _Bound:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def __get__(self, instance: object, owner: object = None) -> object:
        return self


@functools.cache
def dynamo_reads_descriptors_of_instances() -> bool:
    """Does Dynamo find an attribute of an instance whose class has ``__get__``? Torch 2.11 looks in the class alone."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bound(x)

    torch.compiler.reset()
    model = Model()
    model.bound = _Bound()
    try:
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2))
    except RuntimeError:
        return False
    return True


@functools.cache
def compiled_wrappers_have_strides_of_symbols() -> bool:
    """Has a wrapper that torch compiled with dynamic sizes its outer strides? Torch 2.11 takes them from the wrong size."""
    torch.compiler.reset()
    x, w = torch.ones(3, 4), TwoTensor(torch.ones(4, 4), torch.ones(4, 4))
    product = torch.compile(lambda x, w: x @ w, backend="aot_eager", fullgraph=True, dynamic=True)
    return bool(product(x, w).stride() == (4, 1))


@functools.cache
def traces_native_encoder_layers() -> bool:
    """Has the kernel of nn.TransformerEncoderLayer for inference a fake one? From torch 2.13 on."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::_transformer_encoder_layer_fwd", "Meta"))
