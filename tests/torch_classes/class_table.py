"""One small program for each wrapper class of torch, torchao and optimum-quanto: what docs/subclasses.md says is measured here.

A row's program runs in eager, through ``st.compile`` and through ``torch.compile(backend="subclass_trace")``; results,
gradients and changed arguments are compared leaf by leaf. `tools/subclass_table.py` writes the page, `test_class_table`
measures again and compares with it.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import subclass_trace as st
from subclass_trace.frontends.dynamo import register
from subclass_trace.subclass.flatten import leaves_of, map_leaves
from subclass_trace.subclass.protocol import Kind, kind_of

Tensor = torch.Tensor
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Row:
    """One class.

    Attributes:
        name: of the class, as `make`'s value of that class has it.
        package: what it comes from.
        make: the arguments of the programs; rebuilt for each run, always the same.
        call: the forward; its result is differentiated if eager can.
        change: an in-place program, if the class has one.
        note: a peculiarity.
    """

    name: str
    package: str
    make: Callable[[], tuple[Any, ...]]
    call: Callable[..., Any]
    change: Callable[..., Any] | None = None
    note: str = ""


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same numbers each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def x_of(dtype: torch.dtype = torch.float32, rows: int = 32, grad: bool = True) -> Tensor:
    """The input of a linear layer of width 64."""
    return randn(rows, 64, seed=1, dtype=dtype).requires_grad_(grad)


def module(name: str) -> Any:
    """A module, imported when a row runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


# ---------------------------------------------------------------------------------------------- torch
def _two() -> tuple[Any, ...]:
    two = module("torch.testing._internal.two_tensor").TwoTensor
    return x_of(), two(randn(8, 64), randn(8, 64, seed=2)).requires_grad_()


def _mesh() -> Any:
    return dist.device_mesh.init_device_mesh("cpu", (4,))


def _dtensor() -> tuple[Any, ...]:
    d = module("torch.distributed.tensor")
    make = d.distribute_tensor
    x = make(x_of().detach(), _mesh(), [d.Replicate()], src_data_rank=None).requires_grad_()
    return x, make(randn(8, 64), _mesh(), [d.Shard(0)], src_data_rank=None).requires_grad_()


def _waiting() -> tuple[Any, ...]:
    d = module("torch.distributed.tensor")
    part = d.DTensor.from_local(randn(2, 64), _mesh(), [d.Shard(0)], run_check=False)
    return x_of(), part.redistribute(placements=[d.Replicate()], async_op=True).to_local()


def _sparse() -> tuple[Any, ...]:
    c = module("torch.sparse._semi_structured_conversions")
    dense = c._sparse_semi_structured_tile(randn(64, 64, dtype=BF16))
    one, other = (c.sparse_semi_structured_from_dense_cutlass(d) for d in (dense, dense.t().contiguous()))
    weight = torch.sparse.SparseSemiStructuredTensorCUTLASS(dense.shape, *one, *other, None, requires_grad=True)
    return x_of(BF16), weight


