"""Puts an engine together from its configuration: model, KV pool, scheduler, runner, record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch

from engine.config import EngineConfig, SchedulerConfig
from engine.device import resolve_device
from engine.engine import Engine
from engine.limits import resolve_defaults
from engine.parallel.build import build_parallel_runner
from engine.record import EngineCounters, EventLog, RecentRequests, StepLog
from engine.recorder import Recorder
from engine.runner.build import Progress, RunnerSetup, build_runner
from engine.runner.launch import Runner
from engine.scheduler import Scheduler
from model.config_reader import read_model_config
from model.loading import resolve_dtype
from model.source import ModelSource, resolve_model


def build_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    source: ModelSource | None = None,
    eos_token_ids: Iterable[int] = (),
) -> Engine:
    """Load the model and size everything; the engine is not started yet.

    `source` spares resolving `config.model` a second time. `eos_token_ids` are the tokenizer's; those of the
    model's configuration end a sequence too. Raises `ConfigError` or `ModelError` with one line
    to show, before anything is served.
    """
    tell = progress or (lambda phase, done, total: None)
    device = resolve_device(config)
    config = resolve_defaults(config, device.type)
    if source is None:
        tell("finding the model", 0, 0)
        source = resolve_model(config.model, config.revision, with_weights=config.load_format != "dummy")
    model_config = read_model_config(source)
    # A tokenizer may know tokens that its model has no logit for.
    all_eos = frozenset(
        token_id
        for token_id in (*model_config.eos_token_ids, *eos_token_ids)
        if token_id < model_config.vocab_size
    )
    dtype = resolve_dtype(config.dtype, model_config, device)
    setup = RunnerSetup(config, source, model_config, dtype, all_eos)
    if config.tensor_parallel_size == 1:
        runner, limits = build_runner(setup, device, tell)
        recorder = _recorder(config, limits, runner, device, dtype)
        return Engine(config, model_config, Scheduler(limits, all_eos), runner, recorder)
    parallel, limits = build_parallel_runner(setup, device, tell)
    recorder = _recorder(config, limits, parallel, device, dtype)
    return Engine(config, model_config, Scheduler(limits, all_eos), parallel, recorder, parallel)


def _recorder(
    config: EngineConfig,
    limits: SchedulerConfig,
    runner: Runner,
    device: torch.device,
    dtype: torch.dtype,
) -> Recorder:
    """The logs tell what was configured, what the scheduler got of it, and what it ran on."""
    settings: dict[str, Any] = asdict(config)
    settings["limits"] = asdict(limits)
    settings["padding"] = runner.padding
    settings["machine"] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
    }
    return Recorder(
        counters=EngineCounters(),
        recent=RecentRequests(),
        event_log=EventLog(config.event_log, settings) if config.event_log else None,
        step_log=StepLog(config.step_log, settings) if config.step_log else None,
    )
