"""A model folder for `--load-format dummy` that a CPU computes in a millisecond a token."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,  # with the usual 0.02 so narrow a model hardly looks at its context
    "eos_token_id": 0,
    "torch_dtype": "float32",
}


def write_tiny_model(folder: Path) -> None:
    """config.json and a tokenizer of the 256 bytes behind an EOS."""
    vocabulary = {"<eos>": 0}
    for token in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
