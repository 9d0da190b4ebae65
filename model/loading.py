"""Make a decoder and fill it: from safetensors, from GGUF, or with dummy weights."""

from __future__ import annotations

from typing import Literal

import torch

from kernels.attention.interface import AttentionBackend
from model.config import ModelConfig, ModelError
from model.decoder import Decoder
from model.parallel import TensorParallel
from model.source import ModelSource
from model.weights.checkpoint import Checkpoint, Progress, fill_decoder
from model.weights.dummy import fill_with_dummy_weights
from model.weights.gguf_checkpoint import GgufCheckpoint
from model.weights.gguf_file import GgufFile
from model.weights.half import check_half_weights, halve_weights
from model.weights.safetensors_checkpoint import SafetensorsCheckpoint

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
WeightDtype = Literal["auto", "float16"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_model(
    source: ModelSource,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attention: AttentionBackend,
    load_format: LoadFormat = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    tp: TensorParallel | None = None,
    weight_dtype: WeightDtype = "auto",
) -> Decoder:
    """A decoder on `device` with its weights in `dtype`; with `tp`, this rank's part of it.

    `seed` is that of dummy weights. With `weight_dtype` "float16", linear layers hold their weights in half
    precision. Raises ModelError with one line that names the file and the tensor, or the flag.
    """
    if weight_dtype == "float16":
        check_half_weights(dtype, device)
    decoder = Decoder(config, attention, dtype, device, tp)
    if load_format == "dummy":
        fill_with_dummy_weights(decoder, seed, progress)
    else:
        fill_decoder(decoder, _open_checkpoint(source, config, load_format), progress)
    if weight_dtype == "float16":
        halve_weights(decoder, progress)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # up to a gigabyte of temporaries, which the KV pool can use
    return decoder


def _open_checkpoint(source: ModelSource, config: ModelConfig, load_format: LoadFormat) -> Checkpoint:
    stored = "gguf" if source.kind == "gguf" else "safetensors"
    if load_format not in ("auto", stored):
        raise ModelError(
            f"{source.path}: --load-format {load_format} does not fit a model stored as {stored}"
        )
    if stored == "gguf":
        return GgufCheckpoint(GgufFile(source.path), config)
    return SafetensorsCheckpoint(source.path)


def resolve_dtype(dtype: str, config: ModelConfig, device: torch.device) -> torch.dtype:
    """The compute type for `--dtype`.

    `auto` on a GPU is the checkpoint's own 16-bit type, bfloat16 for checkpoints in any other type, and
    float16 on GPUs without bfloat16. `auto` on a CPU is bfloat16 where the cores compute in it, and fp32
    elsewhere, since emulated bfloat16 is several times slower.
    """
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ModelError(f"--dtype {dtype} is none of auto, {', '.join(DTYPES)}")
        return DTYPES[dtype]
    if device.type == "cpu":
        return torch.bfloat16 if _cpu_computes_in_bfloat16() else torch.float32
    if config.dtype == "float16" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def _cpu_computes_in_bfloat16() -> bool:
    # Private names of torch: a version without them gets fp32, which is slower but right.
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)
