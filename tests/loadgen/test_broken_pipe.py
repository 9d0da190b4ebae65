"""`octavo COMMAND | head` ends quietly, with the status that a shell gives a program that SIGPIPE ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from loadgen.cli import exit_codes
from loadgen.cli.conclude import guarded
from loadgen.record import files

SEARCH = {
    "schema": files.CAPACITY_SCHEMA, "target": 0.9, "objectives": ["ttft=1"],
    "capacity_rps": None, "too_much_rps": 1.0, "probes": [],
}  # fmt: skip
PROBE = {
    "rate": 1.0, "attainment": 0.5, "good_requests_per_s": 1.0, "good_tokens_per_s": 1.0,
    "ttft_p50_ms": 1.0, "ttft_p99_ms": 1.0, "tpot_p99_ms": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(("module", "lines"), [("loadgen", 1), ("server.cli", 1000)])
def test_a_reader_that_leaves_is_no_error(module: str, lines: int, tmp_path: Path) -> None:
    """Whether the pipe breaks at the exit, where little was printed, or at a print."""
    (tmp_path / files.CAPACITY).write_bytes(orjson.dumps(SEARCH | {"probes": [PROBE] * lines}))
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", module, "report", str(tmp_path)]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (exit_codes.BROKEN_PIPE, b"")


def test_it_is_not_taken_for_the_servers_connection() -> None:
    def figures() -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        guarded("load", "http://server", figures)
