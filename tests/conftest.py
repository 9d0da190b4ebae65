"""What all tests share. Set before torch starts its threads: test machines share their few cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

from kernels.attention.torch_backend import TorchAttention
from model.config_reader import read_model_config
from model.decoder import Decoder, attention_shape
from model.loading import load_model
from model.source import ModelSource, resolve_model

EMBEDDED_BLOCK_SIZE = 16
EMBEDDED_NUM_BLOCKS = 128


@pytest.fixture(scope="session")
def embedded_source() -> ModelSource:
    return resolve_model(None)


@pytest.fixture(scope="session")
def embedded_model(embedded_source: ModelSource) -> Decoder:
    """The embedded model in fp32 on the torch attention backend, with a KV pool of 2,048 slots."""
    config = read_model_config(embedded_source)
    device, dtype = torch.device("cpu"), torch.float32
    shape = attention_shape(config, block_size=EMBEDDED_BLOCK_SIZE, dtype=dtype, device=device)
    attention = TorchAttention(shape)
    attention.allocate(EMBEDDED_NUM_BLOCKS)
    return load_model(embedded_source, config, dtype=dtype, device=device, attention=attention)
