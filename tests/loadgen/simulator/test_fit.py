"""A step log that a known machine would write must give that machine back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.record import RequestRecord, StepEntry
from loadgen.simulator.fit import fit_profile
from loadgen.simulator.profile import ProfileError, max_step_rows, read_profile, write_profile
from loadgen.simulator.step_model import StepModel, StepTimer
from loadgen.simulator.step_shape import StepShape, shape_of_entry
from tests.support.simulation import STEP_MODEL, make_profile

LIMITS = make_profile(num_blocks=2000, max_num_seqs=32).limits
SCHEDULE_NS, LAUNCH_NS, COMMIT_NS = 20_000, 100_000, 40_000


def header(depth: int) -> dict[str, Any]:
    config = {"limits": asdict(LIMITS), "pipeline_depth": depth, "model": "made-up", "machine": {}}
    return {"config": config, "octavo_version": "0"}


def make_entry(rng: np.random.Generator, step: int) -> StepEntry:
    """A random step: decodes, or a few chunks beside some."""
    chunks = int(rng.integers(1, 4)) if step % 3 == 0 else 0
    decodes = int(rng.integers(0 if chunks else 1, 33))
    starts = rng.integers(0, 1500, decodes + chunks).tolist()
    rows = [1] * decodes + rng.integers(1, 80, chunks).tolist()
    return StepEntry(
        step=step,
        scheduled_at_ns=0,
        num_waiting=0,
        num_running=decodes + chunks,
        num_blocks_used=0,
        num_preempted=0,
        num_scheduled=sum(rows),
        sequence_ids=list(range(decodes + chunks)),
        num_tokens=starts,
        num_cached_tokens=starts,
        num_scheduled_tokens=rows,
        is_prefill=[False] * decodes + [True] * chunks,
        num_generated=decodes,
        schedule_ns=SCHEDULE_NS,
        launch_ns=LAUNCH_NS,
        commit_ns=COMMIT_NS,
    )


def make_log(depth: int, *, noise: float, count: int = 3000) -> list[StepEntry]:
    """Steps back to back: launched one ahead of the device at depth 2, computed by launching at depth 1."""
    rng = np.random.default_rng(5)
    timer = StepTimer(STEP_MODEL, max_rows=max_step_rows(LIMITS))
    entries, now_ns = [], 1_000
    for step in range(count):
        entry = make_entry(rng, step)
        seconds = timer.seconds(shape_of_entry(entry)) * rng.normal(1, noise)
        if depth == 1:
            entry.scheduled_at_ns = now_ns
            entry.device_ns = int(seconds * 1e9)
            entry.launch_ns = LAUNCH_NS + entry.device_ns
            entry.collected_at_ns = now_ns + SCHEDULE_NS + entry.launch_ns
            now_ns = entry.collected_at_ns + COMMIT_NS
        else:
            entry.scheduled_at_ns = now_ns - 1_000_000
            entry.collected_at_ns = now_ns
            entry.device_ns = entry.collect_ns = int(seconds * 1e9)
            now_ns += entry.collect_ns
        entries.append(entry)
    return entries


def worst_error(model: StepModel) -> float:
    """Over steps with up to 32 decodes and 128 prompt tokens, relative to the true machine."""
    true, fitted = (StepTimer(each, max_rows=max_step_rows(LIMITS)) for each in (STEP_MODEL, model))
    shapes = [StepShape(rows, rows * 800, 0, 0, 0) for rows in range(1, 33)]
    shapes += [StepShape(rows, rows * 800, 2, 100, 60_000) for rows in range(0, 33, 4)]
    return max(abs(fitted.seconds(shape) / true.seconds(shape) - 1) for shape in shapes)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_machine_behind_a_log_is_found(depth: int) -> None:
    profile = fit_profile(header(depth), make_log(depth, noise=0.02), [])
    assert profile.blocking_launch == (depth == 1)
    assert worst_error(profile.step) < 0.04
    for kind in ("decode_only", "with_chunks"):
        assert profile.fit[kind]["mean_error"] < 0.03
        assert abs(profile.fit[kind]["total_error"]) < 0.01
    assert profile.host.schedule_s == pytest.approx(SCHEDULE_NS / 1e9, rel=0.05)
    assert profile.host.commit_s == pytest.approx(COMMIT_NS / 1e9, rel=0.05)
    assert profile.host.launch_s == pytest.approx(LAUNCH_NS / 1e9, rel=0.05)


def test_noise_keeps_the_total_and_repeats_with_its_seed() -> None:
    profile = fit_profile(header(2), make_log(2, noise=0.2), [])
    rows, shape = max_step_rows(LIMITS), StepShape(16, 10_000, 0, 0, 0)
    exact = StepTimer(STEP_MODEL, max_rows=rows).seconds(shape)

    def drawn(seed: int) -> list[float]:
        timer = StepTimer(profile.step, max_rows=rows, noise_seed=seed)
        return [timer.seconds(shape) for _ in range(4000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert np.mean(drawn(1)) == pytest.approx(exact, rel=0.03)
    assert np.std(drawn(1)) / exact == pytest.approx(0.2, rel=0.15)


def test_the_front_end_takes_what_clients_saw_beyond_the_engine() -> None:
    records = [
        RequestRecord(
            str(i), arrived_ns=1, tokenized_ns=1 + 1_000_000 + 500 * tokens, first_token_ns=50_000_001,
            num_prompt_tokens=tokens,
        )
        for i, tokens in enumerate(range(100, 1100, 20))
    ]  # fmt: skip
    costs = fit_profile(header(2), make_log(2, noise=0, count=300), records, [0.0523] * 50).front_end
    assert costs.before_s == pytest.approx(1e-3, rel=0.02)
    assert costs.before_per_token_s == pytest.approx(5e-7, rel=0.02)
    assert costs.delivery_s == pytest.approx(2.3e-3, rel=0.02)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = fit_profile(header(2), make_log(2, noise=0.05, count=300), [])
    write_profile(profile, tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == profile


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "octavo.simulator.profile/1"}', None])
def test_a_file_that_is_no_profile_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProfileError, match=r"other\.json"):
        read_profile(path)


def test_too_short_a_log_is_refused() -> None:
    with pytest.raises(ProfileError, match="too few"):
        fit_profile(header(2), make_log(2, noise=0, count=10), [])
