"""The workloads' arrivals and lengths as traces, for `octavo simulate`.

python -m benchmarks.serving.traces DIR W3-16 W4
octavo simulate DIR/W3-16.csv --profile docs/examples/qwen3-8b-h200.profile.json --itl-target-ms 27
"""

from __future__ import annotations

import csv
import sys
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.serving.workloads import WORKLOADS

BEGIN = datetime(2026, 1, 1)


def write_trace(folder: Path, name: str) -> Path:
    """A CSV file with the columns of Azure's LLM inference traces."""
    workload = WORKLOADS[name]
    file = folder / f"{name}.csv"
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for due_s, body in zip(workload.arrivals_s(), workload.bodies(), strict=True):
            due = (BEGIN + timedelta(seconds=due_s)).isoformat(" ", "microseconds")
            writer.writerow([due, len(body["prompt"]), body["max_tokens"]])
    return file


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for wanted in sys.argv[2:]:
        print(write_trace(target, wanted))
