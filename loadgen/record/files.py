"""The files of a run's directory and their schemas.

`env.json`: what was asked for and on what machine. `schedule.jsonl`: a line for each request of the load.
`events.jsonl`: a line with the schema, a line for each request as it ends, and a last line of type "end",
which is missing if the run was killed. `chunks.bin`: the chunks of the requests. `server.jsonl`: what the
server's /metrics said, a line a scrape. `summary.json`: all figures, which can be computed again from the
others. Worker number k > 0 has files of its own, `events.k.jsonl` and `chunks.k.bin`. A search for a capacity
leaves `capacity.json` beside the directories of its runs.
"""

from __future__ import annotations

from pathlib import Path

ENV_SCHEMA = "octavo.loadgen.env/2"
EVENTS_SCHEMA = "octavo.loadgen.events/2"
SUMMARY_SCHEMA = "octavo.loadgen.summary/2"
CAPACITY_SCHEMA = "octavo.loadgen.capacity/2"

ENV = "env.json"
SCHEDULE = "schedule.jsonl"
SERVER = "server.jsonl"
SUMMARY = "summary.json"
CAPACITY = "capacity.json"


def events_path(directory: Path, worker: int) -> Path:
    return directory / (f"events.{worker}.jsonl" if worker else "events.jsonl")


def chunks_path(directory: Path, worker: int) -> Path:
    return directory / (f"chunks.{worker}.bin" if worker else "chunks.bin")
