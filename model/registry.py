"""The architectures that the one decoder covers, and what their configs leave unsaid."""

from __future__ import annotations

from dataclasses import dataclass

from model.config import ModelError


@dataclass(frozen=True, slots=True)
class Architecture:
    """None means that the config's own field (`attention_bias`, `mlp_bias`) decides."""

    gguf_name: str  # `general.architecture` of GGUF files
    qkv_bias: bool | None
    o_bias: bool | None
    mlp_bias: bool | None
    qk_norm: bool


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture("llama", qkv_bias=None, o_bias=None, mlp_bias=None, qk_norm=False),
    "MistralForCausalLM": Architecture("llama", qkv_bias=False, o_bias=False, mlp_bias=False, qk_norm=False),
    "Qwen2ForCausalLM": Architecture("qwen2", qkv_bias=True, o_bias=False, mlp_bias=False, qk_norm=False),
    "Qwen3ForCausalLM": Architecture("qwen3", qkv_bias=None, o_bias=None, mlp_bias=False, qk_norm=True),
}


def get_architecture(name: str) -> Architecture:
    """Raises `ModelError` for an architecture that the decoder does not cover."""
    if name not in ARCHITECTURES:
        raise ModelError(f"architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
