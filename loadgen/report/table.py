"""A line for each request, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from loadgen.figures.objectives import MEASURES, Objective
from loadgen.figures.percentiles import NS_PER_MS
from loadgen.record import RequestResult

COLUMNS = (
    "index", "request_id", "request_class", "session", "turn", "attempt", "worker", "status", "failure",
    "finish_reason", "input_tokens", "prompt_tokens", "cached_tokens", "output_tokens_asked", "output_tokens",
    "intended_ns", "sent_ns", "headers_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "end_ns",
)  # fmt: skip


def render_csv(results: Sequence[RequestResult], summary: dict[str, Any]) -> str:
    """Times are ns from the start of the run; latencies, named by their measure, ms."""
    objectives = (summary["goodput"] or {}).get("objectives_ms", {})
    by_class = {name: Objective(name, limits) for name, limits in objectives.items()}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*COLUMNS, *(f"{name}_ms" for name in MEASURES), "objective_met"])
    for result in results:
        latencies = [measure(result) if result.ok else None for measure in MEASURES.values()]
        objective = by_class.get(result.request_class, by_class.get("all"))
        met = None if objective is None else all(objective.met(result).values())
        cells = [getattr(result, name) for name in COLUMNS]
        table.writerow([*cells, *(None if ns is None else ns / NS_PER_MS for ns in latencies), met])
    return text.getvalue()
