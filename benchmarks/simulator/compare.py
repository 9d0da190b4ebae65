"""The offline half: simulate the schedule of each live window and set the figures side by side."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.simulator.archive import unpack
from benchmarks.simulator.capacity import completion_rate
from benchmarks.simulator.live import LOGS
from engine.record.event_log import read_event_log
from engine.record.step_log import read_step_log
from loadgen.figures.summary import summarize
from loadgen.record import Run, RunError, read_run
from loadgen.record.writer import prepare_directory
from loadgen.simulator.calibrate import fit_logs, read_phases, render_fit
from loadgen.simulator.parity import check_parity
from loadgen.simulator.profile import Profile, read_profile
from loadgen.simulator.results import write_run
from loadgen.simulator.setting import Setting
from loadgen.simulator.traffic import traffic_of_run

# Figure: (section, row, column), goal as a share.
FIGURES = {
    "TTFT p50": ("latency_ms", "ttft_from_due", "p50", 0.05),
    "TTFT p90": ("latency_ms", "ttft_from_due", "p90", 0.08),
    "TTFT p99": ("latency_ms", "ttft_from_due", "p99", 0.12),
    "TPOT mean": ("latency_ms", "tpot", "mean", 0.03),
    "TPOT p50": ("latency_ms", "tpot", "p50", 0.03),
    "ITL p99": ("latency_ms", "inter_token", "p99", 0.08),
    "E2E p50": ("latency_ms", "e2e_from_due", "p50", 0.03),
    "output tokens/s": ("tokens", None, "output_per_s", 0.02),
}
CAPACITY = "completions/s"
CAPACITY_GOAL = 0.05
Pair = tuple[dict[str, float], dict[str, float]]  # figures of a live run, and of its simulation


def compare(folder: Path, profile_path: Path | None, *, refit: bool, keep: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="simulator-") if keep is None else nullcontext(keep) as name:
        work = Path(name)
        unpack(folder, work, LOGS)
        if refit:
            profile = fit_logs(work / LOGS[0], work / LOGS[1], read_phases(work / "phases.json"))
        else:
            profile = read_profile(profile_path or work / "profile.json")
        print(render_fit(profile))
        _tell_parity(work)
        _tell_runs(profile, work)


def _tell_parity(work: Path) -> None:
    header, entries = read_step_log(work / LOGS[0])
    _, records = read_event_log(work / LOGS[1])
    parity = check_parity(header, entries, records)
    print(f"parity: {parity.num_equal} of {parity.num_steps} steps ({parity.share:.2%})")
    if parity.first_difference:
        print(f"  first difference: {parity.first_difference}")


def _tell_runs(profile: Profile, work: Path) -> None:
    """A table for each load; with several runs of one, live figures are means and the spread is told."""
    by_load: dict[str, list[Pair]] = defaultdict(list)
    for directory in sorted([*(work / "windows").glob("*"), *(work / "replays").glob("*")]):
        load, _, repeat = directory.name.rpartition("-")
        try:
            by_load[load].append(_pair(profile, directory, work / "simulated" / directory.name, int(repeat)))
        except RunError as error:
            print(f"left out: {error}")
    for load, runs in by_load.items():
        print(f"\nload {load}, {len(runs)} live runs\n")
        print("| figure | live | simulated | error | live spread | goal | met |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for name in runs[0][0]:
            print(_row(name, runs))


def _pair(profile: Profile, directory: Path, simulated: Path, seed: int) -> Pair:
    live = read_run(directory)
    setting, traffic = Setting(noise_seed=seed), traffic_of_run(directory)
    write_run(prepare_directory(simulated), profile, setting, traffic, live.env["objectives"])
    return _figures(live), _figures(read_run(simulated))


def _figures(run: Run) -> dict[str, float]:
    summary: dict[str, Any] = summarize(run)
    figures = {}
    for name, (section, row, column, _) in FIGURES.items():
        figures[name] = (summary[section][row] if row else summary[section])[column]
    return figures | {CAPACITY: completion_rate(result.end_ns for result in run.results)}


def _row(name: str, runs: list[Pair]) -> str:
    """An error is met within its goal, or where the live runs among themselves differ by as much."""
    live = np.array([live[name] for live, _ in runs])
    simulated = np.array([simulated[name] for _, simulated in runs])
    error = simulated.mean() / live.mean() - 1
    spread = np.ptp(live) / live.mean()
    goal = FIGURES[name][3] if name in FIGURES else CAPACITY_GOAL
    met = "yes" if abs(error) <= goal else "within spread" if abs(error) <= spread else "no"
    told_spread = f"{spread:.1%}" if len(runs) > 1 else "-"
    return (
        f"| {name} | {live.mean():.4g} | {simulated.mean():.4g} | {error:+.1%} | {told_spread} | "
        f"{goal:.0%} | {met} |"
    )
