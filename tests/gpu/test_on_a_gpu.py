"""What needs a CUDA GPU: FP8 products, Triton by inductor and by hand, DTensor over nccl. Skipped where there is none."""

from __future__ import annotations

import copy
import socket
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

import subclass_trace as st
from subclass_trace.zoo import ScaledFP8, TwoTensor, convert_linears

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor"),
    pytest.mark.filterwarnings("ignore:It seems like you did not set/select the default device"),
]
BACKENDS = ["eager", "inductor"]
Step = Callable[..., torch.Tensor]


def gradients(model: nn.Module, step: Step, x: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradient of each parameter."""
    out = step(x)
    out.float().square().mean().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
def test_fp8_products_run_on_their_kernel(backend: str) -> None:
    """`torch._scaled_mm` in forward and backward, from Hopper and Ada on; sizes are multiples of 16."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 products need compute capability 8.9 or newer")
    torch.manual_seed(0)
    eager = convert_linears(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)), fp8_weight=True)
    eager = eager.to("cuda", torch.bfloat16)
    assert all(type(eager[k].weight.data) is ScaledFP8 and eager[k].weight.is_cuda for k in (0, 2))
    model = copy.deepcopy(eager)
    region = st.compile(model, backend=backend)
    x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
    for expected, found in zip(gradients(eager, eager, x), gradients(model, region, x), strict=True):
        expected, found = ((t.dequantize() if isinstance(t, ScaledFP8) else t).float() for t in (expected, found))
        # Fused code rounds elsewhere, and a value may fall into the next FP8 step.
        assert (found - expected).norm() <= (0.0 if backend == "eager" else 0.1) * expected.norm() + 1e-6
    graph = region.specializations[0].graphs.forward.graph
    assert sum(n.target is torch.ops.aten._scaled_mm.default for n in graph.nodes) == 2


def test_inductor_writes_triton_for_wrappers() -> None:
    torch.manual_seed(0)
    eager = nn.Linear(64, 32, device="cuda")
    eager.weight = nn.Parameter(TwoTensor(eager.weight.detach(), eager.weight.detach() * 2))

    def value(t: torch.Tensor) -> torch.Tensor:
        return torch.stack([t.a, t.b]) if isinstance(t, TwoTensor) else t

    model = copy.deepcopy(eager)
    region = st.compile(lambda x: torch.nn.functional.gelu(model(x)) + 1, backend="inductor")
    x = torch.randn(16, 64, device="cuda")
    found, expected = region(x), torch.nn.functional.gelu(eager(x)) + 1
    torch.testing.assert_close(value(found.detach()), value(expected.detach()))
    for out, layer in ((found, model), (expected, eager)):
        out.backward(TwoTensor(torch.ones_like(x[:, :32]), torch.ones_like(x[:, :32])))
    torch.testing.assert_close(value(model.weight.grad), value(eager.weight.grad))
    assert len(region.specializations) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_with_two_of_four(backend: str) -> None:
    """Semi-structured sparse weights: their packed parts are the graph's inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to("cuda", torch.float16).eval()
    for layer in (model[0], model[2]):
        kept = torch.tensor([0, 0, 1, 1], device="cuda").tile((layer.weight.shape[0], layer.weight.shape[1] // 4))
        packed = torch.sparse.to_sparse_semi_structured(layer.weight.detach() * kept)
        layer.weight = nn.Parameter(packed, requires_grad=False)
    region, x = st.compile(model, backend=backend, frontend="trace"), torch.randn(128, 128, device="cuda").half()
    with torch.no_grad():
        torch.testing.assert_close(region(x), model(x))
    nodes = region.specializations[0].graphs.forward.graph.nodes
    assert sum("sparse_semi_structured" in str(n.target) or "cslt_sparse_mm" in str(n.target) for n in nodes) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_over_ragged_batches(backend: str) -> None:
    """Jagged tensors into a kernel of attention that takes them: one graph for all lengths, and its backward."""
    project = nn.Linear(32, 96, device="cuda", dtype=torch.float16)

    def attention(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, [4, 8]).transpose(1, 2) for t in project(x).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)

    region = st.compile(attention, backend=backend, frontend="trace")
    for k in range(3):
        rows = [torch.randn(3 + k + j, 32) for j in range(3)]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda", dtype=torch.float16)
        found = []
        for call in (attention, region):
            project.zero_grad()
            y = call(x).values()
            y.float().square().sum().backward()
            found.append((y.detach(), project.weight.grad))
        torch.testing.assert_close(*found, rtol=1e-2, atol=1e-2)
    assert len(region.specializations) == 1


def test_a_region_in_a_cuda_graph() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda()
    region, x = st.compile(model), torch.zeros(32, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            region(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            y = region(x)
        x.copy_(torch.randn(32, 64))
        graph.replay()
        torch.testing.assert_close(y, model(x))


@pytest.fixture(scope="module")
def doubled() -> Step:
    """A function that launches a Triton kernel."""
    triton = pytest.importorskip("triton")
    import triton_kernels  # Triton reads the source of a kernel from its file

    def launch(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        triton_kernels.double[(triton.cdiv(x.numel(), 128),)](x, out, x.numel(), BLOCK=128)
        return out

    return launch


def test_a_triton_kernel_in_a_region_is_refused(doubled: Step) -> None:
    x = torch.randn(300, device="cuda")
    torch.testing.assert_close(doubled(x), 2 * x)
    with pytest.raises(st.UnsupportedError, match=r"(?s)data_ptr.*fix: .*torch\.library\.custom_op"):
        st.compile(doubled, frontend="trace")(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_triton_kernel_as_an_operation(doubled: Step, backend: str) -> None:
    """It is one node, and runs for each inner tensor."""
    operation = torch.library.custom_op("st_gpu::doubled", doubled, mutates_args=(), schema="(Tensor x) -> Tensor")
    operation.register_fake(torch.empty_like)
    region = st.compile(lambda x: operation(x).sin(), backend=backend)
    x = TwoTensor(torch.randn(300, device="cuda"), torch.randn(300, device="cuda"))
    for _ in range(2):
        found = region(x)
        torch.testing.assert_close(torch.stack([found.a, found.b]), torch.stack([(2 * x.a).sin(), (2 * x.b).sin()]))
    nodes = region.specializations[0].graphs.forward.graph.nodes
    assert sum(n.target is torch.ops.st_gpu.doubled.default for n in nodes) == 2


@pytest.fixture
def nccl() -> Iterator[None]:
    """A process group of this process alone."""
    if not (dist.is_available() and dist.is_nccl_available()):
        pytest.skip("this torch has no nccl")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = dist.TCPStore("127.0.0.1", port, 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_parallel_layers_over_nccl(nccl: None, backend: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (1,))

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).cuda()
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    eager, model = build(), build()
    assert type(model[0].weight.data) is DTensor
    x = torch.randn(8, 16, device="cuda")
    expected, found = gradients(eager, eager, x), gradients(model, st.compile(model, backend=backend), x)
    for right, value in zip(expected, found, strict=True):
        assert type(value) is type(right)
        locals_ = [t.to_local() if isinstance(t, DTensor) else t for t in (value, right)]
        torch.testing.assert_close(*locals_)
