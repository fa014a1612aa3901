"""Joint graphs of models, for the partitioners: multi-layer perceptron, convolutions, transformers,
GPT-2 and Llama.

`NAMES` lists them; ``+dec`` captures with inductor's decompositions. Models that use dropout draw
random numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
import torch.nn.functional as F

from subclass_trace.capture.session import Session
from subclass_trace.frontends.dynamic import SizeHistory
from subclass_trace.frontends.traced_call import traced_call
from subclass_trace.options import Options
from subclass_trace.subclass.flatten import leaves_of

from .subjects import transformer

Tensor = torch.Tensor
Program = tuple[Callable[..., Any], list[Any]]


@dataclass(frozen=True, eq=False)
class Joint:
    """A joint graph and what runs it.

    ``leaves`` are real dense tensors for its primals, ``num_forward`` counts the forward's outputs.
    """

    name: str
    module: fx.GraphModule
    num_forward: int
    leaves: tuple[Tensor, ...]
    served: frozenset[str]

    def copy(self) -> fx.GraphModule:
        """A copy with metadata of its own: torch's partitioners change both."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.module.graph, {}))
        for new, old in zip(graph.nodes, self.module.graph.nodes, strict=True):
            new.meta = dict(old.meta)
        return fx.GraphModule(self.module, graph)

    def tangents(self) -> list[Tensor]:
        """Ones for each tangent."""
        vals = [
            n.meta["val"]
            for n in self.module.graph.nodes
            if n.op == "placeholder" and "tangents" in n.name
        ]
        return [torch.ones(v.shape, dtype=v.dtype) for v in vals]


def joint_of(
    name: str, function: Callable[..., Any], args: Sequence[Any], decompositions: Any = None
) -> Joint | None:
    """Capture the joint graph of a call; None when nothing is differentiable."""
    call, table = (tuple(args), {}), decompositions or {}
    session = Session(dynamic=False, decompositions=table)
    captured, _, maker = traced_call(
        function, call, Options(), SizeHistory(), session, symbols=True
    )
    if captured.tape is None:
        return None
    traced = captured.tape.trace(captured.tape.guess())
    rows = [(row.leaves, leaves_of(maker.flat[row.position])) for row in captured.inputs.rows]
    of_primal = {
        captured.inputs.leaf_primals[k]: leaf.detach()
        for ks, own in rows
        for k, leaf in zip(ks, own, strict=True)
    }
    leaves = tuple(of_primal[k] for k in sorted(of_primal))
    return Joint(name, traced.joint, traced.num_forward, leaves, captured.served(traced.joint))


@functools.cache
def load(name: str) -> Joint:
    """The joint graph of this name."""
    base, _, decomposed = name.partition("+")
    torch.manual_seed(0)
    function, args = MODELS[base]()
    table = None
    if decomposed:
        # the decomposition of max_pool2d takes it for granted
        importlib.import_module("torch._inductor.lowering")
        from torch._inductor.decomposition import select_decomp_table

        table = select_decomp_table()
    found = joint_of(name, function, args, table)
    assert found is not None
    return found


# ---- models
def _parameter(*shape: int) -> Tensor:
    return (torch.randn(shape) / shape[-1] ** 0.5).requires_grad_()


def _mlp(layers: int = 8, width: int = 128, batch: int = 64) -> Program:
    rows = [
        (_parameter(width, width), torch.zeros(width), torch.ones(width)) for _ in range(layers)
    ]
    flat = [t.requires_grad_() for row in rows for t in row]

    def f(x: Tensor, *p: Tensor) -> Tensor:
        for i in range(0, len(p), 3):
            x = x + F.silu(F.gelu(F.linear(x, p[i], p[i + 1])) * p[i + 2]).tanh()
        return (x**2).mean()

    return f, [torch.randn(batch, width), *flat]


def _conv(blocks: int = 4, channels: int = 16) -> Program:
    parameters, buffers = [], []
    for _ in range(blocks):
        parameters += [
            _parameter(channels, channels, 3, 3),
            torch.ones(channels),
            torch.zeros(channels),
        ]
        buffers += [torch.zeros(channels), torch.ones(channels)]
    count = len(parameters)

    def f(x: Tensor, *a: Tensor) -> Tensor:
        p, b = a[:count], a[count:]
        for i in range(blocks):
            h = F.conv2d(x, p[3 * i], padding=1)
            x = x + F.relu(
                F.batch_norm(h, b[2 * i], b[2 * i + 1], p[3 * i + 1], p[3 * i + 2], True)
            )
        return F.max_pool2d(x, 2).mean()

    return f, [
        torch.randn(4, channels, 16, 16),
        *[t.requires_grad_() for t in parameters],
        *buffers,
    ]


def _transformer(layers: int, kind: str = "dense", drop: float = 0.0) -> Program:
    subject = transformer(kind, layers=layers, width=64, length=64, batch=4)

    def f(x: Tensor, *p: Tensor) -> Tensor:
        for k in range(0, len(p), 8):
            x = subject.function(x, *p[k : k + 8])
            x = F.dropout(x, drop) if drop else x
        return (x**2).mean()

    return f, [subject.inputs[0].detach(), *subject.inputs[1:]]


