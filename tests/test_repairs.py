"""Each fault of torch that is repaired, shown with torch alone: where this one has it no more, its row has to say so."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from subclass_trace.torch_api import repairs
from subclass_trace.torch_api.repairs.table import REPAIRS, Repair
from subclass_trace.torch_api.versions import TORCH, TORCH_HERE

aten = torch.ops.aten
FAULTS: dict[str, Callable[[], bool]] = {}


def fault(name: str) -> Callable[[Callable[[], bool]], Callable[[], bool]]:
    def keep(f: Callable[[], bool]) -> Callable[[], bool]:
        FAULTS[name] = f
        return f

    return keep


def fake(*shape: int) -> tuple[FakeTensorMode, torch.Tensor]:
    mode = FakeTensorMode()
    return mode, mode.from_tensor(torch.randn(shape))


class Operations(TorchDispatchMode):
    """Names of what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def in_python() -> Iterator[Operations]:
    """Composite operations are taken apart by their forms in Python."""
    with Operations() as mode, enable_python_dispatcher():
        yield mode


@fault("copy to the same device")
def _() -> bool:
    mode, x = fake(3)
    with mode:
        return aten._to_copy.default(x, device=torch.device("cpu")) is x


@fault("dropout of nothing")
def _() -> bool:
    mode, x = fake(3)
    with mode:
        return aten.native_dropout.default(x, 0.0, True)[0] is x


@fault("distributions")
def _() -> bool:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.rand(5, 3))
    with mode:
        try:
            out = aten.binomial.default(x, x)
        except Exception:
            return True
    return type(out.shape[0]) is int


@fault("random sizes")
def _() -> bool:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.randn(5))
    assert isinstance(x.shape[0], torch.SymInt)
    with mode:
        try:
            out = torch.rand(x.shape, generator=torch.Generator())
        except Exception:
            return True
    return not isinstance(out.shape[0], torch.SymInt)


@fault("backward of interpolation")
def _() -> bool:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    grad = mode.from_tensor(torch.randn(2, 3, 5, 7))
    with mode:
        try:
            aten.upsample_bilinear2d_backward(grad, grad.shape[2:], grad.shape, False)
        except Exception:
            return True
    return False


@fault("unique")
def _() -> bool:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.arange(5), static_shapes=True)
    with mode:
        return type(aten._unique.default(x)[0].shape[0]) is int


@fault("order of FFT")
def _() -> bool:
    x = torch.randn(4, 3, 5, dtype=torch.complex64)
    mode = FakeTensorMode()
    given = mode.from_tensor(x)
    with mode:
        try:
            found = aten._fft_c2c.default(given, [1, 0], 0, True)
        except RuntimeError:
            return True
    return found.stride() != aten._fft_c2c.default(x, [1, 0], 0, True).stride()


@fault("strides")
def _() -> bool:
    x = torch.rand(4, 3).t()
    mode = FakeTensorMode()
    given = mode.from_tensor(x)
    with mode:
        found = aten.pow.Scalar(2.0, given)
    return found.stride() != aten.pow.Scalar(2.0, x).stride()


@fault("dropout between layers")
def _() -> bool:
    layer = torch.nn.RNN(2, 2, num_layers=2, dropout=0.999999)
    x = torch.randn(3, 1, 2)
    with in_python():
        a, b = layer(x)[0], layer(x)[0]
    return bool(a.equal(b)) and not layer(x)[0].equal(a)


@fault("dropout of all")
def _() -> bool:
    x = torch.ones(4)
    before = torch.get_rng_state()
    with in_python():
        torch.dropout(x, 1.0, True)
    return not torch.get_rng_state().equal(before)


@fault("margin losses")
def _() -> bool:
    x, target = torch.tensor([1.0, -1.0, 0.5, 0.3]), torch.tensor([0, 1, -1, -1])
    with in_python():
        found = torch.nn.functional.multilabel_margin_loss(x, target, reduction="none")
    expected = torch.nn.functional.multilabel_margin_loss(x, target, reduction="none")
    return found.shape != expected.shape or not found.equal(expected)


