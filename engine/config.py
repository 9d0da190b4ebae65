"""The engine's part of the configuration: immutable once built, validated with errors that name the flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

SchedulingPolicy = Literal["fcfs", "prefill-first", "priority"]
AllReduce = Literal["auto", "nccl", "one-shot"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
WeightDtype = Literal["auto", "float16"]


class ConfigError(ValueError):
    """A configuration that cannot work. The message is one line and names the flag."""


def flag(
    default: Any,
    help_text: str,
    group: str,
    choices: tuple[str, ...] | None = None,
    short: str | None = None,
) -> Any:
    """A dataclass field that is also a command-line flag and a YAML key of the same name.

    `short` is another spelling of the flag.
    """
    metadata = {"help": help_text, "group": group, "choices": choices, "short": short}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What runs, on what, and how much of it at once. None means "from the model and the machine"."""

    model: str | None = flag(
        None, "model folder, GGUF file or hub name; the embedded SmolLM2 when absent", "model"
    )
    tokenizer: str | None = flag(None, "tokenizer folder or file, when not beside the model", "model")
    revision: str | None = flag(None, "hub revision of the model", "model")
    load_format: LoadFormat = flag(
        "auto",
        "where weights come from; dummy makes seeded random ones",
        "model",
        ("auto", "safetensors", "gguf", "dummy"),
    )
    dtype: str = flag(
        "auto",
        "compute type; auto is the model's own on a GPU, bf16 on CPUs that have it, else fp32",
        "model",
        ("auto", "bfloat16", "float16", "float32"),
    )
    weight_dtype: WeightDtype = flag(
        "auto",
        "type of the linear layers' weights; auto is the compute type; float16 makes decodes of several "
        "sequences on CPUs without bf16 about twice as fast, and moves logits by about 0.1 %",
        "model",
        ("auto", "float16"),
    )
    max_model_len: int | None = flag(None, "longest prompt plus output, in tokens", "model")
    seed: int = flag(0, "seed of dummy weights and of requests that bring none", "model")
    device: str = flag(
        "auto", "cuda, cpu, or auto: cuda where there is one", "engine", ("auto", "cuda", "cpu")
    )
    max_num_seqs: int | None = flag(
        None, "sequences that run at once (512 on a GPU, 64 on a CPU)", "scheduling"
    )
    max_num_batched_tokens: int | None = flag(
        None, "token budget of one step (8192 on a GPU, 512 on a CPU)", "scheduling"
    )
    scheduling_policy: SchedulingPolicy = flag(
        "fcfs", "order of admission", "scheduling", ("fcfs", "prefill-first", "priority")
    )
    itl_target_ms: float | None = flag(
        None,
        "bound on a step that decodes while prompts come, in ms; 0 for none (23 on a GPU, 250 on a CPU)",
        "scheduling",
    )
    max_queue: int = flag(2048, "requests that may wait; more are answered 429", "scheduling")
    pipeline_depth: int | None = flag(
        None, "steps in flight: 2 overlaps host and device work (default on a GPU), 1 does not", "scheduling"
    )
    block_size: int | None = flag(None, "tokens in a KV block (128 on a GPU, 16 on a CPU)", "kv cache")
    num_kv_blocks: int | None = flag(None, "size of the KV pool in blocks, instead of measuring", "kv cache")
    kv_cache_bytes: int = flag(384 * 2**20, "KV pool on a CPU, in bytes", "kv cache")
    gpu_memory_utilization: float = flag(0.9, "share of the GPU's memory that Octavo may fill", "kv cache")
    enable_prefix_caching: bool = flag(True, "reuse the KV of prompts that begin alike", "kv cache")
    attention_backend: str = flag("auto", "attention kernels", "engine", ("auto", "flash", "triton", "torch"))
    tensor_parallel_size: int = flag(1, "GPUs that share each layer", "engine", short="-tp")
    all_reduce: AllReduce = flag(
        "auto",
        "how they add up: NCCL alone, or mostly by kernels over peer memory (auto: if that works)",
        "engine",
        ("auto", "nccl", "one-shot"),
    )
    enforce_eager: bool = flag(False, "no CUDA graphs and no compilation", "engine")
    stall_timeout: float = flag(
        30.0, "seconds without a step before /health calls the engine stalled", "engine"
    )
    event_log: str | None = flag(None, "file for one JSON line per finished request", "record")
    step_log: str | None = flag(None, "file for one JSON line per engine step", "record")
    check_invariants: bool = flag(False, "check the block manager after every step (slow)", "debug")

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_kv_blocks"):
            value = getattr(self, name)
            self._require(name, value is None or value > 0, "must be above 0")
        fits_one = self.max_model_len is None or self.max_model_len > 1
        self._require("max_model_len", fits_one, "must be at least 2: a token of a prompt, and one after it")
        budget = self.max_num_batched_tokens
        has_token_each = budget is None or self.max_num_seqs is None or budget >= self.max_num_seqs
        self._require(
            "max_num_batched_tokens", has_token_each, "must be at least --max-num-seqs: one token each"
        )
        self._require("max_queue", self.max_queue > 0, "must be above 0")
        self._require("itl_target_ms", not (self.itl_target_ms or 0) < 0, "must be 0 or more")
        self._require("pipeline_depth", self.pipeline_depth in (None, 1, 2), "must be 1 or 2")
        self._require("kv_cache_bytes", self.kv_cache_bytes > 0, "must be above 0")
        self._require("gpu_memory_utilization", 0 < self.gpu_memory_utilization <= 1, "must be in (0, 1]")
        self._require("tensor_parallel_size", self.tensor_parallel_size >= 1, "must be 1 or more")
        self._require("stall_timeout", self.stall_timeout > 0, "must be above 0")

    @staticmethod
    def _require(name: str, condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(f"--{name.replace('_', '-')} {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler needs, resolved. The simulator builds it too, so it knows nothing of models."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    policy: SchedulingPolicy = "fcfs"
    itl_target_s: float = 0.0  # 0: steps are bounded by max_num_batched_tokens alone
    enable_prefix_caching: bool = True
    row_sizes: list[int] = field(default_factory=list)  # what rows are padded to beside prompts, ascending
