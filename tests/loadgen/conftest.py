"""A replay against the mock server, through the command's own entry point."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import load, replay
from loadgen.mock import MockServer
from loadgen.record import RequestResult, read_run


@dataclass(slots=True)
class Run:
    exit_code: int
    summary: dict[str, Any]
    results: list[RequestResult]


Replayer = Callable[..., Run]


@pytest.fixture(name="replay")
def replay_fixture(tmp_path: Path) -> Replayer:
    """replay(server, [(due ms, input tokens, output tokens), ...], *flags)"""

    def send(server: MockServer, rows: Sequence[tuple[int, int, int]], *flags: str) -> Run:
        trace, record = tmp_path / "trace.jsonl", tmp_path / "run"
        shutil.rmtree(record, ignore_errors=True)
        lines = [json.dumps({"timestamp": t, "input_length": i, "output_length": o}) for t, i, o in rows]
        trace.write_text("\n".join(lines))
        # The machine that tests run on may be busy, so lag is not judged here but where a test asks for it.
        arguments = ["--lag-limits", "100000,100000,100000", "--base-url", server.base_url, *flags]
        code = run_replay([str(trace), *arguments, "--output", str(record)])
        return read_outcome(code, record)

    return send


def run_replay(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    return replay.run(parser.parse_args(arguments))


def run_load(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    load.add_arguments(parser)
    return load.run(parser.parse_args(arguments))


def read_outcome(code: int, record: Path) -> Run:
    summary = record / "summary.json"
    if not summary.exists():
        return Run(code, {}, [])
    return Run(code, json.loads(summary.read_text()), read_run(record).results)
