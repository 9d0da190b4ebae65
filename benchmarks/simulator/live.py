"""The live half: a server, a calibration, a flood, windows of a trace, and two replays to show.

All of it within a number of seconds, and archived as it goes: a run that is cut off lacks what came last.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from sys import executable

from benchmarks.server_process import octavo
from benchmarks.simulator.archive import Archive, GrowingLog
from benchmarks.simulator.capacity import completion_rate, saturation_rate
from benchmarks.simulator.window import Window, squeezed
from loadgen.record import read_run
from loadgen.simulator.profile import read_profile

END_S = 8.0  # of the budget, to end the server and to archive the rest
LOGS = ("steps.jsonl", "events.jsonl")
REPLAYS = {
    "azure": "loadgen/traces/samples/azure_conv_120s.csv",
    "mooncake": "loadgen/traces/samples/mooncake_conversation_300s_short.jsonl",
}
REPLAY_SHARE = 0.6  # of the capacity that the simulator foretells for the trace
_DRAIN_S = 6.0  # how much longer than its window a replay takes at least
_EVERY_TOKEN = '{"return_token_ids": true}'  # or random tokens without a text would be seen late
_LOG_DELAY_S = 0.3  # the server writes its logs a little late


def run_live(arguments: argparse.Namespace) -> None:
    """Leaves record-N.tar.xz in the output folder: logs, profile, what clients saw, and a folder a window."""
    deadline_s = time.monotonic() + arguments.budget
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="simulator-") as name:
        record = _Record(out, Path(name))
        try:
            flags = [*_log_flags(record.work), *arguments.serve_flags.split()]
            flags += ["--model", arguments.model] if arguments.model else []
            log = record.work / "server.log"
            with octavo(*flags, port=arguments.port, log=log) as server:
                _Live(arguments, server.base_url, record, deadline_s).run()
        finally:  # whatever went wrong, the logs tell what there was
            record.keep("server.log")
            record.close()
    for file in sorted(out.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


class _Record:
    """The work folder, archived beside the run: compressing must not hold up what is measured."""

    def __init__(self, out: Path, work: Path) -> None:
        self.work = work
        self._archive = Archive(out)
        self._logs = [GrowingLog(work / name) for name in LOGS]
        self._writer = ThreadPoolExecutor(1)
        self._writes: list[Future[None]] = []

    def keep(self, *names: str) -> None:
        """Archive these files and folders of the work folder, and what is new in the logs."""
        self._writes.append(self._writer.submit(self._keep, names))

    def close(self) -> None:
        self._writer.shutdown()
        for write in self._writes:
            write.result()

    def _keep(self, names: tuple[str, ...]) -> None:
        time.sleep(_LOG_DELAY_S)
        files: dict[str, bytes] = {}
        for name in names:
            path = self.work / name
            found = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
            files |= {str(file.relative_to(self.work)): file.read_bytes() for file in found}
        for log in self._logs:
            files |= log.new_slice()
        self._archive.add(files)


class _Live:
    """What is sent to one server, in the order of its value should the time not do for all."""

    def __init__(
        self, arguments: argparse.Namespace, base_url: str, record: _Record, deadline_s: float
    ) -> None:
        self._arguments = arguments
        self._base_url = base_url
        self._record = record
        self._deadline_s = deadline_s - END_S
        self._drain_s = _DRAIN_S

    def run(self) -> None:
        self._calibrate()
        loads = [float(load) for load in self._arguments.loads.split(",")]
        capacity = self._arguments.capacity or self._flood()
        print(f"capacity {capacity:.3f} req/s", flush=True)
        for load in loads:
            self._window(load, 0, capacity)
        for name, trace in REPLAYS.items():
            self._show(name, trace)
        for repeat in range(1, self._arguments.repeats):
            for load in loads:
                self._window(load, repeat, capacity)

    def _calibrate(self) -> None:
        work, seconds = self._record.work, self._arguments.calibrate_seconds
        _octavo(
            "calibrate", "--base-url", self._base_url, *_log_flags(work), "--seconds", str(seconds),
            "--phases", str(work / "phases.json"), "-o", str(work / "profile.json"),
            *self._arguments.calibrate_flags.split(), timeout_s=seconds + 60,
        )  # fmt: skip
        self._record.keep("profile.json", "phases.json")

    def _flood(self) -> float:
        """Requests per second that the server completes when all of a window are sent at once."""
        name = "windows/flood-0"
        self._replay(
            name, self._arguments.trace, ["--limit", str(self._arguments.flood), "--time-scale", "1e-3"]
        )
        return completion_rate(result.end_ns for result in read_run(self._record.work / name).results)

    def _window(self, load: float, repeat: int, capacity: float) -> None:
        """Repeats are the same schedule with other prompts, so that their spread is the server's."""
        window = squeezed(self._arguments.trace, load * capacity, self._arguments.window)
        self._send(f"windows/{load:g}-{repeat}", self._arguments.trace, window)

    def _show(self, name: str, trace: str) -> None:
        if not self._arguments.replay_seconds:
            return
        profile = read_profile(self._record.work / "profile.json")
        rate = REPLAY_SHARE * saturation_rate(profile, trace, self._arguments.trace_flags.split())
        self._send(f"replays/{name}-0", trace, squeezed(trace, rate, self._arguments.replay_seconds))

    def _send(self, name: str, trace: str, window: Window) -> None:
        """Unless the time is up."""
        print(f"== {name}: {window.rate:.3f} req/s for {window.seconds:.1f} s", flush=True)
        if time.monotonic() + window.seconds + self._drain_s > self._deadline_s:
            print("   no time left", flush=True)
            return
        took_s = self._replay(name, trace, window.flags)
        self._drain_s = max(self._drain_s, took_s - window.seconds)

    def _replay(self, name: str, trace: str, flags: list[str]) -> float:
        """The seconds that it took. A run whose load was not as asked is kept, and told by its exit code."""
        begin_s = time.monotonic()
        code = _octavo(
            "replay", trace, "--base-url", self._base_url, *flags, *self._arguments.trace_flags.split(),
            "--extra-body", _EVERY_TOKEN,
            "--output", str(self._record.work / name), timeout_s=self._deadline_s - begin_s,
        )  # fmt: skip
        took_s = time.monotonic() - begin_s
        print(f"   exit code {code} after {took_s:.1f} s", flush=True)
        self._record.keep(name)
        return took_s


def _log_flags(work: Path) -> list[str]:
    return ["--step-log", str(work / LOGS[0]), "--event-log", str(work / LOGS[1])]


def _octavo(*command: str, timeout_s: float) -> int | None:
    """The exit code; None if the time was up."""
    try:
        return subprocess.run(
            [executable, "-m", "server.cli.main", *command], check=False, timeout=timeout_s
        ).returncode
    except subprocess.TimeoutExpired:
        return None
