"""The charts of a run, and those of runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from loadgen.record import RequestResult, Run
from loadgen.report.chart import Chart, Series

RATE_BINS = 120  # at most
REQUESTS_PER_BIN = 5  # on average, or the rate would show single requests
CDF_POINTS = 400

Results = Sequence[RequestResult]
Named = Sequence[tuple[str, Results]]


def run_charts(run: Run, summary: dict[str, Any]) -> list[Chart]:
    """All charts of a run; the limits of an objective that is for all requests are drawn in."""
    results = [result for result in run.results if not result.retried]
    goodput = summary["goodput"]
    limits_ms: dict[str, float] = {} if goodput is None else goodput["objectives_ms"].get("all", {})
    charts = [
        ttft_over_time(results, limits_ms.get("ttft")),
        ttft_cdf(results),
        rates(results),
        in_flight(results),
        tpot_over_time(results, limits_ms.get("tpot")),
        inter_token_cdf(results),
        e2e_over_time(results, limits_ms.get("e2e")),
        e2e_cdf(results),
    ]
    return charts + (server_charts(run.scrapes) if len(run.scrapes) > 1 else [])


def overview_charts(run: Run, summary: dict[str, Any]) -> list[Chart]:
    return run_charts(run, summary)[:2]


def ttft_over_time(results: Results, limit_ms: float | None = None) -> Chart:
    """Each dot is a request at its due time; failures lie along the top."""
    title = "Time to first token, from due time"
    return _over_time(title, results, lambda r: r.since_due(r.first_token_ns), limit_ms)


def e2e_over_time(results: Results, limit_ms: float | None = None) -> Chart:
    return _over_time("End to end, from due time", results, lambda r: r.since_due(r.end_ns), limit_ms)


def tpot_over_time(results: Results, limit_ms: float | None = None) -> Chart:
    return _over_time(
        "Time per output token, mean of a request", results, lambda r: r.time_per_output_token_ns(), limit_ms
    )


def ttft_cdf(results: Results) -> Chart:
    good = _good(results)
    series = [
        _cdf("from due time", _ms(result.since_due(result.first_token_ns) for result in good)),
        _cdf("from send", _ms(result.since_sent(result.first_token_ns) for result in good)),
    ]
    return Chart("Time to first token, share of requests", "ms", "share", series, log_x=True)


def e2e_cdf(results: Results) -> Chart:
    good = _good(results)
    series = [
        _cdf("from due time", _ms(result.since_due(result.end_ns) for result in good)),
        _cdf("from send", _ms(result.since_sent(result.end_ns) for result in good)),
    ]
    return Chart("End to end, share of requests", "ms", "share", series, log_x=True)


def inter_token_cdf(results: Results) -> Chart:
    good = _good(results)
    series = [
        _cdf("per token", _token_gaps_ms(good)),
        _cdf("between chunks", _ms(gap for result in good for gap in result.chunk_gaps_ns())),
        _cdf("per token, mean of a request", _ms(r.time_per_output_token_ns() for r in good)),
    ]
    return Chart("Inter-token latency, share of tokens", "ms", "share", series, log_x=True)


def rates(results: Results) -> Chart:
    """Requests per second: as intended, as sent, as finished."""
    last = max((result.end_ns or result.intended_ns for result in results), default=1) / 1e9
    bins = max(1, min(RATE_BINS, max(int(last), 10), len(results) // REQUESTS_PER_BIN))
    edges = np.linspace(0, max(last, 1e-3), bins + 1)
    times = {
        "intended": [result.intended_ns for result in results],
        "sent": [result.sent_ns for result in results if result.sent_ns is not None],
        "finished": [result.end_ns for result in results if result.ok and result.end_ns is not None],
    }
    middles = (edges[:-1] + edges[1:]) / 2
    series = [
        Series(name, middles, np.histogram(np.array(values) / 1e9, edges)[0] / np.diff(edges))
        for name, values in times.items()
    ]
    return Chart("Rate", "s", "requests/s", series)


def in_flight(results: Results) -> Chart:
    """Requests sent and not yet ended."""
    sent = [result for result in results if result.sent_ns is not None and result.end_ns is not None]
    times = np.array([r.sent_ns for r in sent] + [r.end_ns for r in sent], dtype=float) / 1e9
    order = np.argsort(times, kind="stable")
    steps = np.repeat([1, -1], len(sent))[order].cumsum()
    return Chart("In flight", "s", "requests", [Series("in flight", times[order], steps)])


def server_charts(scrapes: Sequence[dict[str, float]]) -> list[Chart]:
    """What the server says of itself."""
    times = np.array([row["t_ns"] for row in scrapes]) / 1e9

    def series(name: str, label: str = "") -> Series:
        return Series(label or name, times, np.array([row.get(name, np.nan) for row in scrapes]))

    queue = [series("running"), series("waiting")]
    charts = [Chart("In the server, by its own metrics", "s", "requests", queue)]
    if any("kv_usage" in row for row in scrapes):
        memory = [series("kv_usage", "of the KV cache in use")]
        charts.append(Chart("Memory, by the server's own metrics", "s", "share", memory))
    return charts


def compare_ttft(runs: Named) -> Chart:
    series = [
        _cdf(name, _ms(r.since_due(r.first_token_ns) for r in _good(results))) for name, results in runs
    ]
    return Chart("Time to first token, from due time", "ms", "share", series, log_x=True)


def compare_inter_token(runs: Named) -> Chart:
    series = [_cdf(name, _token_gaps_ms(_good(results))) for name, results in runs]
    return Chart("Inter-token latency, share of tokens", "ms", "share", series, log_x=True)


def compare_e2e(runs: Named) -> Chart:
    series = [_cdf(name, _ms(r.since_due(r.end_ns) for r in _good(results))) for name, results in runs]
    return Chart("End to end, from due time", "ms", "share", series, log_x=True)


def _over_time(
    title: str,
    results: Results,
    measure: Callable[[RequestResult], float | None],
    limit_ms: float | None,
) -> Chart:
    pairs = [(r.intended_ns, value) for r in _good(results) if (value := measure(r)) is not None]
    values = _ms(value for _, value in pairs)
    series = [Series("a request", np.array([due for due, _ in pairs]) / 1e9, values, "dots")]
    failed = np.array([result.intended_ns for result in results if not result.ok]) / 1e9
    if len(failed):
        top = values.max(initial=1.0) * 1.5
        series.append(Series("failed", failed, np.full(len(failed), top), "dots"))
    if limit_ms is not None:
        span_s = np.array([0, max((result.intended_ns for result in results), default=0) / 1e9])
        series.append(Series(f"objective, {limit_ms:g} ms", span_s, np.full(2, limit_ms)))
    return Chart(title, "due time, s", "ms", series, log_y=True)


def _good(results: Results) -> list[RequestResult]:
    return [result for result in results if result.ok and not result.retried]


def _token_gaps_ms(good: Results) -> np.ndarray:
    pairs = [pair for result in good for pair in result.token_gaps_ns()]
    gaps: np.ndarray = np.repeat(_ms(gap for gap, _ in pairs), [tokens for _, tokens in pairs] or 0)
    return gaps


def _ms(values_ns: Iterable[float | None]) -> np.ndarray:
    return np.array([value for value in values_ns if value is not None], dtype=float) / 1e6


def _cdf(name: str, values: np.ndarray) -> Series:
    shares = np.linspace(0, 1, CDF_POINTS)
    return Series(name, np.quantile(values, shares) if len(values) else np.full(CDF_POINTS, np.nan), shares)
