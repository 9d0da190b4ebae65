"""Where a step's host time goes on a GPU: computing, waiting for the driver or for the interpreter's lock.

    python -m benchmarks.host_step.on_device --model FOLDER --load-format dummy --out DIR

Cases are those of `benchmarks.step_profile`. Each is measured in several surroundings: the device idle when a
step is launched; a step always queued; and, with a step queued, a second thread that is as busy as an event
loop that never stops delivering, at several switch intervals. First whole steps by the engine loop's own
clock, as in a step log: planning, launching and settling. Then each part, by the wall and by the CPU time of
the engine's thread, which costs the parts around it some time too. What a step costs with the device idle is
computing. What comes with the queue is the driver's. What comes with the thread, in wall time without CPU
time, is waiting for the lock.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.step_profile.driver import Case, Driver
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.record import StepEntry
from engine.runner import step_buffers, step_launch
from server.cli.process import SWITCH_INTERVAL_S
from server.cli.progress import StartProgress

_WHOLE = ("schedule", "launch", "commit")  # of a step log's entry
_PARTS = (
    *("schedule", "launch", "events", "updates", "pack", "forward", "sample", "send"),
    *("collect", "commit", "publish", "turn"),
)
_MIXED_STEPS = 40
_WARM_UP_STEPS = 6


class StepEntries:
    """A step log in memory."""

    def __init__(self) -> None:
        self.entries: list[StepEntry] = []
        self.write = self.entries.append

    def figures(self) -> dict[str, dict[str, float]]:
        """Wall time by phase, and of all together."""
        times = {phase: [getattr(entry, f"{phase}_ns") / 1e3 for entry in self.entries] for phase in _WHOLE}
        times["whole"] = [sum(step) for step in zip(*times.values(), strict=True)]
        return {
            name: {
                "wall_p5_us": _percentile(us, 5),
                "wall_us": statistics.median(us),
                "wall_p90_us": _percentile(us, 90),
            }
            for name, us in times.items()
        }


class PartTimes:
    """Microseconds of wall and of CPU time by part, for each call while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.of: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not self.on:
                return function(*arguments, **keywords)
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return function(*arguments, **keywords)
            finally:
                cpu_us = (time.thread_time_ns() - cpu) / 1e3
                self.of[part].append(((time.perf_counter_ns() - wall) / 1e3, cpu_us))

        return call

    def watch(self, part: str, owner: Any, name: str) -> None:
        setattr(owner, name, self.timed(part, getattr(owner, name)))

    def watch_graphs(self, graphs: dict[Any, Any]) -> None:
        """Decode graphs, or mixed ones, in place."""
        for key, graph in graphs.items():
            graphs[key] = dataclasses.replace(graph, forward=self.timed("forward", graph.forward))
            for wants, draw in getattr(graph, "draws", {}).items():
                graph.draws[wants] = dataclasses.replace(draw, replay=self.timed("sample", draw.replay))


def watch(engine: Engine) -> PartTimes:
    """Parts overlap: launch holds those from events to send, but for the event of collect."""
    times, runner, scheduler = PartTimes(), engine._loop._runner, engine._scheduler
    times.watch("schedule", scheduler, "schedule")
    times.watch("commit", scheduler, "commit")
    times.watch("launch", runner, "launch")
    times.watch("events", step_buffers.CudaStepBuffers, "begin")
    times.watch("events", step_buffers.CudaStepBuffers, "end")
    times.watch("send", step_launch.StepLaunch, "_send")
    times.watch("collect", step_launch.StepLaunch, "collect")
    engine._loop.on_step.append(lambda output: None)
    times.watch("publish", engine._loop, "_publish")
    times.watch("turn", engine._loop, "turn")
    if hasattr(runner, "_graphs"):
        times.watch("updates", runner._rows.fields, "send")
        times.watch("pack", runner._mixed_graphs, "_pack")
        times.watch_graphs(runner._graphs)
        times.watch_graphs(runner._mixed_graphs._graphs)
    return times


@contextmanager
def busy_thread(switch_interval_s: float) -> Iterator[None]:
    """Some microseconds of Python, a system call, and again: what an event loop does for each token."""
    stopped, before = False, sys.getswitchinterval()

    def deliver() -> None:
        with Path(os.devnull).open("wb", buffering=0) as null:
            while not stopped:
                text = "".join(map(str, range(40)))
                null.write(b"data: " + text.encode() + b"\n\n")

    thread = threading.Thread(target=deliver, daemon=True)
    sys.setswitchinterval(switch_interval_s)
    thread.start()
    try:
        yield
    finally:
        stopped = True
        thread.join()
        sys.setswitchinterval(before)


