"""Parts that crash or hang take no other along, and nothing of them runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.tensor_parallel.boxed import Boxed, run_side_by_side
from tests.support.process import wait_until

# A part with a child of its own, both deaf to SIGTERM, as a server that is stuck. The child is to say no last
# words (-I: it reads no PYTHONFAULTHANDLER), as both write to one file, in pieces.
STUCK = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def box(name: str, code: str, limit_s: float = 60) -> Boxed:
    return Boxed(name, ["-c", code], limit_s, {"WORD": name})


def test_each_part_ends_in_its_own_way(tmp_path: Path) -> None:
    outcomes = run_side_by_side(
        [
            box("stuck", STUCK, limit_s=1.0),
            box("crash", "import os; os.abort()"),
            box("good", "import os; print(os.environ['WORD'])"),
        ],
        tmp_path,
        left_s=60,
    )
    assert outcomes == {
        "stuck": "timed out after 1 s",
        "crash": f"failed with exit code {-signal.SIGABRT}",
        "good": "ok",
    }
    assert (tmp_path / "good.log").read_text() == "good\n"
    pid, _, last_words = (tmp_path / "stuck.log").read_text().partition("\n")
    assert "time.sleep(60)" in last_words or 'File "<string>", line 6' in last_words
    wait_until(lambda: not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie", 5)


def test_a_part_keeps_to_its_cores(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    code = "import os; print(os.sched_getaffinity(0))"
    run_side_by_side([Boxed("part", ["-c", code], 60, cores=frozenset({core}))], tmp_path, left_s=60)
    assert (tmp_path / "part.log").read_text() == f"{{{core}}}\n"


def test_no_part_outlasts_the_time_left(tmp_path: Path) -> None:
    began_s = time.monotonic()
    outcomes = run_side_by_side([box("long", "import time; time.sleep(60)")], tmp_path, left_s=0.5)
    assert outcomes == {"long": "timed out after 0 s"} and time.monotonic() - began_s < 30


def test_what_fails_to_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = subprocess.Popen

    def start(*args: object, **options: object) -> object:
        if started:
            raise OSError("no more processes")
        process = popen(*args, **options)  # type: ignore[call-overload]
        started.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    sleep = "import time; time.sleep(60)"
    with pytest.raises(OSError, match="no more"):
        run_side_by_side([box("one", sleep), box("two", sleep)], tmp_path, left_s=60)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
