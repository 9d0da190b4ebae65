"""transformers on the embedded model's weights: the oracle of logits and greedy text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from model.config_reader import read_model_config
from model.source import resolve_model
from model.weights.gguf_checkpoint import GgufCheckpoint
from model.weights.gguf_file import GgufFile


@lru_cache(maxsize=1)
def hf_model_from_embedded() -> Any:
    """A transformers LlamaForCausalLM in fp32 with our unpacked weights; it generates greedily.

    transformers could read the file itself, but takes 17 seconds, for weights that are equal bit by bit.
    """
    source = resolve_model(None)
    c = read_model_config(source)
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        tie_word_embeddings=True,
        bos_token_id=c.bos_token_id,
        eos_token_id=list(c.eos_token_ids),
    )
    checkpoint = GgufCheckpoint(GgufFile(source.path), c)
    cpu, dtype = torch.device("cpu"), torch.float32
    weights = {name: checkpoint.open(name, dtype, cpu)[:] for name in checkpoint.names()}
    # Not `load_state_dict` on a fresh model, whose random initialisation takes seconds.
    model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights, dtype=dtype).eval()
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=list(c.eos_token_ids), pad_token_id=c.eos_token_ids[0]
    )
    return model


def greedy_picks(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """The most likely token after each prefix: equal to `output` exactly if greedy text is."""
    with torch.inference_mode():
        ids, wanted = torch.tensor([prompt + output]), len(output) + 1
        logits = model(ids, use_cache=False, logits_to_keep=wanted).logits[0, :-1]
    picks: list[int] = logits.argmax(-1).tolist()
    return picks
