"""Has flash-attn 4's and quack's kernels compiled while torch is imported and weights are loaded."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.limits import resolve_defaults
from kernels import quack_gated
from kernels.attention.flash_compile import FlashKernel, start_compiling
from model.config import ModelConfig
from model.config_reader import read_model_config
from model.source import ModelSource

_MANY_SEQS = 256  # above that flash-attn 4 has another kernel


def compile_cute_ahead(config: EngineConfig, source: ModelSource) -> int:
    """Start compiling what the engine will call, if that can be told without torch; how many kernels.

    Raises `ModelError` for a model that cannot be served.
    """
    if source.kind == "gguf" or config.device == "cpu" or config.dtype == "float32":
        return 0
    model = read_model_config(source)
    own_dtype = "float16" if model.dtype == "float16" else "bfloat16"
    dtype = own_dtype if config.dtype == "auto" else config.dtype
    started = quack_gated.start_compiling(dtype)  # for ranks too: they find it by locks on disk
    if config.tensor_parallel_size == 1 and config.attention_backend in ("auto", "flash"):
        started += start_compiling(_flash_kernels(config, model, dtype))
    return started


def _flash_kernels(config: EngineConfig, model: ModelConfig, dtype: str) -> list[FlashKernel]:
    config = resolve_defaults(config, "cuda")
    assert config.block_size and config.max_num_seqs
    return [
        FlashKernel(
            num_seqs=num_seqs,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=config.block_size,
            sliding_window=model.sliding_window,
            dtype=dtype,
        )
        for num_seqs in ([1, config.max_num_seqs] if config.max_num_seqs > _MANY_SEQS else [1])
    ]
