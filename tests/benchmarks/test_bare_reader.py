"""The loop that clients are compared with: it asks for what they ask for and reads all of it."""

from __future__ import annotations

import subprocess
import sys

from loadgen.mock import MockServer, Script


def test_every_request_is_sent_and_read_to_its_end() -> None:
    with MockServer(Script(ttft_s=0.01, itl_s=0.001)) as server:
        command = [
            sys.executable,
            "-m",
            "benchmarks.loadgen.bare_reader",
            server.base_url,
            "40",
            "12",
            "5",
            "8",
        ]
        subprocess.run(command, check=True, timeout=60)
    assert [len(truth.token_times_ns) for truth in server.truths] == [8] * 12
    assert all(len(truth.body["prompt"]) == 5 for truth in server.truths)
    assert server.in_flight == 0
