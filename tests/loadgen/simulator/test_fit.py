"""A step log that a known machine would write must give that machine back."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.record import RequestRecord, StepEntry
from loadgen.simulator.cost_fit import _knots
from loadgen.simulator.exertion import Exertion
from loadgen.simulator.fit import fit_profile
from loadgen.simulator.front_end import ClientView
from loadgen.simulator.padding import Padding
from loadgen.simulator.profile import ProfileError, max_step_rows, read_profile, write_profile
from loadgen.simulator.step_model import Curve, RoomCost, StepModel, StepTimer
from loadgen.simulator.step_shape import StepShape, shape_of_entry
from tests.support.simulation import STEP_MODEL, make_profile

LIMITS = make_profile(num_blocks=2000, max_num_seqs=32).limits
SCHEDULE_NS, LAUNCH_NS, COMMIT_NS, LEAD_NS = 20_000, 400_000, 40_000, 150_000

# As STEP_MODEL, but padded, slowed down by prompts, and waiting for the longest context.
PADDED = replace(
    STEP_MODEL,
    decode_only=replace(
        STEP_MODEL.decode_only, slowdown=0.05, longest_context=Curve([4, 16], [2e-7, 1.5e-6])
    ),
    with_chunks=replace(
        STEP_MODEL.with_chunks,
        slowdown=0.1,
        rooms=[RoomCost(0.001, 5e-7), RoomCost(0.003)],
    ),
    padding=Padding(decode_sizes=[1, 4, 8, 16, 32], sizes=[64, 128, 192], decode_rooms=[8, 32]),
)
MACHINES = {1: STEP_MODEL, 2: PADDED}  # by pipeline depth


def header(depth: int) -> dict[str, Any]:
    padding = asdict(MACHINES[depth].padding)
    config = {"limits": asdict(LIMITS), "pipeline_depth": depth, "model": "made-up", "machine": {}}
    return {"config": config | {"padding": padding}, "octavo_version": "0"}


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
    """At depth 1 launching computes; at depth 2 the device is busy for longer, ends meanwhile, or rested."""
    rng = np.random.default_rng(5)
    timer, exertion = StepTimer(MACHINES[depth], max_rows=max_step_rows(LIMITS)), Exertion()
    entries, free_ns = [], 100_000_000
    for step in range(count):
        entry = make_entry(rng, step)
        shape = shape_of_entry(entry)
        launched_ns = free_ns if depth == 1 else free_ns + int(rng.choice([-1_000_000, -100_000, 5_000_000]))
        computing_ns = launched_ns + LAUNCH_NS if depth == 1 else max(launched_ns + LEAD_NS, free_ns)
        before = exertion.before(computing_ns) if depth > 1 else 0.0
        step_ns = int(timer.seconds(shape, before) * rng.normal(1, noise) * 1e9)
        ended_ns = computing_ns + step_ns
        entry.scheduled_at_ns = launched_ns - SCHEDULE_NS
        entry.device_ns = step_ns if depth == 1 else ended_ns - max(launched_ns, free_ns)
        entry.launch_ns = LAUNCH_NS + (step_ns if depth == 1 else 0)
        entry.collected_at_ns = launched_ns + entry.launch_ns
        entry.collect_ns = ended_ns - entry.collected_at_ns
        if shape.num_chunks:
            exertion.add(computing_ns, ended_ns)
        free_ns = ended_ns
        entries.append(entry)
    return entries


def worst_error(fitted: StepModel, true: StepModel) -> float:
    """Over steps with up to 32 decodes and 128 prompt tokens, after a rest and after others."""
    timers = [StepTimer(model, max_rows=max_step_rows(LIMITS)) for model in (true, fitted)]
    shapes = [StepShape(rows, rows * 800, 0, 0, 0, 800) for rows in range(1, 33)]
    shapes += [StepShape(rows, rows * 800, 0, 0, 0, 1400) for rows in range(3, 33)]
    shapes += [StepShape(rows, rows * 800, 2, 100, 60_000, 1400 * bool(rows)) for rows in range(0, 33, 4)]
    exertions = (0.0, 0.8) if true is PADDED else (0.0,)
    pairs = [[timer.seconds(shape, e) for timer in timers] for shape in shapes for e in exertions]
    return max(abs(found / real - 1) for real, found in pairs)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_machine_behind_a_log_is_found(depth: int) -> None:
    profile = fit_profile(header(depth), make_log(depth, noise=0.01), [])
    assert profile.blocking_launch == (depth == 1)
    assert worst_error(profile.step, MACHINES[depth]) < 0.04
    for kind in ("decode_only", "with_chunks"):
        assert profile.fit[kind]["mean_error"] < 0.03
        assert abs(profile.fit[kind]["total_error"]) < 0.01
    host = profile.host
    assert host.schedule.constant == pytest.approx(SCHEDULE_NS / 1e9, rel=0.05)
    assert host.commit.constant == pytest.approx(COMMIT_NS / 1e9, rel=0.05)
    for launch in (host.launch_decodes, host.launch_chunks):
        assert launch.seconds.constant == pytest.approx(LAUNCH_NS / 1e9, rel=0.05)
        assert launch.lead_s == pytest.approx(LEAD_NS / 1e9 if depth == 2 else 0, abs=3e-5)


def test_a_curve_ends_at_the_largest_steps() -> None:
    """Though they may lie closer to the knot before than knots do."""
    assert _knots(np.array([20] * 9 + [23] * 12), []).tolist() == [20, 23]


def test_launches_without_a_graph_cost_more_and_are_told_apart() -> None:
    entries = make_log(2, noise=0)
    for entry in entries:
        if PADDED.padding.is_eager(shape_of_entry(entry)):
            entry.launch_ns *= 10
    host = fit_profile(header(2), entries, []).host
    assert host.launch_eager is not None
    assert host.launch_chunks.seconds.constant == pytest.approx(LAUNCH_NS / 1e9, rel=0.05)
    assert host.launch_eager.seconds.of(20) == pytest.approx(10 * LAUNCH_NS / 1e9, rel=0.05)


def test_the_device_is_not_blamed_for_launches_that_were_held_up() -> None:
    entries = make_log(2, noise=0.02)
    for entry in entries[::50]:
        entry.launch_ns += 60_000_000
        entry.device_ns += 60_000_000
        entry.collected_at_ns += 60_000_000
    step = fit_profile(header(2), entries, []).step
    assert max(*step.decode_only.noise, *step.with_chunks.noise) < 1.1


def test_noise_keeps_the_total_and_repeats_with_its_seed() -> None:
    profile = fit_profile(header(2), make_log(2, noise=0.2), [])
    rows, shape = max_step_rows(LIMITS), StepShape(16, 12_000, 0, 0, 0, 1400)
    exact = StepTimer(PADDED, max_rows=rows).seconds(shape)

    def drawn(seed: int) -> list[float]:
        timer = StepTimer(profile.step, max_rows=rows, noise_seed=seed)
        return [timer.seconds(shape) for _ in range(4000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert np.mean(drawn(1)) == pytest.approx(exact, rel=0.03)
    assert np.std(drawn(1)) / exact == pytest.approx(0.2, rel=0.15)


def test_the_front_end_takes_what_clients_saw_beyond_the_engine() -> None:
    """Sending 0.3 ms, parsing 1 ms and 0.5 us a token, delivering 0.2 ms and 10 us a token of the step."""
    entries = make_log(2, noise=0, count=300)
    records, seen = [], []
    for i, entry in enumerate(entries):
        ready_ns = entry.collected_at_ns + entry.collect_ns
        sent_ns = ready_ns - 50_000_000
        tokens = 100 + 20 * (i % 50)
        arrived_ns = sent_ns + 300_000
        records.append(
            RequestRecord(
                f"cmpl-{i}", arrived_ns=arrived_ns, tokenized_ns=arrived_ns + 1_000_000 + 500 * tokens,
                first_token_ns=ready_ns, num_prompt_tokens=tokens,
            )
        )  # fmt: skip
        seen.append(ClientView(f"cmpl-{i}", sent_ns, ready_ns + 200_000 + 10_000 * entry.num_generated))
    costs = fit_profile(header(2), entries, records, seen).front_end
    assert costs.before.constant == pytest.approx(1.3e-3, rel=0.02)
    assert costs.before.slope == pytest.approx(5e-7, rel=0.02)
    assert costs.delivery.constant == pytest.approx(2e-4, rel=0.02)
    assert costs.delivery.slope == pytest.approx(1e-5, rel=0.02)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = fit_profile(header(2), make_log(2, noise=0.05, count=300), [])
    write_profile(profile, tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == profile


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "octavo.simulator.profile/4"}', None])
def test_a_file_that_is_no_profile_is_named(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ProfileError, match=r"other\.json"):
        read_profile(path)


def test_too_short_a_log_is_refused() -> None:
    with pytest.raises(ProfileError, match="too few"):
        fit_profile(header(2), make_log(2, noise=0, count=10), [])
