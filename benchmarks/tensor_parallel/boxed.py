"""Commands in a box: a time limit, a process group that ends with it, and output that is on disk at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LAST_WORDS_S = 5.0  # for Python's fault handler to write where each thread is


@dataclass(frozen=True, slots=True)
class Boxed:
    """A Python process to run, by its command line."""

    name: str
    arguments: Sequence[str]
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] = frozenset()  # empty: all


@dataclass(slots=True)
class Running:
    boxed: Boxed
    process: subprocess.Popen[bytes]
    began_s: float
    limit_s: float
    outcome: str = ""  # once it has ended: "ok", or what was wrong


def run_side_by_side(commands: Sequence[Boxed], folder: Path, left_s: float) -> dict[str, str]:
    """Run all at once, each for its own limit and none for more than `left_s`; how each ended, by name.

    A command's output is in `folder`, in NAME.log. Nothing of it runs on when this returns, whatever happens.
    """
    running: list[Running] = []
    try:
        running.extend(_start(boxed, folder, left_s) for boxed in commands)
        while any(not entry.outcome for entry in running):
            for entry in running:
                _look(entry)
            time.sleep(0.05)
    finally:
        for entry in running:
            _kill(entry.process, signal.SIGKILL)
    return {entry.boxed.name: entry.outcome for entry in running}


def _start(boxed: Boxed, folder: Path, left_s: float) -> Running:
    environment = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"} | dict(boxed.environment)
    command = [sys.executable, *boxed.arguments]
    with (folder / f"{boxed.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, boxed.cores) if boxed.cores else None,
        )
    return Running(boxed, process, time.monotonic(), min(boxed.limit_s, left_s))


def _look(entry: Running) -> None:
    """Note how it ended, if it has; end it if its time is up."""
    if entry.outcome:
        return
    code = entry.process.poll()
    if code is not None:
        entry.outcome = "ok" if code == 0 else f"failed with exit code {code}"
    elif time.monotonic() > entry.began_s + entry.limit_s:
        entry.outcome = f"timed out after {entry.limit_s:.0f} s"
        _kill(entry.process, signal.SIGABRT)
        try:
            entry.process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            _kill(entry.process, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    """Its whole group, of which some may outlive it."""
    try:
        os.killpg(process.pid, signum)
    except ProcessLookupError:
        return
    if signum is signal.SIGKILL:
        process.wait()
