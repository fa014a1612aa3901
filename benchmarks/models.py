"""What people compile: a transformer block over DTensors, stacks of quantised linear layers, a
Hugging Face llama.

Every stack runs the same eager kernels. The small block is bound by overhead, which is what a
compiler of wrappers can take away; in the large one the kernels count, and no wrapper can be much
faster than eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import stacks
from .harness import interleaved
from .results import Figure, Goal
from .subjects import Subject, WrongValues, block, check, linear_stack, ranks

_EAGER, _DYNAMO = "time / eager mode", "time / torch.compile(aot_eager)"


def subjects(quick: bool) -> list[tuple[Subject, Goal | None, Goal]]:
    """What is measured, with the goals against eager mode and against torch.compile."""
    small, large = {"width": 32, "length": 8}, {"width": 256, "length": 64}
    rows: list[tuple[Subject | None, Goal | None, Goal]] = [
        (block("DTensor", train=False, **small), Goal("<=", 0.2), Goal("<=", 0.333)),
        (block("DTensor", train=True, **small), Goal("<=", 0.25), Goal("<=", 0.4)),
    ]
    if not quick:
        rows += [
            (block("DTensor", train=False, **large), None, Goal("<=", 1.0)),
            (block("DTensor", train=True, **large), None, Goal("<=", 1.0)),
        ]
    rows += [(linear_stack(kind), None, Goal("<=", 1.0)) for kind in ("ScaledFP8", "Int8Tensor")]
    rows += [(float8_stack(), None, Goal("<=", 1.0))]
    if not quick:
        rows += [(llama(train=train), None, Goal("<=", 1.0)) for train in (False, True)]
    return [(s, a, b) for s, a, b in rows if s is not None]


def float8_stack(*, layers: int = 8, width: int = 64, batch: int = 16) -> Subject | None:
    """Linear layers with torchao's `Float8Tensor` as weight, inference. None when torchao is not
    installed."""
    try:
        from torchao.quantization import Float8WeightOnlyConfig, quantize_
    except ImportError:
        return None
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *[m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.GELU())]
    )
    quantize_(model.requires_grad_(False), Float8WeightOnlyConfig())
    x = torch.randn(batch, width)
    return Subject(f"{layers} linear layers, Float8Tensor, inference", model, (x,), x)


def llama(*, train: bool, layers: int = 2, width: int = 64, length: int = 32) -> Subject | None:
    """A tiny llama of random weights; its parameters are the inputs. None when transformers is not
    installed."""
    try:
        from transformers import AutoModelForCausalLM, LlamaConfig
    except ImportError:
        return None
    torch.manual_seed(0)
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": layers,
        "vocab_size": 256,
    }
    config = LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, max_position_embeddings=length, **heads
    )
    model = AutoModelForCausalLM.from_config(config).requires_grad_(False)
    names = [name for name, _ in model.named_parameters()]
    ids = torch.randint(0, 256, (2, length))

    def logits(*parameters: torch.Tensor) -> torch.Tensor:
        by_name = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(
            model, by_name, kwargs={"input_ids": ids, "use_cache": False}
        ).logits

    inputs = tuple(p.detach().clone().requires_grad_(train) for p in model.parameters())
    name = (
        f"Hugging Face llama, {layers} layers, d={width}, T={length}, "
        f"{'training' if train else 'inference'}"
    )
    return Subject(name, logits, inputs, torch.ones(2, length, 256))


def verify(quick: bool) -> None:
    """Do all stacks give eager's values?"""
    with ranks():
        for subject, _, _ in subjects(quick):
            _stacks(subject)


def run(quick: bool, say: Callable[[str], None]) -> Iterator[Figure]:
    """Measure."""
    with ranks():
        for subject, eager_goal, dynamo_goal in subjects(quick):
            say(f"models, {subject.name}")
            variants = {
                name: _step(subject, function) for name, function in _stacks(subject).items()
            }
            times = interleaved(variants, rounds=4 if quick else 12)
            ratios = times.ratios("eager")
            yield Figure(
                "models",
                _EAGER,
                subject.name,
                ratios.pop("ours"),
                eager_goal,
                ratios,
                times.medians(),
            )
            against = times.ratios("torch.compile")
            yield Figure(
                "models",
                _DYNAMO,
                subject.name,
                against.pop("ours"),
                dynamo_goal,
                against,
                times.medians(),
            )


def _step(subject: Subject, function: Callable[..., Any]) -> Callable[[], Any]:
    if subject.trains:
        wanted = [t for t in subject.inputs if t.requires_grad]
        return lambda: torch.autograd.grad(function(*subject.inputs), wanted, subject.tangent)

    def infer() -> Any:
        with torch.no_grad():
            return function(*subject.inputs)

    return infer


def _stacks(subject: Subject) -> dict[str, Callable[..., Any]]:
    region = stacks.ours(subject.function)
    found: dict[str, Callable[..., Any]] = {
        "torch.compile": stacks.dynamo(subject.function),
        "ours": region,  # last: what makes Dynamo forget resets regions, too
    }
    for name, function in found.items():
        stacks.forget()
        check(subject, function, name)
    if len(region.specializations) > 2:  # with gradients (the check) and without
        raise WrongValues(
            f"{subject.name}: {len(region.specializations)} specializations for one kind of call"
        )
    return {**found, "eager": subject.function}
