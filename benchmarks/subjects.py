"""What is benchmarked: programs and the tensors they run on.

A `Subject` is a function, its inputs and a tangent, over dense tensors, over `TwoTensor`, or over
`DTensor` with four (pretended) ranks and replicated placement, so that every stack runs exactly the
same kernels on the inner tensors.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from subclass_trace.subclass.flatten import leaves_of
from subclass_trace.zoo import TwoTensor, convert_linears

Tensor = torch.Tensor
Wrap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Subject:
    """A function, its inputs, and (for training) the tangent of its one result.

    ``dense()`` runs the same on plain tensors: once for each inner tensor of a `TwoTensor`.
    """

    name: str
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    tangent: Tensor

    @property
    def trains(self) -> bool:
        """Do the inputs require grad?"""
        return self.inputs[0].requires_grad

    def step(self, function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        """The result of ``function`` in place of the subject's, and the gradients when it
        trains."""
        result = function(*self.inputs)
        if not self.trains:
            return (result,)
        return (result, *torch.autograd.grad(result, self.inputs, self.tangent))

    def dense(self) -> Callable[[], Any]:
        """The step on the inner tensors, in eager mode."""
        columns = list(zip(*[leaves_of(t) for t in self.inputs], strict=True))
        inputs = [tuple(t.detach().clone().requires_grad_(self.trains) for t in c) for c in columns]
        tangents, flat = leaves_of(self.tangent), [t for c in inputs for t in c]

        def run() -> Any:
            results = [self.function(*c) for c in inputs]
            return torch.autograd.grad(results, flat, tangents) if self.trains else results

        return run


class WrongValues(AssertionError):
    """A stack does not compute what eager mode computes."""


def check(subject: Subject, function: Callable[..., Tensor], stack: str) -> None:
    """Compare a stack with eager mode: types, values and gradients.

    Raises:
        WrongValues: they differ.
    """
    for k, (got, expected) in enumerate(
        zip(subject.step(function), subject.step(subject.function), strict=True)
    ):
        which = "result" if k == 0 else f"gradient of input {k - 1}"
        if type(got) is not type(expected):
            raise WrongValues(f"{subject.name}: {stack} gives a {type(got).__name__} as {which}")
        for a, b in zip(leaves_of(got), leaves_of(expected), strict=True):
            try:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            except AssertionError as error:
                message = (
                    f"{subject.name}: the {which} of {stack} is not that of eager mode: {error}"
                )
                raise WrongValues(message) from None


# ---- kinds of tensors
def dense(t: Tensor) -> Tensor:
    """A plain tensor."""
    return t.detach().clone()


def two(t: Tensor) -> Tensor:
    """A `TwoTensor` of two copies."""
    return TwoTensor(t.detach().clone(), t.detach().clone())


def dtensor(t: Tensor) -> Tensor:
    """A replicated `DTensor`; call it inside `ranks`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return DTensor.from_local(t.detach().clone(), mesh, [Replicate()], run_check=False)


KINDS: dict[str, Wrap] = {"dense": dense, "TwoTensor": two, "DTensor": dtensor}


