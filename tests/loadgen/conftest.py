"""A replay against the mock server, through the command's own entry point."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen import cli
from loadgen.measure import RequestResult
from loadgen.mock_server import MockServer
from loadgen.runlog import read_run_log


@dataclass(slots=True)
class Run:
    exit_code: int
    summary: dict[str, Any]
    results: list[RequestResult]


Replayer = Callable[..., Run]


@pytest.fixture
def replay(tmp_path: Path) -> Replayer:
    """replay(server, [(due ms, input tokens, output tokens), ...], *flags)"""

    def run(server: MockServer, rows: Sequence[tuple[int, int, int]], *flags: str) -> Run:
        trace, log, summary = tmp_path / "trace.jsonl", tmp_path / "run.jsonl", tmp_path / "summary.json"
        lines = [json.dumps({"timestamp": t, "input_length": i, "output_length": o}) for t, i, o in rows]
        trace.write_text("\n".join(lines))
        # The machine that tests run on may be busy, so lag is not judged here but where a test asks for it.
        arguments = ["--lag-limits", "100000,100000,100000", "--base-url", server.base_url, *flags]
        arguments += ["--output", str(log), "--summary-json", str(summary)]
        code = run_replay([str(trace), *arguments])
        if not summary.exists():
            return Run(code, {}, [])
        return Run(code, json.loads(summary.read_text()), read_run_log(log)[1])

    return run


def run_replay(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(arguments))
