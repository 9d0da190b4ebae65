"""Tiny random models of every architecture, built by transformers: the oracle of logits and text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

_BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # the usual 0.02 leaves logits too close together to tell right from wrong
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

TINY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "llama3": {
        "model_type": "llama",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-dynamic": {"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama-yarn": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "smollm": {
        "model_type": "llama",
        "num_attention_heads": 6,
        "hidden_size": 96,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 24},
    "mistral-window": {"model_type": "mistral", "sliding_window": 20},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}
"""Name to config fields over `_BASE`; every name can be given to `make_tiny_model`."""


def make_tiny_model(architecture: str, seed: int = 0, **overrides: Any) -> tuple[Any, Any]:
    """(transformers model in fp32 and eval mode, its config); norm weights and biases are random too."""
    fields = {**_BASE, **TINY_MODELS[architecture], **overrides}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif "norm" in name:
                parameter.normal_(mean=1.0, std=0.1)
    return model, config


def save_tiny_model(
    path: Path, architecture: str, with_tokenizer: bool = False, seed: int = 0, **overrides: Any
) -> Any:
    """Write a tiny model as a Hugging Face folder (safetensors); returns the transformers model."""
    model, _ = make_tiny_model(architecture, seed, **overrides)
    model.save_pretrained(path)
    if with_tokenizer:
        tiny_tokenizer().save_pretrained(path)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, no merges: ids 0-2 are special, 3-258 the bytes. Fits the 320 ids of the tiny models."""
    special = ["<pad>", "<bos>", "<eos>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    return fast