@contextlib.contextmanager
def ranks(count: int = 4) -> Iterator[None]:
    """A process group of pretended ranks: its collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.distributed.is_initialized():
        yield
        return
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


# ---- programs
def _block(x: Tensor, p: Sequence[Tensor], heads: int = 4) -> Tensor:
    batch, length, width = x.shape
    h = F.layer_norm(x, (width,), p[0], p[1])
    q, k, v = (
        t.view(batch, length, heads, width // heads).transpose(1, 2)
        for t in F.linear(h, p[2]).chunk(3, -1)
    )
    weights = ((q @ k.transpose(-2, -1)) * (1 / math.sqrt(width // heads))).softmax(-1)
    x = x + F.linear((weights @ v).transpose(1, 2).reshape(batch, length, width), p[3])
    h = F.layer_norm(x, (width,), p[4], p[5])
    return x + F.linear(F.gelu(F.linear(h, p[6])), p[7])


def _transformer(x: Tensor, *parameters: Tensor) -> Tensor:
    for k in range(0, len(parameters), 8):
        x = _block(x, parameters[k : k + 8])
    return x


def transformer(
    kind: str, *, layers: int, width: int = 32, length: int = 8, batch: int = 2
) -> Subject:
    """A transformer with eight parameters per layer, trained."""
    wrap, generator = KINDS[kind], torch.Generator().manual_seed(0)
    w = width
    shapes = [(w,), (w,), (3 * w, w), (w, w), (w,), (w,), (4 * w, w), (w, 4 * w)] * layers
    values = [torch.randn(*s, generator=generator) / math.sqrt(w) for s in shapes]
    x = torch.randn(batch, length, w, generator=generator)
    inputs = tuple(wrap(t).requires_grad_() for t in (x, *values))
    return Subject(f"{layers} layers, {kind}", _transformer, inputs, wrap(torch.ones_like(x)))


def _biased_block(x: Tensor, *p: Tensor, heads: int = 4) -> Tensor:
    batch, length, width = x.shape
    h = F.layer_norm(x, (width,), p[0], p[1])
    q, k, v = (
        F.linear(h, p[n], p[n + 1]).view(batch, length, heads, width // heads).transpose(1, 2)
        for n in (2, 4, 6)
    )
    weights = ((q @ k.transpose(-2, -1)) * (1 / math.sqrt(width // heads))).softmax(-1)
    x = x + F.linear((weights @ v).transpose(1, 2).reshape(batch, length, width), p[8], p[9])
    h = F.layer_norm(x, (width,), p[10], p[11])
    return x + F.linear(F.gelu(F.linear(h, p[12], p[13])), p[14], p[15])


def block(kind: str, *, train: bool, width: int = 32, length: int = 8) -> Subject:
    """A usual transformer block: four projections and two feed-forward layers with biases, 16
    parameters; batch 1."""
    wrap, generator = KINDS[kind], torch.Generator().manual_seed(0)
    w, wide = (width, width), 4 * width
    shapes: list[tuple[int, ...]] = [(width,), (width,), *[w, (width,)] * 4, (width,), (width,)]
    shapes += [(wide, width), (wide,), (width, wide), (width,)]
    values = [torch.randn(*s, generator=generator) / math.sqrt(width) for s in shapes]
    x = torch.randn(1, length, width, generator=generator)
    inputs = tuple(wrap(t).requires_grad_(train) for t in (x, *values))
    name = f"1 block, d={width}, T={length}, {kind}, {'training' if train else 'inference'}"
    return Subject(name, _biased_block, inputs, wrap(torch.ones_like(x)))


def linear_stack(kind: str, *, layers: int = 8, width: int = 64, batch: int = 16) -> Subject | None:
    """Linear layers with a weight-only quantised weight and a GELU, inference: "ScaledFP8", or
    torchao's "Int8Tensor".

    None when torchao is not installed.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.GELU())]
    )
    model.requires_grad_(False)
    if kind == "ScaledFP8":
        model = convert_linears(model, fp8_weight=True)
    else:
        try:
            from torchao.quantization import Int8WeightOnlyConfig, quantize_
        except ImportError:
            return None
        quantize_(model, Int8WeightOnlyConfig())
    x = torch.randn(batch, width)
    return Subject(f"{layers} linear layers, {kind}, inference", model, (x,), x)


def _five(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin() + y - x * x


def five_operations(kind: str, *, train: bool, size: int = 4) -> Subject:
    """Two inputs and five operations: ten dense ones for a `TwoTensor`. The kernels are as small as
    they get."""
    wrap, generator = KINDS[kind], torch.Generator().manual_seed(0)
    inputs = tuple(
        wrap(torch.randn(size, generator=generator)).requires_grad_(train) for _ in range(2)
    )
    name = f"2 {kind} inputs, 5 operations, {'training' if train else 'inference'}"
    return Subject(name, _five, inputs, wrap(torch.ones(size)))


def _many(x: Tensor, *parameters: Tensor) -> Tensor:
    for k in range(0, len(parameters), 2):
        x = (x * parameters[k] + parameters[k + 1]).relu()
    return x


def many_parameters(kind: str, *, train: bool, count: int = 100, size: int = 4) -> Subject:
    """A hundred parameters, three operations for each pair of them."""
    wrap, generator = KINDS[kind], torch.Generator().manual_seed(0)
    values = [1 + 0.1 * torch.randn(size, generator=generator) for _ in range(count + 1)]
    inputs = tuple(wrap(t).requires_grad_(train) for t in values)
    name = f"{count} {kind} parameters, {'training' if train else 'inference'}"
    return Subject(name, _many, inputs, wrap(torch.ones(size)))
