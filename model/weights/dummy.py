"""Seeded random weights for any configuration: speed and shapes can be tried without a checkpoint."""

from __future__ import annotations

import math

import torch

from model.config import ModelConfig
from model.decoder import Decoder
from model.weights.checkpoint import LOADING_PHASE, Progress


def fill_with_dummy_weights(decoder: Decoder, seed: int, progress: Progress | None = None) -> None:
    """Fill every parameter: norms with 1, all else uniformly about 0 with the deviation that the model's
    configuration names, made on the decoder's own device.

    A seed gives the same model on one kind of device, however many ranks share it: each rank draws whole
    tensors in the same order and keeps its slice.
    """
    place = next(decoder.parameters())
    generator = torch.Generator(place.device).manual_seed(seed)
    bound = decoder.config.initializer_range * math.sqrt(3)  # of a uniform distribution
    names = sorted(decoder.checkpoint_names())
    for done, name in enumerate(names, 1):
        tensor = torch.empty(tensor_shape(name, decoder.config), dtype=place.dtype, device=place.device)
        if name.endswith("norm.weight"):
            tensor.fill_(1)
        else:
            tensor.uniform_(-bound, bound, generator=generator)
        decoder.load_weight(name, tensor)
        if progress is not None:
            progress(LOADING_PHASE, done, len(names))


def tensor_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """Shape of the whole tensor of this Hugging Face name."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        "q_proj": (q_rows, hidden),
        "k_proj": (kv_rows, hidden),
        "v_proj": (kv_rows, hidden),
        "o_proj": (hidden, q_rows),
        "gate_proj": (intermediate, hidden),
        "up_proj": (intermediate, hidden),
        "down_proj": (hidden, intermediate),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
    }
    module, kind = name.split(".")[-2:]
    shape = shapes.get(module, (hidden,))  # the layers' norms
    return shape[:1] if kind == "bias" else shape
