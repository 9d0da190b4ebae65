"""The figures of a run, from its log alone: what `replay` prints, `report` can compute again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from loadgen.measure import RequestResult

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MIN_SAMPLES_FOR_P99 = 500
SCHEMA = "octavo.loadgen.summary/1"


def summarize(run: dict[str, Any], results: list[RequestResult], end: dict[str, Any]) -> dict[str, Any]:
    """All figures of a run. `run` and `end` are the first and the last line of the log.

    Latencies are of successful requests; failures are counted beside them, by kind. Units are in the names.
    """
    sent = [result for result in results if result.sent_ns is not None]
    good = [result for result in results if result.ok]
    load = load_figures(run, sent)
    return {
        "schema": SCHEMA,
        "load": load,
        "verdict": {"valid": not (causes := invalid_causes(run, load)), "causes": causes},
        "requests": _request_figures(run, results, sent, good),
        "latency_ms": _latency_figures(good),
        "tokens": _token_figures(run, good, load["span_s"]),
        "client": _client_figures(end, sent),
        "run": run,
    }


def percentiles(values: Iterable[float | None], scale: float = NS_PER_MS) -> dict[str, float | int | None]:
    """n, mean, p50, p90, p99 and max of the values that are there, divided by `scale`."""
    data = np.array([value for value in values if value is not None], dtype=float) / scale
    if not len(data):
        return {"n": 0, "mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    p50, p90, p99 = np.percentile(data, (50, 90, 99)).tolist()
    return {
        "n": len(data),
        "mean": float(data.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": data.max().item(),
    }


def load_figures(run: dict[str, Any], sent: list[RequestResult]) -> dict[str, Any]:
    """How the load that was offered compares with the load that was meant, over the requests that left.

    Lag is absolute: the bytes' departure minus the due time, with queueing and connecting included.
    """
    intended = sorted(result.intended_ns for result in sent)
    departed = sorted(result.sent_ns for result in sent if result.sent_ns is not None)
    intended_rate, offered_rate = _rate(intended), _rate(departed)
    error = offered_rate / intended_rate - 1 if intended_rate and offered_rate else None
    ends = [result.end_ns for result in sent if result.end_ns is not None]
    return {
        "lag_ms": percentiles(result.since_due(result.sent_ns) for result in sent),
        "pacing_lag_ms": percentiles(result.since_due(result.dispatched_ns) for result in sent),
        "connect_ms": percentiles(result.connect_ns for result in sent if result.connect_ns),
        "span_s": max(ends, default=0) / NS_PER_S,
        "intended_span_s": (intended[-1] - intended[0]) / NS_PER_S if intended else 0.0,
        "intended_rate_rps": intended_rate,
        "offered_rate_rps": offered_rate,
        "rate_error": error,
        "max_in_flight": _max_in_flight(sent),
    }


def invalid_causes(run: dict[str, Any], load: dict[str, Any]) -> list[str]:
    """Why the offered load is not the load that was asked for; empty if it is."""
    limits, lag = run["limits"], load["lag_ms"]
    causes = []
    if not lag["n"]:
        return ["no request was sent"]
    for name in ("p50", "p99", "max"):
        limit = limits[f"lag_{name}_ms"]
        if lag[name] > limit:
            causes.append(
                f"lag {name} {lag[name]:.3g} ms is over {limit:g} ms: {_lag_cause(run, load, limit, name)}"
            )
    # The lag of the first and last request alone moves the rate of a short run, within the lag limit.
    span_ms = max(load["intended_span_s"] * 1000, 1e-9)
    rate_limit = max(limits["rate_error"], limits["lag_max_ms"] / span_ms)
    if load["rate_error"] is not None and abs(load["rate_error"]) > rate_limit:
        causes.append(f"offered rate is {load['rate_error']:+.2%} off the intended rate")
    return causes


def _lag_cause(run: dict[str, Any], load: dict[str, Any], limit: float, name: str) -> str:
    if load["pacing_lag_ms"][name] > limit / 2:  # it alone makes up most of the excess
        return "the client fell behind (its CPU, or other work on this machine)"
    if run.get("max_inflight") and load["max_in_flight"] >= run["max_inflight"]:
        return f"requests waited for --max-inflight {run['max_inflight']}"
    return "opening connections took long"


def _rate(times_ns: list[int]) -> float | None:
    """Arrivals per second between the first and the last."""
    if len(times_ns) < 2 or times_ns[-1] == times_ns[0]:
        return None
    return (len(times_ns) - 1) * NS_PER_S / (times_ns[-1] - times_ns[0])


def _max_in_flight(sent: list[RequestResult]) -> int:
    changes = [(result.sent_ns, 1) for result in sent] + [(result.end_ns, -1) for result in sent]
    steps = np.cumsum([step for _, step in sorted((time_ns or 0, step) for time_ns, step in changes)])
    return int(steps.max(initial=0))


def _request_figures(
    run: dict[str, Any], results: list[RequestResult], sent: list[RequestResult], good: list[RequestResult]
) -> dict[str, Any]:
    return {
        "scheduled": run["scheduled"],
        "sent": len(sent),
        "succeeded": len(good),
        "unsent": run["scheduled"] - len(results),
        "failures": dict(Counter(result.failure for result in results if result.failure).most_common()),
        "failure_examples": {r.failure: r.detail for r in reversed(results) if r.failure},
        "finish_reasons": dict(Counter(str(result.finish_reason) for result in good).most_common()),
        "without_done_marker": sum(not result.done_marker for result in good),
        "reconnected": sum(result.reconnected for result in results),
    }


def _latency_figures(good: list[RequestResult]) -> dict[str, Any]:
    gaps = [pair for result in good for pair in result.token_gaps_ns()]
    per_token = np.repeat([gap for gap, _ in gaps], [tokens for _, tokens in gaps]).tolist() if gaps else []
    return {
        "ttft_from_due": percentiles(result.since_due(result.first_token_ns) for result in good),
        "ttft_from_sent": percentiles(result.since_sent(result.first_token_ns) for result in good),
        "headers_from_sent": percentiles(result.since_sent(result.headers_ns) for result in good),
        "first_content_from_sent": percentiles(result.since_sent(result.first_content_ns) for result in good),
        "inter_token": percentiles(per_token),
        "inter_chunk": percentiles(gap for result in good for gap in result.chunk_gaps_ns()),
        "tpot": percentiles(result.time_per_output_token_ns() for result in good),
        "e2e_from_due": percentiles(result.since_due(result.end_ns) for result in good),
        "e2e_from_sent": percentiles(result.since_sent(result.end_ns) for result in good),
    }


def _token_figures(run: dict[str, Any], good: list[RequestResult], span_s: float) -> dict[str, Any]:
    output = sum(result.output_tokens for result in good)
    counted = [result for result in good if result.prompt_tokens is not None]
    cached = [result for result in counted if result.cached_tokens is not None]
    prompt = sum(result.prompt_tokens or 0 for result in cached)
    return {
        "input": sum(result.input_tokens for result in good),
        "output": output,
        "output_per_s": output / span_s if span_s else None,
        "methods": dict(Counter(result.token_method for result in good)),
        "short_outputs": sum(result.output_tokens < result.output_tokens_asked for result in good),
        "long_outputs": sum(result.output_tokens > result.output_tokens_asked for result in good),
        "one_chunk_outputs": sum(result.time_per_output_token_ns() is None for result in good),
        "prompt_length_errors": sum(result.prompt_tokens != result.input_tokens for result in counted),
        "prompt_lengths_reported": len(counted),
        "cached": sum(result.cached_tokens or 0 for result in cached) if cached else None,
        "cache_hit_rate": sum(r.cached_tokens or 0 for r in cached) / prompt if prompt else None,
        "ideal_cache_hit_rate": run.get("ideal_cache_hit_rate"),
    }


def _client_figures(end: dict[str, Any], sent: list[RequestResult]) -> dict[str, Any]:
    cpu_s, wall_s = end.get("cpu_s"), end.get("wall_s")
    return {
        "cpu_us_per_request": cpu_s * 1e6 / len(sent) if cpu_s is not None and sent else None,
        "cpu_cores": cpu_s / wall_s if cpu_s is not None and wall_s else None,
        "interrupted": bool(end.get("interrupted", True)),
    }