def _gpt2(
    layers: int = 4, width: int = 64, heads: int = 4, vocabulary: int = 512, length: int = 64
) -> Program:
    """GPT-2: learned positions, dropout, tied embedding, cross entropy."""
    w = width
    shapes = [
        (w,),
        (w,),
        (3 * w, w),
        (3 * w,),
        (w, w),
        (w,),
        (w,),
        (w,),
        (4 * w, w),
        (4 * w,),
        (w, 4 * w),
        (w,),
    ]
    flat = [
        _parameter(vocabulary, w),
        _parameter(128, w),
        *[_parameter(*s) for s in shapes * layers],
    ]

    def block(x: Tensor, p: Sequence[Tensor]) -> Tensor:
        batch, n, _ = x.shape
        h = F.linear(F.layer_norm(x, (w,), p[0], p[1]), p[2], p[3])
        q, k, v = (t.view(batch, n, heads, w // heads).transpose(1, 2) for t in h.split(w, -1))
        scores = (q @ k.transpose(-1, -2)) / (w // heads) ** 0.5
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        scores = torch.where(mask, scores, torch.full([], -1e9))
        h = (F.dropout(scores.softmax(-1), 0.1) @ v).transpose(1, 2).reshape(batch, n, w)
        x = x + F.dropout(F.linear(h, p[4], p[5]), 0.1)
        h = F.gelu(F.linear(F.layer_norm(x, (w,), p[6], p[7]), p[8], p[9]), approximate="tanh")
        return x + F.dropout(F.linear(h, p[10], p[11]), 0.1)

    def f(ids: Tensor, embedding: Tensor, positions: Tensor, *p: Tensor) -> Tensor:
        x = F.dropout(F.embedding(ids, embedding) + positions[: ids.shape[1]], 0.1)
        for k in range(0, len(p), 12):
            x = block(x, p[k : k + 12])
        logits = F.linear(x, embedding)
        return F.cross_entropy(logits[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1))

    return f, [torch.randint(0, vocabulary, (2, length)), *flat]


def _llama(
    layers: int = 4, width: int = 64, heads: int = 4, vocabulary: int = 512, length: int = 64
) -> Program:
    """Llama: rotary positions, RMS norm, grouped heads, SwiGLU."""
    w, size = width, width // heads
    shapes = [(w,), (w, w), (w // 2, w), (w // 2, w), (w, w), (w,), (160, w), (160, w), (w, 160)]
    flat = [
        _parameter(vocabulary, w),
        _parameter(vocabulary, w),
        *[_parameter(*s) for s in shapes * layers],
    ]
    inverse = 1.0 / (10000 ** (torch.arange(0, size, 2) / size))

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1)
        return x * cos + half * sin

    def block(x: Tensor, p: Sequence[Tensor], cos: Tensor, sin: Tensor) -> Tensor:
        batch, n, _ = x.shape
        h = norm(x, p[0])
        q, k, v = (F.linear(h, m).view(batch, n, -1, size).transpose(1, 2) for m in p[1:4])
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        k, v = (
            t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, heads, n, size) for t in (k, v)
        )
        mask = torch.full((n, n), -1e9).triu(1)
        weights = ((q @ k.transpose(2, 3)) * size**-0.5 + mask).softmax(-1, dtype=torch.float32)
        x = x + F.linear((weights @ v).transpose(1, 2).reshape(batch, n, w), p[4])
        h = norm(x, p[5])
        return x + F.linear(F.silu(F.linear(h, p[6])) * F.linear(h, p[7]), p[8])

    def f(ids: Tensor, inverse: Tensor, embedding: Tensor, head: Tensor, *p: Tensor) -> Tensor:
        x = F.embedding(ids, embedding)
        angles = torch.arange(ids.shape[1])[:, None] * inverse
        angles = torch.cat((angles, angles), -1)
        for k in range(0, len(p), 9):
            x = block(x, p[k : k + 9], angles.cos(), angles.sin())
        return F.cross_entropy(
            F.linear(x, head)[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1)
        )

    return f, [torch.randint(0, vocabulary, (2, length)), inverse, *flat]


MODELS: dict[str, Callable[[], Program]] = {
    "mlp8": _mlp,
    "conv4": _conv,
    "tf2": lambda: _transformer(2),
    "tf6": lambda: _transformer(6),
    "tf12": lambda: _transformer(12),
    "tf48": lambda: _transformer(48),
    "tf6_dropout": lambda: _transformer(6, drop=0.1),
    "tf6_two": lambda: _transformer(6, "TwoTensor"),
    "gpt2": _gpt2,
    "llama": _llama,
}
_PLAIN = [name for name in MODELS if name != "tf48"]
NAMES = [*_PLAIN, *(f"{name}+dec" for name in _PLAIN if name not in ("tf2", "tf6_two"))]
