"""What an engine step costs the host, by part: the real loop on a device that computes nothing.

    python -m benchmarks.host_step --rows 16,64,256,512 --against ../other-tree

Two loads for each number of rows: *steady*, decodes alone, and *arrivals*, where in every step one prompt of
128 tokens is computed and one sequence ends. CPU microseconds of the engine's thread a step, medians. With
`--against`, a checkout of another version takes turns with this one, process by process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.host_step.no_device import EOS_TOKEN_ID, make_runner
from benchmarks.random_request import random_request
from engine.config import SchedulerConfig
from engine.inbox import Inbox, Submit
from engine.loop import EngineLoop
from engine.record import EngineCounters, RecentRequests
from engine.recorder import Recorder
from engine.request import StepOutput
from engine.runner.step_launch import StepLaunch
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

_BLOCK_SIZE = 128
_PARTS = ("schedule", "launch", "collect", "commit")
_REST = "record and publish"  # what is left of a turn
_WARM_UP_STEPS = 40
_PROMPT_OF_AN_ARRIVAL = 128
_CACHE_BYTES = 4 << 20  # more than a core has for itself

Figures = dict[str, float]  # us a step, by part


class Stopwatch:
    """Sums up the time spent in functions, by name, until it is read."""

    def __init__(self) -> None:
        self._ns: dict[str, int] = defaultdict(int)

    def watch(self, owner: Any, name: str) -> None:
        """Time every call of `owner.name` from now on."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            began_ns = time.thread_time_ns()
            result = function(*arguments)
            self._ns[name] += time.thread_time_ns() - began_ns
            return result

        setattr(owner, name, timed)

    def read(self) -> dict[str, int]:
        """Nanoseconds by name since the last reading."""
        read, self._ns = self._ns, defaultdict(int)
        return read


class HostStep:
    """An engine loop with two steps in flight, turned by hand."""

    def __init__(self, num_rows: int, stopwatch: Stopwatch, *, cold: bool) -> None:
        """`cold`: between steps something else uses the core's caches, as a busy front end may."""
        config = SchedulerConfig(
            max_num_seqs=num_rows,
            max_num_batched_tokens=8192,
            max_model_len=8192,
            block_size=_BLOCK_SIZE,
            num_blocks=num_rows * 12,
        )
        scheduler = Scheduler(config, frozenset({EOS_TOKEN_ID}))
        runner = make_runner(config)
        self._inbox = Inbox()
        self._loop = EngineLoop(
            scheduler, runner, self._inbox, Recorder(EngineCounters(), RecentRequests()), depth=2
        )
        self._delivered: deque[StepOutput] = deque(maxlen=1)
        self._loop.on_step.append(self._delivered.append)
        stopwatch.watch(scheduler, "schedule")
        stopwatch.watch(scheduler, "commit")
        stopwatch.watch(runner, "launch")
        self._stopwatch = stopwatch
        self._scheduler, self._num_rows = scheduler, num_rows
        self._rng = np.random.default_rng(0)
        self._cache = np.zeros(_CACHE_BYTES, dtype=np.uint8) if cold else None

    def submit(self, num_tokens: int, max_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        request = random_request(self._rng, num_tokens, params, _BLOCK_SIZE, token_ids=range(5))
        self._inbox.put(Submit(request))

    def steady(self, num_steps: int) -> Figures:
        for num_tokens in self._rng.integers(300, 900, self._num_rows).tolist():
            self.submit(num_tokens, max_tokens=7000)
        while self._scheduler.num_waiting or len(self._inbox):
            self._loop.turn()
        return self._measure(num_steps, arrivals=False)

    def arrivals(self, num_steps: int) -> Figures:
        """Each lives for as many steps as there are rows, so one ends when another comes."""
        for _ in range(self._num_rows):
            self._turn(arrivals=True)
        return self._measure(num_steps, arrivals=True)

    def _turn(self, *, arrivals: bool) -> int:
        """Nanoseconds of one pass of the loop."""
        if arrivals:
            self.submit(_PROMPT_OF_AN_ARRIVAL, max_tokens=self._num_rows - 3)
        if self._cache is not None:
            self._cache += 1
        began_ns = time.thread_time_ns()
        self._loop.turn()
        return time.thread_time_ns() - began_ns

    def _measure(self, num_steps: int, *, arrivals: bool) -> Figures:
        for _ in range(_WARM_UP_STEPS):
            self._turn(arrivals=arrivals)
        self._stopwatch.read()
        turns: list[dict[str, int]] = []
        for _ in range(num_steps):
            whole_ns = self._turn(arrivals=arrivals)
            parts = self._stopwatch.read()
            turns.append({**parts, _REST: whole_ns - sum(parts.values()), "step": whole_ns})
        names = (*_PARTS, _REST, "step")
        return {name: statistics.median(turn.get(name, 0) for turn in turns) / 1e3 for name in names}


def measure(rows: list[int], num_steps: int, *, cold: bool) -> dict[str, Figures]:
    """By case."""
    stopwatch = Stopwatch()
    stopwatch.watch(StepLaunch, "collect")
    figures = {}
    for num_rows in rows:
        for load in (HostStep.steady, HostStep.arrivals):
            host_step = HostStep(num_rows, stopwatch, cold=cold)
            gc.collect()
            gc.freeze()  # as the server does
            figures[f"{num_rows} rows, {load.__name__}"] = load(host_step, num_steps)
    return figures


def measure_in(tree: Path, arguments: argparse.Namespace) -> dict[str, Figures]:
    """What the version in that folder says, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.host_step", "--json"]
    command += ["--rows", arguments.rows, "--steps", str(arguments.steps)]
    command += ["--cold"] * arguments.cold
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
    output = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE).stdout
    figures: dict[str, Figures] = json.loads(output)
    return figures


def medians(runs: list[dict[str, Figures]]) -> dict[str, Figures]:
    return {
        case: {part: statistics.median(run[case][part] for run in runs) for part in parts}
        for case, parts in runs[0].items()
    }


def table(ours: dict[str, Figures], theirs: dict[str, Figures] | None) -> str:
    names = [*_PARTS, _REST, "step"]
    lines = [f"| us a step | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for case, figures in ours.items():
        cells = [f"{figures[name]:.0f}" for name in names]
        if theirs is not None:
            cells = [f"{theirs[case][name]:.0f} -> {figures[name]:.0f}" for name in names]
            cells[-1] += f" ({figures['step'] / theirs[case]['step']:.2f})"
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="16,64,256,512", help="numbers of sequences (%(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="of each case (%(default)s)")
    parser.add_argument("--cold", action="store_true", help="empty the core's own caches between steps")
    parser.add_argument("--against", type=Path, help="a checkout of another version, to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each version (%(default)s)")
    parser.add_argument("--json", action="store_true", help="figures of one run, for another process")
    arguments = parser.parse_args()
    if arguments.json:
        torch.set_num_threads(1)
        rows = [int(rows) for rows in arguments.rows.split(",")]
        print(json.dumps(measure(rows, arguments.steps, cold=arguments.cold)))
        return
    trees = [Path(), arguments.against] if arguments.against else [Path()]
    runs: dict[Path, list[dict[str, Figures]]] = {tree: [] for tree in trees}
    for _ in range(arguments.rounds):
        for tree in trees:
            runs[tree].append(measure_in(tree, arguments))
    ours, *theirs = (medians(runs[tree]) for tree in trees)
    print(table(ours, theirs[0] if theirs else None))


if __name__ == "__main__":
    main()
