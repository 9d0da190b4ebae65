"""What a workload's run comes to, and the table of several runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from loadgen.record import RequestResult

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in milliseconds; TTFT is counted from when a request was due."""

    workload: str
    num_requests: int
    seconds: float  # from the first request due to the last token
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: tuple[float, float]  # p50, p99
    tpot_ms: tuple[float, float]
    itl_ms: tuple[float, float]


def figures_of(workload: str, results: list[RequestResult]) -> Figures:
    """Raises RuntimeError if a request failed."""
    for result in results:
        if result.failure:
            raise RuntimeError(f"{workload}: request {result.index}: {result.failure} {result.detail}")
    begin = min(result.intended_ns for result in results)
    end = max(result.last_token_ns or 0 for result in results)
    seconds = (end - begin) / NS_PER_S
    ttft = [(result.first_token_ns or 0) - result.intended_ns for result in results]
    tpot = [tpot for result in results if (tpot := result.time_per_output_token_ns()) is not None]
    itl = [gap for result in results for gap, tokens in result.token_gaps_ns() for _ in range(tokens)]
    return Figures(
        workload,
        len(results),
        seconds,
        sum(result.output_tokens for result in results) / seconds,
        len(results) / seconds,
        _p50_p99_ms(ttft),
        _p50_p99_ms(tpot),
        _p50_p99_ms(itl),
    )


def _p50_p99_ms(times_ns: Iterable[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(list(times_ns), [50, 99]) / NS_PER_MS
    return float(p50), float(p99)


def markdown(rows: list[Figures]) -> str:
    lines = [
        "| run | requests | s | out tok/s | req/s | TTFT p50 / p99, ms | TPOT, likewise | ITL, likewise |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        pairs = [f"{p50:.2f} / {p99:.2f}" for p50, p99 in (row.ttft_ms, row.tpot_ms, row.itl_ms)]
        cells = [row.workload, str(row.num_requests), f"{row.seconds:.2f}", f"{row.output_tokens_per_s:.0f}"]
        lines.append("| " + " | ".join([*cells, f"{row.requests_per_s:.2f}", *pairs]) + " |")
    return "\n".join(lines)