@fault("interpolation")
def _() -> bool:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (1, 3, 7, 9), dtype=torch.uint8)
    with in_python():
        found = torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear")
    return not found.equal(torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"))


class Told(torch.Tensor):
    """Tells which operations it gets."""

    got: list[str] = []

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Told:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self):  # type: ignore[no-untyped-def]
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.got.append(func.__name__)
        dense = tree_map(lambda t: t.inner if isinstance(t, Told) else t, (args, kwargs or {}))
        return func(*dense[0], **dense[1])


@fault("parts for wrappers")
def _() -> bool:
    Told.got = []
    torch.nn.functional.multi_margin_loss(Told(torch.randn(2, 3)), torch.tensor([0, 1]))
    eager, Told.got = Told.got, []
    with enable_python_dispatcher():
        torch.nn.functional.multi_margin_loss(Told(torch.randn(2, 3)), torch.tensor([0, 1]))
    return Told.got != eager


@fault("views of jagged tensors")
def _() -> bool:
    from torch.nested._internal import nested_tensor

    before, nested_tensor._dummy_instance = nested_tensor._dummy_instance, None
    try:
        with FakeTensorMode(shape_env=ShapeEnv()):
            made = nested_tensor._nt_view_dummy()
        return type(made._values) is not torch.Tensor
    finally:
        nested_tensor._dummy_instance = before


@fault("sizes of pooling")
def _() -> bool:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x = mode.from_tensor(torch.randn(1, 2, 9, 9))
    with mode:
        torch.max_pool2d(x, 2)
    return any("Mod" in str(guard.expr) for guard in env.guards)


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


@fault("fast paths")
def _() -> bool:
    layer = torch.nn.TransformerEncoderLayer(4, 2, 4, batch_first=True).eval()
    x = torch.randn(1, 2, 4)
    with torch.no_grad(), Operations() as plain:
        layer(x)
    with torch.no_grad(), Functions(), Operations() as under_mode:
        layer(x)
    return plain.names != under_mode.names


@fault("learning rate 0")
def _() -> bool:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([0.0, 1.0])
    optimizer = torch.optim.AdamW([weight], lr=0.0, foreach=False)
    torch.compile(lambda: optimizer.step(), backend="eager")()
    return weight.isnan().tolist() == [True, False]


@fault("workspace of LSTM")
def _() -> bool:
    x, h = torch.randn(3, 2, 4), torch.zeros(2, 4)
    weights = [torch.randn(16, 4), torch.randn(16, 4), torch.randn(16), torch.randn(16)]
    with torch.no_grad():
        kept = torch.ops.aten.mkldnn_rnn_layer(x, *weights, h, h, False, [], 2, 4, 1, True, False, True, True)[3]
    return kept is None


@fault("strided shards")
def _() -> bool:
    if not torch.distributed.is_available():
        pytest.skip("torch without torch.distributed")
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    flag = "use_strided_shard_as_shard_order"
    return flag in DTensorSpec.__dataclass_fields__ and flag not in inspect.getsource(DTensor.__tensor_flatten__)


@pytest.mark.parametrize("name", REPAIRS)
def test_torch_has_the_fault(name: str) -> None:
    row = REPAIRS[name]
    expected, found = row.is_of(), FAULTS[name]()
    assert found == expected, (
        f"torch {torch.__version__} {'has' if found else 'has not'} this fault: {row.fault} (repairs/{row.module}.py)"
    )


def test_each_file_has_rows_and_each_row_a_demonstration() -> None:
    files = {p.stem for p in Path(repairs.__file__).parent.glob("*.py")} - {"__init__", "table"}
    assert {row.module for row in REPAIRS.values()} == files
    assert set(FAULTS) == set(REPAIRS)


def test_no_repair_is_kept_for_versions_that_are_not_supported() -> None:
    first = TORCH[0]
    assert not [name for name, row in REPAIRS.items() if not row.is_of(first)]


def test_a_row_tells_which_versions_it_is_for() -> None:
    assert torch.__version__.startswith(".".join(map(str, TORCH_HERE)))
    row = Repair("layouts", "", before=(2, 13))
    assert row.is_of((2, 11)) and row.is_of((2, 12)) and not row.is_of((2, 13))
