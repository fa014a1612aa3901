"""Tiny models of Hugging Face transformers with random weights: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def tokens(seed: int = 5) -> torch.Tensor:
    return torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(seed))


def causal(ids: torch.Tensor) -> dict[str, Any]:
    return {"input_ids": ids, "labels": ids, "use_cache": False}


def _gpt2(attention: str, layers: int) -> torch.nn.Module:
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = hf.GPT2Config(n_layer=layers, n_head=4, n_embd=32, vocab_size=64, n_positions=32, **off)
    return hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def _llama(attention: str, layers: int) -> torch.nn.Module:
    config = hf.LlamaConfig(
        **SMALL, num_hidden_layers=layers, num_key_value_heads=2, vocab_size=64, max_position_embeddings=32
    )
    return hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def _qwen2(attention: str, layers: int) -> torch.nn.Module:
    config = hf.Qwen2Config(
        **SMALL, num_hidden_layers=layers, num_key_value_heads=2, vocab_size=64, max_position_embeddings=32
    )
    return hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def _bert(attention: str, layers: int) -> torch.nn.Module:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = hf.BertConfig(**SMALL, num_hidden_layers=layers, vocab_size=64, max_position_embeddings=32, **off)
    return hf.AutoModelForMaskedLM.from_config(config, attn_implementation=attention)


def _vit(attention: str, layers: int) -> torch.nn.Module:
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = hf.ViTConfig(**SMALL, num_hidden_layers=layers, image_size=16, patch_size=8, num_labels=4, **off)
    return hf.AutoModelForImageClassification.from_config(config, attn_implementation=attention)


def _t5(attention: str, layers: int) -> torch.nn.Module:
    config = hf.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=layers,
        num_heads=4,
        vocab_size=64,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return hf.AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention)


def _mixtral(attention: str, layers: int) -> torch.nn.Module:
    """With the losses of its routers, which hooks collect that the first call installs."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    config = hf.MixtralConfig(
        **SMALL, **experts, num_hidden_layers=layers, num_key_value_heads=2, vocab_size=64, max_position_embeddings=32
    )
    return hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def _pixels(seed: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator), "labels": torch.tensor([1, 3])}


BUILD: dict[str, Callable[[str, int], torch.nn.Module]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "qwen2": _qwen2,
    "bert": _bert,
    "vit": _vit,
    "t5": _t5,
    "mixtral": _mixtral,
}
INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    "gpt2": lambda: causal(tokens()),
    "llama": lambda: causal(tokens()),
    "qwen2": lambda: causal(tokens()),
    "bert": lambda: {"input_ids": tokens(), "labels": tokens()},
    "vit": _pixels,
    "t5": lambda: causal(tokens()),
    "mixtral": lambda: causal(tokens()),
}


def make(name: str, attention: str = "sdpa", seed: int = 0, layers: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return BUILD[name](attention, layers)
