"""``python -m examples.quantised_llama``: inference with a Hugging Face llama whose weights are
int8.

The model is tiny and random (nothing is downloaded). torchao replaces the weights of its linear
layers by `Int8Tensor` wrappers; the compiled model unwraps them once per call, and the graph holds
their dense parts. Needs transformers and
torchao: ``pip install 'subclass_trace[transformers,torchao]'``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import subclass_trace as st


def make_model(layers: int, width: int) -> torch.nn.Module:
    """A llama of random weights, in int8 but for embedding and head."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "vocab_size": 256,
    }
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(**sizes, **heads, max_position_embeddings=128)
    ).eval()
    inner = lambda m, name: isinstance(m, torch.nn.Linear) and name != "lm_head"  # noqa: E731
    quantize_(model, Int8WeightOnlyConfig(), filter_fn=inner)
    return model


@torch.no_grad()
def generate(call: Callable[..., Any], prompt: Tensor, tokens: int) -> tuple[list[int], float]:
    """Greedy decoding without a cache, always over one window: the ids, and the median milliseconds
    per token."""
    window, found, times = prompt, [], []
    for _ in range(tokens):
        start = time.perf_counter()
        logits = call(input_ids=window, use_cache=False).logits
        times.append(time.perf_counter() - start)
        token = logits[:, -1:].argmax(-1)
        window = torch.cat([window[:, 1:], token], 1)
        found.append(int(token))
    return found, 1e3 * sorted(times)[len(times) // 2]


def main(arguments: list[str] | None = None) -> dict[str, list[int]]:
    """Generate with the eager and the compiled model, and print both."""
    parser = argparse.ArgumentParser(prog="python -m examples.quantised_llama")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--backend", default="eager", help="or inductor, with a C++ compiler")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    try:
        model = make_model(options.layers, options.width)
    except ImportError as error:
        sys.exit(f"{error.name} is missing: pip install 'subclass_trace[transformers,torchao]'")
    region = st.compile(model, backend=options.backend)
    prompt = torch.randint(0, 256, (1, 16), generator=torch.Generator().manual_seed(1))
    found = {}
    for name, call in (("eager", model), ("compiled", region)):
        found[name], milliseconds = generate(call, prompt, options.tokens)
        print(f"{name:<9}{milliseconds:>7.2f} ms / token  {found[name]}")
    weights = [p for p in model.parameters() if type(p.data) is not Tensor]
    size = sum(p.qdata.nbytes + p.scale.nbytes for p in weights)
    dense = sum(p.numel() * p.element_size() for p in weights)
    print(
        f"\n{len(weights)} weights are {type(weights[0].data).__name__}: {size / 1024:.0f} KiB, "
        f"dense {dense / 1024:.0f}"
    )
    print(
        f"specializations: {len(region.specializations)}; the graph takes, for the first of "
        "these weights:"
    )
    names = st.trace(model, input_ids=prompt, use_cache=False).names
    for leaf in [n for n in names.values() if "layers[0].self_attn.q_proj" in n]:
        print(f"  {leaf}")
    return found


if __name__ == "__main__":
    main()
