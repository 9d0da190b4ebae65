"""Read a `ModelConfig` from config.json and generation_config.json, or from GGUF metadata."""

from __future__ import annotations

import json
from pathlib import Path

from model.config import ModelConfig, ModelError, RopeScaling
from model.fields import Fields
from model.registry import ARCHITECTURES, get_architecture
from model.source import ModelSource
from model.weights.gguf_config import config_from_gguf
from model.weights.gguf_index import GgufIndex

# What transformers takes where a config of that architecture leaves the field out.
DEFAULT_HEAD_DIM = {"Qwen3ForCausalLM": 128}
DEFAULT_SLIDING_WINDOW = 4096


def read_model_config(source: ModelSource) -> ModelConfig:
    """Raises ModelError, which names the file and the field, for a model that cannot be served.

    Needs no torch, but for a GGUF file with the rotary scaling of Llama 3.
    """
    if source.kind == "gguf":
        return config_from_gguf(GgufIndex(source.path))
    return config_from_folder(source.path)


def config_from_folder(folder: Path) -> ModelConfig:
    """From Hugging Face's config.json. Raises `ModelError`, also for what the decoder could not compute."""
    fields = _read_json(folder / "config.json")
    architecture = _architecture(fields)
    known = ARCHITECTURES[architecture]
    _refuse_what_is_not_supported(fields)
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.error("num_attention_heads", f"is {num_heads}, no multiple of {num_kv_heads} KV heads")
    attention_bias = fields.boolean("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.integer("head_dim", DEFAULT_HEAD_DIM.get(architecture, hidden_size // num_heads)),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=_rope_fields(fields).number("rope_theta", fields.number("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(fields),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        qkv_bias=attention_bias if known.qkv_bias is None else known.qkv_bias,
        o_bias=attention_bias if known.o_bias is None else known.o_bias,
        mlp_bias=fields.boolean("mlp_bias", False) if known.mlp_bias is None else known.mlp_bias,
        qk_norm=known.qk_norm,
        sliding_window=_sliding_window(fields, architecture),
        dtype=str(fields.get("dtype", fields.get("torch_dtype", "bfloat16"))),
        initializer_range=fields.number("initializer_range", 0.02),
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(fields, folder),
    )


def _read_json(path: Path) -> Fields:
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: not a JSON object")
    return Fields(values, path)


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names:
        raise fields.error("architectures", "is missing")
    try:
        get_architecture(str(names[0]))
    except ModelError as error:
        raise ModelError(f"{fields.path}: {error}") from None
    return str(names[0])


def _refuse_what_is_not_supported(fields: Fields) -> None:
    """Settings that would make the same weights compute something else."""
    quantization = fields.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise fields.error("quantization_config", f"asks for {method!r} weights, which are not supported")
    activation = fields.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.error("hidden_act", f"is {activation!r}; only silu is supported")
    if _rope_fields(fields).get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0)) != 1.0:
        raise fields.error("partial_rotary_factor", "other than 1 is not supported")


def _rope_fields(fields: Fields) -> Fields:
    """`rope_parameters` (transformers 5) or `rope_scaling` (4); empty if there is neither."""
    for name in ("rope_parameters", "rope_scaling"):
        values = fields.get(name)
        if isinstance(values, dict):
            prefix = f"{name}."
            return Fields({prefix + key: value for key, value in values.items()}, fields.path, prefix)
    return Fields({}, fields.path)


def _rope_scaling(fields: Fields) -> RopeScaling | None:
    rope = _rope_fields(fields)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "dynamic", "yarn", "llama3"):
        raise rope.error(
            "rope_type", f"{kind!r} is not supported (default, linear, dynamic, yarn, llama3 are)"
        )
    max_positions = fields.integer("max_position_embeddings")
    original = rope.integer("original_max_position_embeddings", max_positions)
    llama3 = kind == "llama3"
    return RopeScaling(
        kind=kind,
        factor=rope.number("factor", max_positions / original if kind == "yarn" else None),
        original_max_position_embeddings=original,
        low_freq_factor=rope.number("low_freq_factor", None if llama3 else 1.0),
        high_freq_factor=rope.number("high_freq_factor", None if llama3 else 4.0),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.optional_number("attention_factor"),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        truncate=rope.boolean("truncate", True),
    )


def _sliding_window(fields: Fields, architecture: str) -> int | None:
    """The window of all layers. Models that mix windowed and full layers are refused."""
    if architecture == "LlamaForCausalLM":
        return None
    if architecture == "MistralForCausalLM":
        if fields.has("sliding_window") and fields.get("sliding_window") is None:
            return None
        return fields.integer("sliding_window", DEFAULT_SLIDING_WINDOW)
    if not fields.boolean("use_sliding_window", False):
        return None
    first_windowed_layer = fields.integer("max_window_layers", 28, minimum=0)
    if first_windowed_layer >= fields.integer("num_hidden_layers"):
        return None
    if first_windowed_layer > 0:
        raise fields.error("max_window_layers", "makes some layers windowed and others not: not supported")
    return fields.integer("sliding_window", DEFAULT_SLIDING_WINDOW)


def _eos_token_ids(fields: Fields, folder: Path) -> tuple[int, ...]:
    """Those of config.json, then those that generation_config.json adds."""
    ids = fields.token_ids("eos_token_id")
    generation_path = folder / "generation_config.json"
    if generation_path.is_file():
        ids = ids + _read_json(generation_path).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))
