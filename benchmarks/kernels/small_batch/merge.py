"""Merge measured tiles into the table that the product reads.

    python -m benchmarks.kernels.small_batch.merge RESULTS/small_batch_8B.json ...

Rows and contexts that a file does not hold keep the tiles they have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kernels.triton.small_batch.tiles import TUNED_FILE


def main() -> None:
    table = json.loads(TUNED_FILE.read_text())
    for path in sys.argv[1:]:
        merge(table, json.loads(Path(path).read_text()))
    TUNED_FILE.write_text(json.dumps(table, indent=1) + "\n")


def merge(table: list[dict[str, Any]], measured: dict[str, Any]) -> None:
    """`measured` is one entry of the table, of any rows and contexts."""
    same = ("device", "shape")
    entry = next((e for e in table if all(e[key] == measured[key] for key in same)), None)
    if entry is None:
        table.append(measured)
        return
    batches = {batch["max_rows"]: batch for batch in entry["batches"]}
    for batch in measured["batches"]:
        old = batches.get(batch["max_rows"], {"attention": []})["attention"]
        contexts = {a["max_context"]: a for a in [*old, *batch["attention"]]}
        attention = [contexts[key] for key in sorted(contexts)]
        batches[batch["max_rows"]] = {**batch, "attention": attention}
    entry["batches"] = [batches[rows] for rows in sorted(batches)]


if __name__ == "__main__":
    main()
