"""Was the load that went out the load that was asked for? Without a yes, no latency means anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.figures.percentiles import NS_PER_MS, percentiles
from loadgen.record.result import RequestResult
from loadgen.schedule.request import NS_PER_S

MIN_REQUESTS_FOR_GAPS = 1000  # fewer gaps say too little of their distribution
STALL_LIMIT_MS = 20.0


def load_figures(
    env: dict[str, Any], sent: Sequence[RequestResult], ends: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """How the load that was offered compares with the load that was meant, over the requests that left.

    Lag is absolute: the bytes' departure minus the due time, with queueing and connecting included.
    """
    intended = np.sort([result.intended_ns for result in sent])
    departed = np.sort([result.sent_ns for result in sent if result.sent_ns is not None])
    intended_rate, offered_rate = arrival_rate(intended), arrival_rate(departed)
    error = offered_rate / intended_rate - 1 if intended_rate and offered_rate else None
    return {
        "lag_ms": percentiles(result.since_due(result.sent_ns) for result in sent),
        "pacing_lag_ms": percentiles(result.since_due(result.dispatched_ns) for result in sent),
        "connect_ms": percentiles(result.connect_ns for result in sent if result.connect_ns),
        "span_s": max((result.end_ns for result in sent if result.end_ns is not None), default=0) / NS_PER_S,
        "intended_span_s": float(intended[-1] - intended[0]) / NS_PER_S if len(intended) else 0.0,
        "intended_rate_rps": intended_rate,
        "offered_rate_rps": offered_rate,
        "rate_error": error,
        "gap_distance": gap_distance(intended, departed, env["limits"]["lag_p50_ms"] * NS_PER_MS),
        "intended_dispersion": dispersion(intended),
        "offered_dispersion": dispersion(departed),
        "stall_max_ms": max((end.get("max_stall_ns", 0) for end in ends), default=0) / NS_PER_MS,
        "max_in_flight": _max_in_flight(sent),
    }


def gap_distance(intended: np.ndarray, departed: np.ndarray, tolerance_ns: float) -> float | None:
    """Kolmogorov-Smirnov distance of the gaps between arrivals, offered from intended.

    A gap that is off by up to `tolerance_ns` counts as equal; else evenly spaced arrivals could never agree.
    """
    if len(intended) < 2:
        return None
    meant, made = np.sort(np.diff(intended)), np.sort(np.diff(departed))
    share = np.arange(1, len(made) + 1) / len(made)
    above = np.searchsorted(meant, made + tolerance_ns, side="right") / len(meant)
    below = np.searchsorted(meant, made - tolerance_ns, side="left") / len(meant)
    return float(
        max(np.max(share - above, initial=0.0), np.max(below - (share - 1 / len(made)), initial=0.0))
    )


def dispersion(times_ns: np.ndarray) -> float | None:
    """Variance over mean of the arrivals in a second: 1 for Poisson, more for bursts, 0 for even spacing."""
    if len(times_ns) < 2:
        return None
    seconds = (times_ns - times_ns[0]) // NS_PER_S
    counts = np.bincount(seconds.astype(np.int64))[:-1]  # the last second is not a whole one
    return float(counts.var() / counts.mean()) if len(counts) > 1 else None


def invalid_causes(env: dict[str, Any], load: dict[str, Any]) -> list[str]:
    """Why the offered load is not the load that was asked for; empty if it is."""
    limits, lag = env["limits"], load["lag_ms"]
    causes = []
    if not lag["n"]:
        return ["no request was sent"]
    breaches: dict[str, list[str]] = {}  # by their cause
    for name in ("p50", "p99", "max"):
        limit = limits[f"lag_{name}_ms"]
        if lag[name] > limit:
            breach = f"{name} {_short(lag[name])} ms (limit {limit:g})"
            breaches.setdefault(_lag_cause(env, load, name), []).append(breach)
    causes += [f"lag {', '.join(found)}: {cause}" for cause, found in breaches.items()]
    # The lag of the first and last request alone moves the rate of a short run, within the lag limit.
    span_ms = max(load["intended_span_s"] * 1000, 1e-9)
    rate_limit = max(limits["rate_error"], limits["lag_max_ms"] / span_ms)
    if load["rate_error"] is not None and abs(load["rate_error"]) > rate_limit:
        causes.append(f"offered rate is {load['rate_error']:+.2%} off the intended rate")
    distance, limit = load["gap_distance"], limits["gap_distance"]
    if lag["n"] >= MIN_REQUESTS_FOR_GAPS and distance is not None and distance > limit:
        causes.append(f"the gaps between requests are {distance:.3g} off the intended ones (limit {limit:g})")
    return causes


def _lag_cause(env: dict[str, Any], load: dict[str, Any], name: str) -> str:
    most_ms = load["lag_ms"][name] / 2
    if load["pacing_lag_ms"][name] <= most_ms:
        if env.get("max_inflight") and load["max_in_flight"] >= env["max_inflight"]:
            return f"requests waited for --max-inflight {env['max_inflight']}"
        if load["connect_ms"]["n"] and load["connect_ms"]["max"] > most_ms:
            return "opening connections took long"
    stall = f"; its event loop was once busy for {_short(load['stall_max_ms'])} ms"
    return "the client fell behind (its CPU, or other work on this machine)" + (
        stall if load["stall_max_ms"] > STALL_LIMIT_MS else ""
    )


def _short(value_ms: float) -> str:
    return f"{value_ms:.3g}" if value_ms < 1000 else f"{value_ms:.0f}"


def arrival_rate(times_ns: np.ndarray) -> float | None:
    """Arrivals per second between the first and the last of sorted times; None without such a span."""
    if len(times_ns) < 2 or times_ns[-1] == times_ns[0]:
        return None
    return float((len(times_ns) - 1) * NS_PER_S / (times_ns[-1] - times_ns[0]))


def _max_in_flight(sent: Sequence[RequestResult]) -> int:
    changes = [(result.sent_ns, 1) for result in sent] + [(result.end_ns, -1) for result in sent]
    steps = np.cumsum([step for _, step in sorted((time_ns or 0, step) for time_ns, step in changes)])
    return int(steps.max(initial=0))
