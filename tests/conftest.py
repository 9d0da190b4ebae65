"""What all tests share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from model.decoder import Decoder
    from model.source import ModelSource

# Before torch starts its threads: test machines share their few cores, and pytest-xdist's workers fill them.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before anything imports triton, as transformers does: without a GPU its kernels run in its interpreter.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

EMBEDDED_BLOCK_SIZE = 16
EMBEDDED_NUM_BLOCKS = 128

# torch is imported inside the fixtures, since many tests do without it.


@pytest.fixture(scope="session")
def embedded_source() -> ModelSource:
    from model.source import resolve_model

    return resolve_model(None)


@pytest.fixture(scope="session")
def embedded_model(embedded_source: ModelSource) -> Decoder:
    """The embedded model in fp32 on the torch attention backend, with a KV pool of 2,048 slots."""
    import torch

    from kernels.attention.torch_backend import TorchAttention
    from model.config_reader import read_model_config
    from model.decoder import attention_shape
    from model.loading import load_model

    config = read_model_config(embedded_source)
    device, dtype = torch.device("cpu"), torch.float32
    shape = attention_shape(config, block_size=EMBEDDED_BLOCK_SIZE, dtype=dtype, device=device)
    attention = TorchAttention(shape)
    attention.allocate(EMBEDDED_NUM_BLOCKS)
    return load_model(embedded_source, config, dtype=dtype, device=device, attention=attention)
