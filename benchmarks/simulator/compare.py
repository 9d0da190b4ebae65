"""The offline half: simulate the schedule of each live window and set the figures side by side."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from engine.record.event_log import read_event_log
from engine.record.step_log import read_step_log
from loadgen.figures.summary import summarize
from loadgen.record import Run, RunError, read_run
from loadgen.record.reader import read_schedule
from loadgen.simulator.calibrate import fit_logs, read_phases, render_fit
from loadgen.simulator.parity import check_parity
from loadgen.simulator.profile import Profile, read_profile
from loadgen.simulator.results import result_of
from loadgen.simulator.setting import Setting, simulate

# Figure: (section, row, column), goal as a share.
FIGURES = {
    "TTFT p50": ("latency_ms", "ttft_from_due", "p50", 0.05),
    "TTFT p90": ("latency_ms", "ttft_from_due", "p90", 0.08),
    "TTFT p99": ("latency_ms", "ttft_from_due", "p99", 0.12),
    "TPOT mean": ("latency_ms", "tpot", "mean", 0.03),
    "TPOT p50": ("latency_ms", "tpot", "p50", 0.03),
    "ITL p99": ("latency_ms", "inter_token", "p99", 0.08),
    "E2E p50": ("latency_ms", "e2e_from_due", "p50", 0.03),
}


def compare(folder: Path, profile_path: Path | None, *, refit: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="simulator-") as name:
        work = Path(name)
        for log in ("steps.jsonl", "events.jsonl"):
            with lzma.open(folder / f"{log}.xz") as source, (work / log).open("wb") as target:
                shutil.copyfileobj(source, target)
        with tarfile.open(folder / "windows.tar.xz") as archive:
            archive.extractall(work, filter="data")
        profile = read_profile(profile_path or folder / "profile.json")
        if refit:
            phases = read_phases(folder / "phases.json")
            profile = fit_logs(work / "steps.jsonl", work / "events.jsonl", phases)
        print(render_fit(profile))
        _tell_parity(work)
        _tell_windows(profile, work / "windows")


def _tell_parity(work: Path) -> None:
    header, entries = read_step_log(work / "steps.jsonl")
    _, records = read_event_log(work / "events.jsonl")
    parity = check_parity(header, entries, records)
    print(f"parity: {parity.num_equal} of {parity.num_steps} steps ({parity.share:.2%})")
    if parity.first_difference:
        print(f"  first difference: {parity.first_difference}")


def _tell_windows(profile: Profile, folder: Path) -> None:
    """A table for each load; with several runs of one, live figures are means and the spread is told."""
    by_load: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = defaultdict(list)
    for directory in sorted(folder.iterdir()):
        try:
            live = read_run(directory)
        except RunError as error:
            print(f"left out: {error}")
            continue
        figures = _figures(live), _figures(_simulated(profile, live, directory))
        by_load[directory.name.split("-")[1]].append(figures)
    for load, runs in by_load.items():
        print(f"\nload {load} of capacity, {len(runs)} live runs\n")
        print("| figure | live | simulated | error | live spread | goal |")
        print("| --- | --- | --- | --- | --- | --- |")
        for name in runs[0][0]:
            live_values = np.array([live[name] for live, _ in runs])
            errors = np.array([simulated[name] / live[name] - 1 for live, simulated in runs])
            spread = np.ptp(live_values) / live_values.mean() if len(runs) > 1 else None
            simulated = np.mean([simulated[name] for _, simulated in runs])
            print(
                f"| {name} | {live_values.mean():.4g} | {simulated:.4g} | {errors.mean():+.1%} | "
                f"{'-' if spread is None else f'{spread:.1%}'} | {_goal(name):.0%} |"
            )


def _goal(name: str) -> float:
    return FIGURES[name][3] if name in FIGURES else 0.02


def _figures(run: Run) -> dict[str, float]:
    summary: dict[str, Any] = summarize(run)
    figures = {name: summary[section][row][column] for name, (section, row, column, _) in FIGURES.items()}
    return figures | {"output tokens/s": summary["tokens"]["output_per_s"]}


def _simulated(profile: Profile, live: Run, directory: Path) -> Run:
    """The same schedule, simulated."""
    delivery_ns = int(profile.front_end.delivery_s * 1e9)
    results = []
    block_size = live.env["load"]["block_size"]
    simulate(
        profile,
        Setting(),
        read_schedule(directory).requests,
        block_size,
        lambda outcome: results.append(result_of(outcome, delivery_ns)),
    )
    results.sort(key=lambda result: result.index)
    return Run("simulated", live.env, results, live.ends)
