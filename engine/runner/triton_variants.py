"""Compiles all Triton kernels that an engine will launch, in a process of its own that needs no GPU.

python -m engine.runner.triton_variants ARGUMENTS_AS_JSON
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.limits import context_limit, resolve_defaults, scheduler_config
from engine.runner.capture import EagerCapture
from engine.runner.compile_ahead import eager_steps
from engine.runner.graph_runner import GraphModelRunner
from kernels.attention.interface import GraphAttentionBackend
from kernels.attention.registry import attention_backend
from kernels.gpu import Gpu
from kernels.late_dynamo import import_dynamo_late
from kernels.triton.variants import Variant, compile_variants, noted_variants
from model.config import ModelConfig
from model.config_reader import read_model_config
from model.decoder import Decoder, attention_shape
from model.source import resolve_model

_LAYERS = 2  # the first and the last: those between launch the same kernels


def variants_of(config: EngineConfig, model: ModelConfig, gpu: Gpu) -> list[Variant]:
    """Those of an engine on one GPU of this kind."""
    meta = torch.device("meta")
    config = resolve_defaults(config, "cuda")
    model = replace(model, num_layers=min(model.num_layers, _LAYERS))
    assert config.block_size and config.max_num_seqs
    with noted_variants(gpu) as variants, torch.inference_mode():
        dtype = getattr(torch, _dtype(config, model))
        shape = attention_shape(model, block_size=config.block_size, dtype=dtype, device=meta)
        decoder = Decoder(model, attention_backend(config.attention_backend, shape), dtype, meta)
        for step in eager_steps(decoder, config.max_num_seqs):
            step()
        if not config.enforce_eager and isinstance(decoder.attention, GraphAttentionBackend):
            num_blocks = max(-(-context_limit(config, model) // config.block_size), 1)
            limits = scheduler_config(config, model, num_blocks)
            decoder.attention.allocate(num_blocks)
            runner = GraphModelRunner(decoder, decoder.attention, limits, frozenset(), 0, EagerCapture())
            runner.capture_all()
    return variants


def _dtype(config: EngineConfig, model: ModelConfig) -> str:
    """As `model.loading.resolve_dtype` for a GPU that has bfloat16."""
    if config.dtype != "auto":
        return config.dtype
    return "float16" if model.dtype == "float16" else "bfloat16"


def main(arguments: dict[str, Any]) -> None:
    gc.disable()
    import_dynamo_late()
    config = EngineConfig(**arguments["config"])
    model = read_model_config(resolve_model(config.model, with_weights=False))
    compile_variants(variants_of(config, model, Gpu(**arguments["gpu"])))
    marker = Path(arguments["marker"])
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