@contextmanager
def nothing_else() -> Iterator[None]:
    yield


def surroundings() -> Iterator[tuple[str, bool, Any]]:
    """(name, whether the device is idle at each launch, context)"""
    yield "device idle", True, nothing_else()
    yield "step queued", False, nothing_else()
    for interval_s in (SWITCH_INTERVAL_S, SWITCH_INTERVAL_S / 5, SWITCH_INTERVAL_S / 20):
        yield f"and a busy thread, {interval_s * 1e6:.0f} us", False, busy_thread(interval_s)


def run_steps(driver: Driver, case: Case, num_steps: int, *, idle: bool) -> None:
    for _ in range(num_steps):
        if case.prompt:
            driver.submit(case.prompt, max_tokens=1)
        if idle and torch.cuda.is_available():
            torch.cuda.synchronize()
        driver.turn()


def measure(
    engine: Any, driver: Driver, times: PartTimes, case: Case, num_steps: int
) -> Iterator[dict[str, Any]]:
    driver.fill(case)
    num_steps = min(num_steps, _MIXED_STEPS) if case.prompt else num_steps
    for name, idle, context in surroundings():
        with context:
            run_steps(driver, case, _WARM_UP_STEPS, idle=idle)
            engine._recorder.step_log = entries = StepEntries()
            run_steps(driver, case, num_steps, idle=idle)
            engine._recorder.step_log = None
            times.of.clear()
            times.on = True
            run_steps(driver, case, num_steps // 2, idle=idle)
            times.on = False
        parts = {part: _figures(times.of[part], num_steps // 2) for part in _PARTS if times.of[part]}
        yield {"case": str(case), "surroundings": name, "steps": entries.figures(), "parts": parts}
    driver.empty()


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


def _figures(calls: list[tuple[float, float]], num_steps: int) -> dict[str, float]:
    """A part may be called several times a step, or not in each."""
    walls, cpus = [wall for wall, _ in calls], [cpu for _, cpu in calls]
    return {
        "calls": len(calls) / num_steps,
        "wall_us": statistics.median(walls),
        "wall_p90_us": _percentile(walls, 90),
        "cpu_us": statistics.median(cpus),
    }


def table(rows: list[dict[str, Any]]) -> str:
    head = [f"| | {' | '.join(row['surroundings'] for row in rows)} |", f"| --- |{' --- |' * len(rows)}"]
    lines = [f"\n## {rows[0]['case']}: us a step, wall p5 / p50 / p90", "", *head]
    for phase in (*_WHOLE, "whole"):
        steps = [row["steps"][phase] for row in rows]
        texts = [" / ".join(f"{us:.0f}" for us in step.values()) for step in steps]
        lines.append(f"| {phase} | {' | '.join(texts)} |")
    lines += ["", "us a call, wall p50 / wall p90 / CPU p50", "", *head]
    for part in _PARTS:
        cells = [row["parts"].get(part) for row in rows]
        texts = [
            f"{c['wall_us']:.0f} / {c['wall_p90_us']:.0f} / {c['cpu_us']:.0f}" if c else "" for c in cells
        ]
        if any(texts):
            lines.append(f"| {part} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights (default: auto)")
    parser.add_argument("--cases", default="1x300,48x300,256x300,512x300,1x300+1024,48x300+512")
    parser.add_argument("--steps", type=int, default=150, help="of each case (default: 150)")
    parser.add_argument("--seconds", type=float, default=60, help="no case begins later (default: 60)")
    parser.add_argument("--out", type=Path, required=True, help="folder for host_step.json and host_step.md")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    config = EngineConfig(model=arguments.model, load_format=arguments.load_format, itl_target_ms=0)
    engine = build_engine(config, StartProgress())
    began = time.monotonic()
    driver, times = Driver(engine, arguments.out / "none"), watch(engine)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    results: list[dict[str, Any]] = []
    tables = []
    for case in arguments.cases.split(","):
        if time.monotonic() - began > arguments.seconds:
            print(f"no time for {case}", flush=True)
            continue
        rows = list(measure(engine, driver, times, Case.parse(case), arguments.steps))
        results += rows
        tables.append(table(rows))
        print(tables[-1], flush=True)
        (arguments.out / "host_step.json").write_text(json.dumps(results))
        (arguments.out / "host_step.md").write_text("\n".join(tables) + "\n")
    engine.shutdown()


if __name__ == "__main__":
    main()
