"""Decoders loaded from files by the product's own path."""

from __future__ import annotations

from typing import Any

import torch

from kernels.attention.torch_backend import TorchAttention
from model.config_reader import read_model_config
from model.decoder import Decoder, attention_shape
from model.loading import load_model
from model.parallel import TensorParallel
from model.source import ModelSource
from tests.support.decoders import CPU, Stepper

NUM_BLOCKS = 32


def load_source(
    source: ModelSource, dtype: torch.dtype = torch.float32, tp: TensorParallel | None = None, **options: Any
) -> Decoder:
    """`options` go to `load_model`."""
    config = read_model_config(source)
    attention = TorchAttention(attention_shape(config, block_size=4, dtype=dtype, device=CPU, tp=tp))
    attention.allocate(NUM_BLOCKS)
    return load_model(source, config, dtype=dtype, device=CPU, attention=attention, tp=tp, **options)


def decoder_logits(decoder: Decoder, token_ids: list[int]) -> torch.Tensor:
    """Logits [T, vocab_size] of all rows of one prompt."""
    return Stepper(decoder, NUM_BLOCKS).step({0: token_ids})[0]
