"""How far the client's times are from the server's, which share a clock on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.mock import Script, Truth
from loadgen.record import RequestResult
from loadgen.run.launch import Outcome, run_load
from loadgen.run.loads import synthetic_load
from loadgen.run.options import RunOptions
from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.synthetic import SyntheticLoad
from loadgen.selftest.mock_process import mock_process

TOKENS = 64
LIMIT_P50_MS, LIMIT_P99_MS = 0.3, 2.0


@dataclass(frozen=True, slots=True)
class Bias:
    """Absolute differences in ms: {"p50": ..., "p99": ...}."""

    ttft_ms: dict[str, float]
    inter_token_ms: dict[str, float]
    complete: bool  # every request and token was seen by both sides
    summary: dict[str, Any]

    @property
    def within_limits(self) -> bool:
        return all(
            row["p50"] <= LIMIT_P50_MS and row["p99"] <= LIMIT_P99_MS
            for row in (self.ttft_ms, self.inter_token_ms)
        )

    def render(self) -> str:
        load, client = self.summary["load"], self.summary["client"]
        rows = {"TTFT": self.ttft_ms, "inter-token": self.inter_token_ms}
        lines = [
            f"{load['offered_rate_rps']:.1f} req/s of {TOKENS} tokens: {self.summary['verdict']['status']}"
        ]
        lines += [f"  because {cause}" for cause in self.summary["verdict"]["causes"]]
        lines += [
            f"  {name} is off by {row['p50']:.3f} ms at p50, {row['p99']:.3f} ms at p99 "
            f"(limits {LIMIT_P50_MS} and {LIMIT_P99_MS})"
            for name, row in rows.items()
        ]
        lag = load["lag_ms"]
        lines.append(f"  lag p50 {lag['p50']:.3f}, p99 {lag['p99']:.3f}, max {lag['max']:.3f} ms")
        lines.append(
            f"  {client['cpu_us_per_request']:.0f} us CPU per request, {client['cpu_cores']:.2f} cores; "
            f"counts {'agree' if self.complete else 'DISAGREE'}"
        )
        return "\n".join(lines)


def measure_bias(rate: float, duration_s: float) -> Bias:
    load = SyntheticLoad(
        rate=f"{rate:g}", duration_s=duration_s, input_tokens="32", output_tokens=str(TOKENS)
    )
    with mock_process(Script()) as mock:
        outcome = run_load(synthetic_load(load, ScheduleOptions()), RunOptions(base_url=mock.base_url), None)
        truths = mock.truths()
    return _compare(outcome, truths)


def _compare(outcome: Outcome, truths: dict[str, Truth]) -> Bias:
    pairs = [
        (result, truths[result.request_id]) for result in outcome.run.results if result.request_id in truths
    ]
    ttft = [_ttft_error_ns(result, truth) for result, truth in pairs if result.ok]
    gaps = [error for result, truth in pairs if result.ok for error in _gap_errors_ns(result, truth)]
    complete = len(pairs) == len(truths) == outcome.run.env["scheduled"] and all(
        result.ok and len(truth.token_times_ns) == result.output_tokens == TOKENS for result, truth in pairs
    )
    return Bias(_percentiles_ms(ttft), _percentiles_ms(gaps), complete, outcome.summary)


def _ttft_error_ns(result: RequestResult, truth: Truth) -> int:
    measured = result.since_sent(result.first_token_ns)
    assert measured is not None
    return abs(measured - (truth.token_times_ns[0] - truth.received_ns))


def _gap_errors_ns(result: RequestResult, truth: Truth) -> list[int]:
    true_gaps = [after - before for before, after in pairwise(truth.token_times_ns)]
    return [abs(a - b) for a, b in zip(result.chunk_gaps_ns(), true_gaps, strict=False)]


def _percentiles_ms(errors_ns: list[int]) -> dict[str, float]:
    errors_ms = np.array(errors_ns, dtype=float) / 1e6
    p50, p99 = np.percentile(errors_ms if len(errors_ms) else [np.nan], (50, 99)).tolist()
    return {"p50": p50, "p99": p99}