def _jagged() -> tuple[Any, ...]:
    parts = [randn(3, 64), randn(5, 64, seed=2)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    return x, randn(8, 64, seed=3).requires_grad_()


def _complex() -> tuple[Any, ...]:
    cls = module("torch._subclasses.complex_tensor").ComplexTensor
    x, w = (cls(randn(8, 8, seed=k), randn(8, 8, seed=k + 1)).requires_grad_() for k in (0, 5))
    return x, w


def _local() -> tuple[Any, ...]:
    cls = module("torch.distributed._local_tensor").LocalTensor
    return tuple(cls({r: randn(8, 8, seed=k + r) for r in range(2)}).requires_grad_() for k in (0, 5))


def _double(x: Any, w: Any) -> Any:
    with torch.no_grad():
        w.mul_(2)
    return w.sum() if type(w).__name__ != "LocalTensor" else w * 1


TORCH = [
    Row("DTensor", "torch", _dtensor, F.linear, _double, "graphs are per rank; collectives are nodes"),
    Row("AsyncCollectiveTensor", "torch", _waiting, F.linear, None, "waited for when it is used"),
    Row("TwoTensor", "torch", _two, F.linear, _double, "torch's own test wrapper"),
    Row("SparseSemiStructuredTensorCUTLASS", "torch", _sparse, F.linear, None, "on a CPU with reference kernels"),
    Row("NestedTensor", "torch", _jagged, lambda x, w: F.linear(x, w).values(), None, "jagged; sizes are symbols"),
    Row(
        "ComplexTensor",
        "torch",
        _complex,
        lambda x, w: (x @ w * w + x.exp()).t()[1:],
        _double,
        "complex64 over two float32",
    ),
    Row(
        "LocalTensor",
        "torch",
        _local,
        lambda x, w: (x @ w).relu().t()[1:].reshape(-1),
        _double,
        "inner tensors by rank",
    ),
]


# ---------------------------------------------------------------------------------------------- torchao
def _quantized(config: Callable[[Any], Any], dtype: torch.dtype, grad: bool = True) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        quantization = module("torchao.quantization")
        linear = nn.Linear(64, 8, bias=False)
        linear.weight = nn.Parameter(randn(8, 64))
        linear = linear.to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantization.quantize_(linear, config(quantization))
        return x_of(dtype, grad=grad), linear.weight.data

    return make


def _training(name: str) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        config = getattr(module("torchao.prototype.quantized_training"), name)()
        x, weight = _quantized(lambda q: config, torch.float32)()
        return x, weight.detach().requires_grad_()

    return make


def _float8_dynamic() -> tuple[Any, ...]:
    q, inference = module("torchao.quantization"), module("torchao.float8.inference")
    kwargs = module("torchao.quantization.quantize_.workflows").QuantizeTensorToFloat8Kwargs
    kernel = module("torchao.quantization.quantize_.common").KernelPreference.TORCH
    how = {
        "granularity": q.PerRow(),
        "mm_config": inference.Float8MMConfig(use_fast_accum=True),
        "kernel_preference": kernel,
    }
    return x_of(BF16, grad=False), q.Float8Tensor.from_hp(
        randn(8, 64, dtype=BF16), act_quant_kwargs=kwargs(**how), **how
    )


def _float8_training() -> tuple[Any, ...]:
    t = module("torchao.float8.float8_training_tensor")
    utils = module("torchao.float8.float8_scaling_utils")
    one = t.ScaledMMConfig(True, True, False, False)
    config = t.LinearMMConfig(one, one, one)

    def cast(value: Tensor, role: Any) -> Any:
        return utils.hp_tensor_to_float8_dynamic(value, torch.float8_e4m3fn, config, gemm_input_role=role)

    return cast(randn(16, 64), t.GemmInputRole.INPUT), cast(randn(16, 64, seed=2), t.GemmInputRole.WEIGHT)


def _fsdp_float8() -> tuple[Any, ...]:
    config = module("torchao.float8.float8_training_tensor").LinearMMConfig()
    cls = module("torchao.float8.fsdp_utils").WeightWithDynamicFloat8CastTensor
    return x_of(), cls(randn(8, 64), config, torch.float32).requires_grad_()


def _mx(trains: bool) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        emulated = module("torchao.quantization.quantize_.common").KernelPreference.EMULATED
        if trains:
            config = module("torchao.prototype.moe_training.config").MXFP8TrainingOpConfig(kernel_preference=emulated)
            cls = module("torchao.prototype.moe_training.tensor").MXFP8TrainingWeightWrapperTensor
            return x_of(BF16), cls(randn(32, 64, dtype=BF16), config).detach().requires_grad_()
        formats, f8 = module("torchao.prototype.mx_formats"), torch.float8_e4m3fn
        config = formats.MXDynamicActivationMXWeightConfig(
            activation_dtype=f8, weight_dtype=f8, kernel_preference=emulated
        )
        return _quantized(lambda q: config, BF16, grad=False)()

    return make


def _nvfp4() -> tuple[Any, ...]:
    cls = module("torchao.prototype.mx_formats.nvfp4_tensor").NVFP4Tensor
    return x_of(BF16), cls.to_nvfp4(randn(32, 64, dtype=BF16))


def _nf4() -> tuple[Any, ...]:
    return x_of(), module("torchao.quantization.quantize_.workflows").to_nf4(randn(8, 64), 32, 2)


def _int4() -> tuple[Any, ...]:
    cls = module("torchao.prototype.quantization.int4.int4_opaque_tensor").Int4OpaqueTensor
    return x_of(BF16, grad=False), cls.from_hp(randn(32, 64, dtype=BF16), [1, 32])


def _gguf() -> tuple[Any, ...]:
    gguf = module("torchao.prototype.quantization.gguf")
    linear = nn.Linear(256, 8, bias=False)
    linear.weight = nn.Parameter(randn(8, 256))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module("torchao.quantization").quantize_(linear, gguf.GGUFWeightOnlyConfig())
    return randn(4, 256).requires_grad_(), linear.weight.data


def _state(name: str, *rest: Any) -> Callable[[], tuple[Any, ...]]:
    file = {"OptimState8bit": "subclass_8bit", "OptimState4bit": "subclass_4bit", "OptimStateFp8": "subclass_fp8"}[name]

    def make() -> tuple[Any, ...]:
        return randn(16, 256), getattr(module(f"torchao.optim.{file}"), name).zeros((16, 256), *rest)

    return make


def _lerp(g: Tensor, state: Any) -> Any:
    moved = state.dequantize().lerp(g, 0.5)
    state.copy_(moved)
    return moved


def _uintx() -> tuple[Any, ...]:
    cls = module("torchao.prototype.dtypes.uintx.uintx_utils").UintxTensor
    return (cls.from_uint8((randn(8, 16).abs() * 2).to(torch.uint8), torch.uint3),)


def _codebook() -> tuple[Any, ...]:
    cls = module("torchao.prototype.quantization.codebook").CodebookQuantizedTensor
    torch.manual_seed(0)
    return randn(4, 8).requires_grad_(), cls.from_float(randn(8, 8), [1, 8], torch.uint8, scale_block_size=8)


def _observer() -> tuple[Any, ...]:
    return x_of(), module("torchao.prototype.gptq.observer").GPTQObserverTensor.from_hp(randn(8, 64))


def _int8(q: Any) -> Any:
    return q.Int8WeightOnlyConfig()


TORCHAO = [
    Row("Int8Tensor", "torchao", _quantized(_int8, BF16), F.linear, None, "weight only"),
    Row(
        "Int8Tensor",
        "torchao",
        _quantized(lambda q: q.Int8DynamicActivationInt8WeightConfig(), BF16),
        F.linear,
        None,
        "dynamic activations: eager silently gives no gradient, and so does the region",
    ),
    Row(
        "IntxUnpackedToInt8Tensor",
        "torchao",
        _quantized(
            lambda q: q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=q.PerGroup(32)), torch.float32
        ),
        F.linear,
    ),
    Row("Int4OpaqueTensor", "torchao", _int4, F.linear, None, "an operation with a CPU kernel alone"),
    Row(
        "Float8Tensor", "torchao", _quantized(lambda q: q.Float8WeightOnlyConfig(), BF16), F.linear, None, "weight only"
    ),
    Row("Float8Tensor", "torchao", _float8_dynamic, F.linear, None, "dynamic activations"),
    Row("Float8TrainingTensor", "torchao", _float8_training, lambda x, w: torch.mm(x, w.t()), None, "of Float8Linear"),
    Row("WeightWithDynamicFloat8CastTensor", "torchao", _fsdp_float8, F.linear, _double, "FP8 with FSDP2"),
    Row("MXTensor", "torchao", _mx(False), F.linear, None, "MXFP8, emulated"),
    Row("MXFP8TrainingWeightWrapperTensor", "torchao", _mx(True), F.linear, None, "MXFP8 training, emulated"),
    Row("NVFP4Tensor", "torchao", _nvfp4, F.linear, None, "weight only"),
    Row("NF4Tensor", "torchao", _nf4, F.linear),
    Row("GGUFQuantizedTensor", "torchao", _gguf, F.linear),
    Row("Int8QuantizedTrainingLinearWeight", "torchao", _training("int8_weight_only_quantized_training"), F.linear),
    Row("Int8MixedPrecisionTrainingLinearWeight", "torchao", _training("int8_mixed_precision_training"), F.linear),
    Row(
        "BitNetTrainingLinearWeight",
        "torchao",
        lambda: (*_training("bitnet_training")(), randn(8, seed=4).requires_grad_()),
        F.linear,
        None,
        "with a bias: without one eager's backward fails",
    ),
    Row("OptimState8bit", "torchao", _state("OptimState8bit", True, 256), lambda g, s: s.dequantize() + g, _lerp),
    Row("OptimState4bit", "torchao", _state("OptimState4bit", True, 128), lambda g, s: s.dequantize() + g, _lerp),
    Row("OptimStateFp8", "torchao", _state("OptimStateFp8", 256), lambda g, s: s.dequantize() + g, _lerp),
    Row("UintxTensor", "torchao", _uintx, lambda t: t.get_plain() * 2, None, "attribute names depend on the type"),
    Row("CodebookQuantizedTensor", "torchao", _codebook, F.linear, None, "reads a number of its inner tensors"),
    Row("GPTQObserverTensor", "torchao", _observer, F.linear, None, "counts batches: its code reads values"),
]


