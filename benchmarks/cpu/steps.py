"""Where a decode step's time goes in the engine's thread, from the daemon's step log."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.cpu.parts import Bench, through
from benchmarks.server_process import octavo
from engine.record.step_log import StepEntry, read_step_log

PHASES = ("schedule_ns", "launch_ns", "collect_ns", "commit_ns")


def measure_steps(bench: Bench) -> None:
    """The step log costs time itself, so this daemon is one of its own."""
    settings = bench.settings
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        with octavo("--step-log", str(path)) as server:
            for batch in settings.batches:
                prompts = bench.prompts.token_ids(batch, settings.prompt_tokens)
                through(server)(prompts, settings.output_tokens)
        _, steps = read_step_log(path)
    for batch in settings.batches:
        _add_phases(bench, steps, batch)


def _add_phases(bench: Bench, steps: list[StepEntry], batch: int) -> None:
    """Medians over the steps of `batch` decodes whose next step is one too."""
    pairs = [
        (step, after)
        for step, after in pairwise(steps)
        if not any(step.is_prefill) and len(step.sequence_ids) == len(after.sequence_ids) == batch
    ]
    name = f"a step of {batch} decodes"
    wholes = [after.scheduled_at_ns - step.scheduled_at_ns for step, after in pairs]
    bench.results.add(name, "ms", median(wholes) / 1e6)
    for phase in PHASES:
        value = median(getattr(step, phase) for step, _ in pairs)
        bench.results.add(f"{name}: {phase.removesuffix('_ns')}", "ms", value / 1e6)
    rest = [
        whole - sum(getattr(step, phase) for phase in PHASES)
        for whole, (step, _) in zip(wholes, pairs, strict=True)
    ]
    bench.results.add(f"{name}: between steps", "ms", median(rest) / 1e6)
