"""Where each microsecond of an engine step goes, on the device (by kernel) and on the host (by phase).

    python -m benchmarks.step_profile --model FOLDER --load-format dummy --cases 256x600,96x1100+1024

A case is ROWSxCONTEXT decodes, with "+N" beside a new prompt of N tokens in every step. The engine runs on
this thread, without a front end; the device's times are from a CUDA profile, the host's from steps before it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.step_profile.driver import Case, Driver
from benchmarks.step_profile.kinds import SUMS, kind_of, time_by_kind
from engine.build import build_engine
from engine.config import EngineConfig
from server.cli.progress import StartProgress

_PHASES = ("schedule_ns", "launch_ns", "collect_ns", "commit_ns")


def _kernels_of(profiler: profile, num_steps: int) -> tuple[list[tuple[str, float, float]], float, float]:
    """(name, calls a step, us a step) by time; us of a step in which the device is busy; us of a step."""
    time_of: dict[str, list[float]] = defaultdict(list)
    spans = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            begin, end = event.time_range.start, event.time_range.end
            time_of[event.name].append(end - begin)
            spans.append((begin, end))
    busy, until = 0.0, 0.0
    for begin, end in sorted(spans):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    rows = [(name, len(times) / num_steps, sum(times) / num_steps) for name, times in time_of.items()]
    rows.sort(key=lambda row: -row[2])
    return rows, busy / num_steps, whole / num_steps


@dataclass(frozen=True, slots=True)
class StepProfile:
    """Of a case's steps; times in microseconds."""

    case: Case
    step_us: float  # from the end of one step to the next one's, without a profiler
    host_us: dict[str, float]  # by phase
    kernels: list[tuple[str, float, float]]  # (name, calls a step, us a step), by time
    busy_us: float
    whole_us: float  # of a profiled step

    def communication(self) -> tuple[float, float]:
        """Calls and microseconds a step of the kernels that wait for other ranks."""
        rows = [(calls, us) for name, calls, us in self.kernels if kind_of(name) == SUMS]
        return sum(calls for calls, _ in rows), sum(us for _, us in rows)

    def figures(self) -> dict[str, Any]:
        calls, us = self.communication()
        return {
            "case": str(self.case),
            "step_us": self.step_us,
            "profiled_us": self.whole_us,
            "idle_us": self.whole_us - self.busy_us,
            "kinds_us": time_by_kind(self.kernels),
            "host_us": self.host_us,
            "communication_calls": calls,
            "communication_us": us,
        }


def _measure(case: Case, driver: Driver, num_steps: int) -> StepProfile:
    driver.fill(case)
    driver.run(8, case.prompt)
    driver.run(num_steps, case.prompt)
    steps = driver.logged_steps(num_steps)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        driver.run(num_steps, case.prompt)
    kernels, busy, whole = _kernels_of(profiler, num_steps)
    driver.empty()
    ends = [step.tokens_at_ns for step in steps]
    step_us = statistics.median(after - before for before, after in itertools.pairwise(ends)) / 1e3
    host_us = {
        phase[:-3]: statistics.median(getattr(step, phase) for step in steps) / 1e3 for phase in _PHASES
    }
    return StepProfile(case, step_us, host_us, kernels, busy, whole)


def _report(step: StepProfile) -> str:
    lines = [
        f"\n## {step.case}",
        f"step {step.step_us:,.0f} us; profiled: {step.whole_us:,.0f} us, "
        f"{100 * (1 - step.busy_us / step.whole_us):.1f} % of it idle",
        "host: " + ", ".join(f"{phase} {us:,.0f} us" for phase, us in step.host_us.items()),
        "device: " + ", ".join(f"{kind} {us:,.0f} us" for kind, us in time_by_kind(step.kernels).items()),
    ]
    calls, us = step.communication()
    if calls:
        lines.append(f"with other ranks: {us:,.0f} us a step in {calls:.0f} kernels, waiting included")
    lines += ["", "| kernel | calls a step | us a step | us a call |", "| --- | --- | --- | --- |"]
    for name, calls, us in step.kernels[:22]:
        lines.append(f"| {name[:90].replace('|', '/')} | {calls:.1f} | {us:.1f} | {us / calls:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights (default: auto)")
    parser.add_argument("--cases", default="64x1100,256x600", help="(default: 64x1100,256x600)")
    parser.add_argument("--steps", type=int, default=24, help="of each case (default: 24)")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="(default: 1)")
    parser.add_argument("--all-reduce", default="auto", help="(default: auto)")
    parser.add_argument("--out", type=Path, help="file for the report")
    parser.add_argument("--results", type=Path, help="append a line of JSON to this file for each case")
    parser.add_argument("--label", default="octavo", help="names those lines (default: octavo)")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.INFO)  # where ranks stand
    with TemporaryDirectory() as folder:
        step_log = Path(folder) / "steps.jsonl"
        config = EngineConfig(
            model=arguments.model,
            load_format=arguments.load_format,
            step_log=str(step_log),
            itl_target_ms=0,
            tensor_parallel_size=arguments.tensor_parallel_size,
            all_reduce=arguments.all_reduce,
        )
        engine = build_engine(config, StartProgress())
        driver = Driver(engine, step_log)
        profiles = []
        for case in arguments.cases.split(","):
            profiles.append(_measure(Case.parse(case), driver, arguments.steps))
            print(_report(profiles[-1]), flush=True)
            if arguments.results:
                line = json.dumps({"kind": "step", "label": arguments.label, **profiles[-1].figures()})
                with arguments.results.open("a") as results:
                    results.write(line + "\n")
        engine.shutdown()
    if arguments.out:
        arguments.out.write_text("\n".join(map(_report, profiles)) + "\n")


if __name__ == "__main__":
    main()