# ---------------------------------------------------------------------------------------------- others
def _quanto() -> tuple[Any, ...]:
    quanto = module("optimum.quanto")
    model = nn.Sequential(nn.Linear(64, 8))
    model[0].weight = nn.Parameter(randn(8, 64))
    quanto.quantize(model, weights=quanto.qint8)
    quanto.freeze(model)
    return x_of(), model[0].weight.detach()


def _masked() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (torch.masked.masked_tensor(randn(4), randn(4) > 0),)


def _params4bit() -> tuple[Any, ...]:
    bnb = module("bitsandbytes")
    return x_of(grad=False), bnb.nn.Linear4bit(64, 8, bias=False, compute_dtype=torch.float32).to("cpu").weight


OTHERS = [
    Row("WeightQBytesTensor", "optimum-quanto", _quanto, F.linear, None, "qint8; contexts are strings"),
    Row("MaskedTensor", "torch", _masked, lambda x: x * 2, None, "use torch.where, or `zoo.Masked`"),
    Row("Params4bit", "bitsandbytes", _params4bit, lambda x, w: w * 2, None, "use torchao's classes"),
]
ROWS = [*TORCH, *TORCHAO, *OTHERS]


# ---------------------------------------------------------------------------------------------- measuring
@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """A fake process group of four, and reference kernels for 2:4 sparse products on a CPU."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    library = torch.library.Library("aten", "IMPL")
    dense = module("torch.sparse._semi_structured_conversions").sparse_semi_structured_to_dense_cutlass
    library.impl("_sparse_semi_structured_mm", lambda p, m, b, out_dtype=None: dense(p, m) @ b, "CPU")
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        yield
    finally:
        dist.destroy_process_group()
        library._destroy()


def installed(package: str) -> str | None:
    """The version of a package; None where it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, Tensor)]


