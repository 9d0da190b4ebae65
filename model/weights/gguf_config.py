"""The `ModelConfig` that a GGUF file's metadata and tensor table describe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model.config import ModelConfig, ModelError, RopeScaling
from model.fields import Fields
from model.registry import ARCHITECTURES
from model.weights.gguf_index import ROPE_FACTORS, GgufIndex

# `general.file_type` of files that are not quantized, to the type that they were made from.
FILE_TYPE_DTYPES = {0: "float32", 1: "float16"}
LLAMA3_ORIGINAL_LENGTH = 8192
# Texts by which control tokens that end a turn or a document go in the models we serve.
END_TEXTS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
CONTROL_TOKEN = 3  # `tokenizer.ggml.token_type`


def config_from_gguf(file: GgufIndex) -> ModelConfig:
    """Raises ModelError, which names the file and the key, for a model that cannot be served."""
    gguf_name = file.metadata.get("general.architecture")
    architecture = next((name for name, a in ARCHITECTURES.items() if a.gguf_name == gguf_name), None)
    if architecture is None:
        known = ", ".join(dict.fromkeys(a.gguf_name for a in ARCHITECTURES.values()))
        raise ModelError(f"{file.path}: architecture {gguf_name!r} is not supported; supported are {known}")
    fields = Fields(file.metadata, file.path, prefix=f"{gguf_name}.")
    hidden_size, num_heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden_size // num_heads)
    _refuse_what_is_not_supported(fields, head_dim)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(fields),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        sliding_window=fields.integer("attention.sliding_window", 0, minimum=0) or None,
        dtype=FILE_TYPE_DTYPES.get(file.metadata.get("general.file_type", -1), "bfloat16"),
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_token_ids(file.metadata),
    )
    return _with_llama3_scaling(config, file)


def _vocab_size(file: GgufIndex) -> int:
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    return file.tensors["token_embd.weight"].shape[0]


def _refuse_what_is_not_supported(fields: Fields, head_dim: int) -> None:
    value_length = fields.integer("attention.value_length", head_dim)
    if value_length != head_dim:
        raise fields.error("attention.value_length", f"{value_length} differs from key_length {head_dim}")
    rotated = fields.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise fields.error("rope.dimension_count", f"{rotated} of {head_dim} is not supported")


def _rope_scaling(fields: Fields) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise fields.error("rope.scaling.type", f"{kind!r} is not supported (none, linear, yarn are)")
    for name in ("attn_factor", "yarn_attn_factor"):
        if fields.number(f"rope.scaling.{name}", 1.0) != 1.0:
            raise fields.error(f"rope.scaling.{name}", "other than 1 is not supported")
    return RopeScaling(
        kind=kind,
        factor=fields.number("rope.scaling.factor"),
        original_max_position_embeddings=fields.integer(
            "rope.scaling.original_context_length", fields.integer("context_length")
        ),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _with_llama3_scaling(config: ModelConfig, file: GgufIndex) -> ModelConfig:
    """Llama 3's scaling, which converters store as a tensor of what each frequency is divided by.

    The released models share all parameters but the factor, by which the lowest frequency is divided. What
    these parameters give is compared with the stored tensor, so a file with others is refused.
    """
    if ROPE_FACTORS not in file.tensors:
        return config
    from model.rotary import rotary_frequencies  # here, since other files are read without torch
    from model.weights.gguf_file import GgufFile

    stored = GgufFile(file.path).load(ROPE_FACTORS)
    scaling = RopeScaling("llama3", stored.max().item(), LLAMA3_ORIGINAL_LENGTH)
    scaled = replace(config, rope_scaling=scaling)
    divisors = rotary_frequencies(config)[0] / rotary_frequencies(scaled)[0]
    if config.rope_scaling or stored.shape != divisors.shape or not stored.allclose(divisors, rtol=1e-4):
        raise ModelError(f"{file.path}: tensor {ROPE_FACTORS} is not the scaling of Llama 3.1 to 3.3")
    return scaled


def _eos_token_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """The ids that metadata names, then control tokens whose text says that a turn or document ends."""
    named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    types = metadata.get("tokenizer.ggml.token_type", [])
    texts = metadata.get("tokenizer.ggml.tokens", [])
    controls = {texts[i]: i for i, kind in enumerate(types) if kind == CONTROL_TOKEN}
    found = named + [controls.get(text) for text in END_TEXTS]
    return tuple(dict.fromkeys(token for token in found if token is not None))
