"""`octavo trace`: event and step logs as Chrome trace JSON, to open in Perfetto."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("events", metavar="EVENTS.jsonl", help="a file that --event-log wrote")
    parser.add_argument("--steps", metavar="STEPS.jsonl", help="a file that --step-log wrote in the same run")
    parser.add_argument("-o", "--output", metavar="FILE", default="trace.json", help="default: trace.json")


def run(arguments: argparse.Namespace) -> int:
    import orjson

    from engine.record.event_log import RecordFileError, read_event_log
    from engine.record.perfetto import chrome_trace
    from engine.record.step_log import read_step_log

    try:
        _, records = read_event_log(arguments.events)
        steps = read_step_log(arguments.steps)[1] if arguments.steps else []
        Path(arguments.output).write_bytes(orjson.dumps(chrome_trace(records, steps)))
    except (RecordFileError, OSError) as error:
        print(f"octavo trace: {error}", file=sys.stderr)
        return 1
    print(
        f"{arguments.output}: {len(records)} requests, {len(steps)} steps; open it at https://ui.perfetto.dev"
    )
    return 0
