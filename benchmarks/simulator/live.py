"""The live half: a server, a calibration, windows of a trace, and everything compressed at the end."""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sys import executable

from benchmarks.simulator.capacity import saturation_rate
from loadgen.simulator.profile import read_profile

START_TIMEOUT_S = 300


def run_live(arguments: argparse.Namespace) -> None:
    """Leaves server.log, profile.json, phases.json, steps.jsonl.xz, events.jsonl.xz and windows.tar.xz."""
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="simulator-") as name:
        work = Path(name)
        (work / "windows").mkdir()
        try:
            with _server(arguments, work, out / "server.log") as base_url:
                _calibrate(arguments, base_url, work, out)
                _windows(arguments, base_url, work / "windows", out / "profile.json")
        finally:  # whatever went wrong, the logs tell what there was
            _compress(work, out)
    for file in sorted(out.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")


def _calibrate(arguments: argparse.Namespace, base_url: str, work: Path, out: Path) -> None:
    _octavo(
        "calibrate", "--base-url", base_url, *_logs(work), "--seconds", str(arguments.calibrate_seconds),
        "--phases", str(out / "phases.json"), "-o", str(out / "profile.json"),
        *arguments.calibrate_flags.split(),
    )  # fmt: skip


def _windows(arguments: argparse.Namespace, base_url: str, folder: Path, profile: Path) -> None:
    """Replay the window at each load; a run whose load was not as asked is kept and told."""
    flags = ["--duration", str(arguments.window), *arguments.trace_flags.split()]
    rates = saturation_rate(read_profile(profile), arguments.trace, flags)
    capacity = arguments.capacity or rates.capacity
    print(f"capacity {capacity:.3f} req/s; the trace as recorded {rates.recorded:.3f} req/s", flush=True)
    for repeat in range(arguments.repeats):
        for load in map(float, arguments.loads.split(",")):
            name = f"load-{load:g}-{repeat}"
            print(f"== {name}: {load * capacity:.3f} req/s", flush=True)
            code = _octavo(
                "replay", arguments.trace, "--base-url", base_url, *flags, "--seed", str(repeat + 1),
                "--rate-scale", str(load * capacity / rates.recorded), "--output", str(folder / name),
            )  # fmt: skip
            print(f"   exit code {code}", flush=True)


def _compress(work: Path, out: Path) -> None:
    for log in ("steps.jsonl", "events.jsonl"):
        if not (work / log).exists():  # the server did not start
            return
        with (work / log).open("rb") as source, lzma.open(out / f"{log}.xz", "wb", preset=1) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    with tarfile.open(out / "windows.tar.xz", "w:xz", preset=1) as archive:
        archive.add(work / "windows", arcname="windows")


def _logs(work: Path) -> list[str]:
    return ["--step-log", str(work / "steps.jsonl"), "--event-log", str(work / "events.jsonl")]


def _octavo(*command: str) -> int:
    return subprocess.run([executable, "-m", "server.cli.main", *command], check=False).returncode


@contextmanager
def _server(arguments: argparse.Namespace, work: Path, log_file: Path) -> Iterator[str]:
    command = [executable, "-m", "server.cli.main", "serve", "--port", str(arguments.port), *_logs(work)]
    command += ["--model", arguments.model] if arguments.model else []
    base_url = f"http://127.0.0.1:{arguments.port}"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments.serve_flags.split()], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _healthy(base_url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start:\n{log_file.read_text()[-3000:]}")
                time.sleep(0.2)
            yield base_url
        finally:
            process.terminate()
            process.wait(60)


def _healthy(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
