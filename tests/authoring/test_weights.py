"""``default="weight"``: one declared ``dequantize``, and what models, optimizers, files and FSDP2 ask of a weight."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subclass_trace as st
from subclass_trace.authoring import Outer, WrapperTensor
from subclass_trace.testing import check


class Int8Rows(WrapperTensor, default="weight"):
    """A scale for each row."""

    codes: Tensor
    scale: Tensor

    @classmethod
    def outer_metadata(cls, fields):
        return Outer(dtype=fields.scale.dtype)

    @classmethod
    def quantize(cls, x: Tensor) -> Int8Rows:
        if x.dim() != 2:
            raise ValueError("matrices only")
        scale = x.detach().abs().amax(1, keepdim=True).clamp(min=1e-6) / 127
        codes = (x.detach() / scale).round().clamp(-127, 127)  # a quotient of bfloat16 may be 128
        return cls(codes.to(torch.int8), scale)

    def dequantize(self) -> Tensor:
        return self.codes * self.scale


class Packed(WrapperTensor, default="weight"):
    """Two numbers of four bits in a byte of each row: columns are not those of the inner tensor."""

    bytes_: Tensor
    scale: Tensor

    @classmethod
    def outer_metadata(cls, fields):
        rows, columns = fields.bytes_.shape
        return Outer(size=(rows, columns * 2), dtype=fields.scale.dtype)

    @classmethod
    def quantize(cls, x: Tensor) -> Packed:
        scale = x.detach().abs().amax(1, keepdim=True).clamp(min=1e-6) / 7
        codes = ((x.detach() / scale).round() + 8).to(torch.uint8)
        return cls(codes[:, ::2] * 16 + codes[:, 1::2], scale)

    def dequantize(self) -> Tensor:
        codes = torch.stack([self.bytes_ // 16, self.bytes_ % 16], -1).flatten(-2)
        return (codes.to(self.scale.dtype) - 8) * self.scale


CLASSES = [Int8Rows, Packed]


def made(cls: type, rows: int = 6, columns: int = 4) -> WrapperTensor:
    return cls.quantize(torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)))


LAYERS = {
    "linear": lambda x, w: F.linear(x, w),
    "linear_of_batches": lambda x, w: F.linear(x[None], w, w.new_ones(6)),
    "matmul": lambda x, w: w @ x.t(),
    "matmul_of_batches": lambda x, w: torch.matmul(w, x.t()[None]),
    "mm": lambda x, w: torch.mm(w, x.t()),
    "embedding": lambda x, w: F.embedding(torch.tensor([3, 0, 3]), w),
    "einsum": lambda x, w: torch.einsum("bi,oi->bo", x, w),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("run", [lambda f: f, lambda f: st.compile(f, backend="eager")], ids=["eager", "region"])
def test_layers_and_their_gradients_are_those_of_the_dense_value(cls, layer, run) -> None:
    w = made(cls).requires_grad_()
    dense = w.detach().dequantize().requires_grad_()
    x = torch.randn(5, 4)
    got, want = run(layer)(x, w), layer(x, dense)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        torch.autograd.grad(got.square().sum(), w), torch.autograd.grad(want.square().sum(), dense)
    )


TRANSFORMS = {
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
    "jvp": lambda f, x: torch.func.jvp(lambda x: f(x).sin(), (x,), (2 * x,))[1],
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sin().sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("cls", CLASSES)
def test_transforms_of_torch_func_take_a_parameter_that_requires_grad(cls, transform) -> None:
    w, x = nn.Parameter(made(cls)), torch.randn(3, 4)
    dense = w.detach().dequantize().requires_grad_()
    found, right = (transform(lambda x, w=w: F.linear(x, w), x) for w in (w, dense))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("cls", CLASSES)
def test_rows_are_views_of_each_inner_tensor(cls) -> None:
    w = made(cls)
    dense = w.dequantize()
    for part, want in ((w[2:5], dense[2:5]), (w.split(4)[1], dense[4:]), (w.split([1, 5])[1], dense[1:])):
        assert type(part) is cls
        torch.testing.assert_close(part.dequantize(), want)
    w[1:3].zero_()
    torch.testing.assert_close(w.dequantize()[1:3], torch.zeros(2, 4))
    torch.testing.assert_close(w.dequantize()[3:], dense[3:])
    with pytest.raises(st.UnsupportedError, match="has no rule for aten.slice"):
        w[:, 1:]


def test_a_transpose_is_derived_where_rows_and_columns_are_those_of_the_inner_tensors() -> None:
    w = made(Int8Rows)
    assert type(w.t()) is type(w.transpose(0, 1)) is Int8Rows
    torch.testing.assert_close(w.t().dequantize(), w.dequantize().t())
    torch.testing.assert_close(torch.ones(2, 6) @ w, torch.ones(2, 6) @ w.dequantize())
    with pytest.raises(st.UnsupportedError, match="Packed has no rule for aten.t.default"):
        made(Packed).t()
    with pytest.raises(st.UnsupportedError, match="gives other inner tensors"):
        w.t().add_(1)


@pytest.mark.parametrize("cls", CLASSES)
def test_it_converts_is_saved_and_trains(cls) -> None:
    layer = nn.Linear(4, 6)
    layer.weight = nn.Parameter(made(cls))
    assert type(copy.deepcopy(layer).bfloat16().weight.data) is cls
    assert copy.deepcopy(layer).to(torch.float64).weight.dtype == torch.float64
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = nn.Linear(4, 6)
    other.weight = nn.Parameter(cls.quantize(torch.ones(6, 4)))
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other.weight.dequantize(), layer.weight.dequantize())
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        loss = layer(torch.eye(4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0] and type(layer.weight.data) is cls
    assert type(optimizer.state[layer.weight]["exp_avg_sq"]) is Tensor  # the second moment in full


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.sweep(every=2)
def test_it_conforms(cls) -> None:
    report = check(cls, factory=f"{cls.__name__}.quantize({{0}})", use="weight", max_examples=4)
    assert report.ok, str(report)


# --------------------------------------------------------------------------------------------------------------- FSDP2
def trained(cls: type, shard) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 2))
    model[0].weight = nn.Parameter(made(cls))
    shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for step in range(3):
        out = model(torch.randn(3, 4, generator=torch.Generator().manual_seed(step)))
        out.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(out.detach().clone())
    return found


def worker(rank: int, world: int, folder: str) -> None:
    """One rank; leaves a file if all is right."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", world), rank=rank, world_size=world)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))

    def shard(model: nn.Module) -> None:
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)

    for cls in CLASSES:
        for got, want in zip(trained(cls, shard), trained(cls, lambda model: None), strict=True):
            torch.testing.assert_close(got, want)
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.ok").touch()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_is_sharded_and_trained_by_fsdp2(world: int, tmp_path: Path) -> None:
    if world == 1:
        worker(0, 1, str(tmp_path))
    else:
        torch.multiprocessing.spawn(worker, (world, str(tmp_path)), nprocs=world)
    assert sorted(p.name for p in tmp_path.glob("*.ok")) == [f"{r}.ok" for r in range(world)]
