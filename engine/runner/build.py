"""From a model's files to a runner, sized and warmed up; on several ranks, each does this for its part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine.config import ConfigError, EngineConfig, SchedulerConfig
from engine.device import cpu_pool_blocks, gpu_pool_blocks
from engine.limits import scheduler_config
from engine.runner.capture import CudaGraphCapture
from engine.runner.compile_ahead import begin_with_triton, compile_kernels
from engine.runner.graph_runner import GraphModelRunner
from engine.runner.model_runner import ModelRunner
from engine.runner.triton_ahead import wait_for_triton
from engine.warm_up import OUTPUT_TOKENS, warm_up, warm_up_blocks
from kernels.attention.interface import GraphAttentionBackend, kv_bytes_per_block
from kernels.attention.registry import attention_backend
from model.config import ModelConfig
from model.decoder import Decoder, attention_shape
from model.loading import load_model
from model.parallel import TensorParallel, on_its_own
from model.source import ModelSource

Progress = Callable[[str, int, int], None]
"""(phase, done, total); total 0 where there is nothing to count."""


@dataclass(frozen=True, slots=True)
class RunnerSetup:
    """What a runner is made from: the same on every rank."""

    config: EngineConfig  # with its defaults resolved
    source: ModelSource
    model_config: ModelConfig
    dtype: torch.dtype
    eos_token_ids: frozenset[int]


def build_runner(
    setup: RunnerSetup,
    device: torch.device,
    tell: Progress,
    tp: TensorParallel | None = None,
    loaded: Callable[[], None] = lambda: None,
) -> tuple[ModelRunner, SchedulerConfig]:
    """The runner and the limits of what it can run.

    With `tp`, all ranks call this alike: from the call of `loaded` on they compute together. Raises
    `ConfigError` or `ModelError`.
    """
    tp = tp or TensorParallel()
    config, model_config = setup.config, setup.model_config
    if device.type == "cuda":
        begin_with_triton()
    decoder = _load(setup, device, tell, tp)
    loaded()
    if device.type == "cuda":
        tell("compiling kernels", 0, 0)
        assert config.max_num_seqs
        wait_for_triton()
        with on_its_own(decoder):  # side by side, ranks would get out of step
            compile_kernels(decoder, config.max_num_seqs)
    tell("sizing the KV pool", 0, 0)
    num_blocks = tp.minimum(_pool_blocks(config, model_config, decoder))
    limits = scheduler_config(config, model_config, num_blocks)
    decoder.attention.allocate(limits.num_blocks)
    runner = _runner(setup, limits, decoder, tell)
    tell("warming up", 0, 0)
    num_tokens = max(1, min(32, limits.max_model_len - OUTPUT_TOKENS))
    # On a GPU each has kernels of its own to load.
    for temperature in (0.0, 1.0) if device.type == "cuda" else (1.0,):
        warm_up(runner, limits, num_seqs=1, num_tokens=num_tokens, temperature=temperature)
    return runner, replace(limits, row_sizes=runner.padding.get("sizes", []))


def _load(setup: RunnerSetup, device: torch.device, tell: Progress, tp: TensorParallel) -> Decoder:
    config = setup.config
    assert config.block_size is not None
    shape = attention_shape(
        setup.model_config, block_size=config.block_size, dtype=setup.dtype, device=device, tp=tp
    )
    try:
        attention = attention_backend(config.attention_backend, shape)
    except ValueError as error:
        raise ConfigError(f"--attention-backend: {error}") from None
    return load_model(
        setup.source,
        setup.model_config,
        dtype=setup.dtype,
        device=device,
        load_format=config.load_format,
        seed=config.seed,
        attention=attention,
        progress=tell,
        tp=tp,
        weight_dtype=config.weight_dtype,
    )


def _runner(setup: RunnerSetup, limits: SchedulerConfig, decoder: Decoder, tell: Progress) -> ModelRunner:
    """Decodes are captured in CUDA graphs where the device and the attention backend have them."""
    attention, seed = decoder.attention, setup.config.seed
    device = attention.shape.device
    captures = device.type == "cuda" and isinstance(attention, GraphAttentionBackend)
    if setup.config.enforce_eager or not captures:
        return ModelRunner(decoder, attention, limits, setup.eos_token_ids, seed)
    tell("capturing CUDA graphs", 0, 0)
    capture = CudaGraphCapture(device, decoder.shortened)
    runner = GraphModelRunner(decoder, attention, limits, setup.eos_token_ids, seed, capture)
    runner.capture_all(lambda done, total: tell("capturing CUDA graphs", done, total))
    return runner


def _pool_blocks(config: EngineConfig, model_config: ModelConfig, decoder: Decoder) -> int:
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks
    shape = decoder.attention.shape
    if shape.device.type == "cpu":
        return cpu_pool_blocks(config, shape)
    return gpu_pool_blocks(config, shape, _peak_bytes_of_a_step(config, model_config, decoder))


def _peak_bytes_of_a_step(config: EngineConfig, model_config: ModelConfig, decoder: Decoder) -> int:
    """What torch held at most, KV blocks aside, while the largest step ran: full budget, all rows sampled."""
    assert config.block_size and config.max_num_seqs and config.max_num_batched_tokens
    num_seqs = config.max_num_seqs
    num_tokens = max(config.max_num_batched_tokens // num_seqs, 1)
    blocks = warm_up_blocks(num_seqs, num_tokens, config.block_size)
    limits: SchedulerConfig = scheduler_config(config, model_config, max(blocks, _context_blocks(config)))
    device = decoder.attention.shape.device
    decoder.attention.allocate(blocks)
    runner = ModelRunner(decoder, decoder.attention, limits, frozenset(), config.seed)
    torch.cuda.reset_peak_memory_stats(device)
    warm_up(runner, limits, num_seqs=num_seqs, num_tokens=num_tokens)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - blocks * kv_bytes_per_block(decoder.attention.shape)
    decoder.attention.allocate(0)
    torch.cuda.empty_cache()
    return peak


def _context_blocks(config: EngineConfig) -> int:
    assert config.block_size is not None
    return -(-(config.max_model_len or 1) // config.block_size)
