"""Tiny GGUF files with the weights of a transformers model, written as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize

MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(
    path: Path,
    hf_model: Any,
    matrix_type: str = "F32",
    metadata: Mapping[str, int | float | str] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    **split: Any,
) -> None:
    """Matrices go in as `matrix_type`, vectors in fp32. `metadata` and `tensors` are added, or replace.

    `split` are the writer's options for a file in parts.
    """
    c = hf_model.config
    writer = gguf.GGUFWriter(path, arch="llama" if c.model_type == "mistral" else c.model_type, **split)
    for key, value in {**_metadata(hf_model), **(metadata or {})}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(key, value)
    for name, tensor in {**_tensors(hf_model), **(tensors or {})}.items():
        if tensor.ndim == 2 and matrix_type != "F32":
            kind = gguf.GGMLQuantizationType[matrix_type]
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(hf_model: Any) -> dict[str, int | float | str]:
    c = hf_model.config
    arch = "llama" if c.model_type == "mistral" else c.model_type
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    values = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(c.rope_parameters["rope_theta"]),
    }
    named = {f"{arch}.{key}": value for key, value in values.items()}
    return {**named, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}


def _tensors(hf_model: Any) -> dict[str, np.ndarray]:
    c = hf_model.config
    tensors = {}
    for name, tensor in hf_model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        if c.model_type in ("llama", "mistral"):
            if ".q_proj." in name:
                tensor = interleave_rotary_rows(tensor, c.num_attention_heads)
            elif ".k_proj." in name:
                tensor = interleave_rotary_rows(tensor, c.num_key_value_heads)
        tensors[_ggml_name(name)] = tensor.contiguous().numpy()
    return tensors


def interleave_rotary_rows(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Within each head: row i to row 2i, row i + half to row 2i + 1."""
    half = tensor.shape[0] // heads // 2
    out = torch.empty_like(tensor)
    for head in range(heads):
        for i in range(half):
            start = head * 2 * half
            out[start + 2 * i] = tensor[start + i]
            out[start + 2 * i + 1] = tensor[start + half + i]
    return out


def _ggml_name(name: str) -> str:
    module, kind = name.rsplit(".", 1)
    if module in MODULES:
        return f"{MODULES[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{MODULES[module]}.{kind}"
