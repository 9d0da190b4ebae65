"""The shape of a decoder, read from a Hugging Face `config.json` or from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class ModelError(ValueError):
    """A model that cannot be served. The message is one line and names the file, tensor or field."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Parameters of scaled rotary embeddings, as Hugging Face's `rope_scaling` names them."""

    kind: Literal["linear", "dynamic", "yarn", "llama3"]
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer: what the supported architectures share, and where they differ."""

    architecture: str  # Hugging Face class name, e.g. "Qwen3ForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: RMSNorm over each head of q and k
    sliding_window: int | None = None
    dtype: str = "bfloat16"  # as the checkpoint says
    initializer_range: float = 0.02  # standard deviation of weights that nobody has trained
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # config.json and generation_config.json together

    @property
    def num_positions(self) -> int:
        """Longest sequence. A model that YaRN stretches often states its original length as the maximum."""
        scaling = self.rope_scaling
        if scaling is None or scaling.kind != "yarn":
            return self.max_position_embeddings
        return max(
            self.max_position_embeddings, int(scaling.factor * scaling.original_max_position_embeddings)
        )