def _plain(t: Tensor | None) -> list[Any]:
    if t is None:
        return [None]
    if type(t).__name__ == "AsyncCollectiveTensor":
        t = t.trigger_wait()
    if kind_of(type(t)) is Kind.REFUSED:
        return [type(t)]
    return [type(t), *[leaf.detach().clone() for leaf in leaves_of(t)]]


def _equal(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            same = x.dtype == y.dtype and x.shape == y.shape
            if not same or not torch.allclose(x.double(), y.double(), rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
        elif x is not y:
            return False
    return True


def _forward(f: Callable[..., Any], row: Row) -> tuple[list[Any], Any, tuple[Any, ...]]:
    args = row.make()
    out = f(*args)
    return _plain(out), out, args


def _gradients(out: Any, args: tuple[Any, ...]) -> list[Any]:
    out.backward(map_leaves(torch.ones_like, out.detach()))
    return [p for t in _tensors(args) for p in _plain(t.grad if t.is_leaf else None)]


def _changed(f: Callable[..., Any], row: Row) -> list[Any]:
    args = row.make()
    f(*args)
    return [p for t in _tensors(args) for p in _plain(t)]


def _attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return function(), None
    except Exception as error:
        return None, type(error).__name__


def measure(row: Row, compile_it: Callable[..., Any]) -> dict[str, str]:
    """``as eager``, ``no`` (eager has none either), ``-`` (nothing to try), or the name of the error."""
    cells = {"forward": "", "backward": "no", "in place": "-"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, trouble = _attempt(lambda: _forward(row.call, row))
        if trouble is not None:
            raise AssertionError(f"eager cannot run {row.name}: {trouble}")
        compiled = compile_it(row.call)
        _attempt(lambda: _forward(compiled, row))  # the second call is compared: it runs what the first one made
        got, trouble = _attempt(lambda: _forward(compiled, row))
        cells["forward"] = trouble or ("as eager" if _equal(eager[0], got[0]) else "differs")
        if trouble is None and isinstance(eager[1], Tensor) and eager[1].requires_grad:
            grads, eager_trouble = _attempt(lambda: _gradients(eager[1], eager[2]))
            cells["backward"] = f"eager: {eager_trouble}"
            if eager_trouble is None:
                found, trouble = _attempt(lambda: _gradients(got[1], got[2]))
                cells["backward"] = trouble or ("as eager" if _equal(grads, found) else "differs")
        elif trouble is None and isinstance(got[1], Tensor) and got[1].requires_grad:
            cells["backward"] = "differs"
        if trouble is not None and cells["backward"] == "no":
            cells["backward"] = "-"
        if row.change is not None:
            before, _ = _attempt(lambda: _changed(row.change, row))
            after, trouble = _attempt(lambda: _changed(compile_it(row.change), row))
            cells["in place"] = trouble or ("as eager" if _equal(before, after) else "differs")
    return cells


def through_dynamo(f: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` with this package as its back end."""
    register()
    torch.compiler.reset()
    return torch.compile(f, backend="subclass_trace", fullgraph=True)


FRONT_ENDS = {"functional": st.compile, "dynamo": through_dynamo}


def cells(row: Row) -> list[str]:
    """The row of the page: class, package, what ``st.compile`` does, what ``torch.compile`` does, the note."""
    functional, dynamo = measure(row, st.compile), measure(row, through_dynamo)
    through = [f"{k}: {v}" for k, v in dynamo.items() if v != functional[k]]
    same = "; ".join(through) or "the same"
    return [f"`{row.name}`", row.package, *functional.values(), same, row.note]
