"""The charts of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from loadgen.record import RequestResult
from loadgen.report.svg import Series, chart

RATE_BINS = 120
CDF_POINTS = 400


def ttft_over_time(results: list[RequestResult], at: tuple[int, int] = (0, 0)) -> str:
    """Each dot is a request at its due time; failures lie along the top."""
    good = [result for result in results if result.ok]
    failed = [result for result in results if not result.ok]
    waits = _ms(result.since_due(result.first_token_ns) for result in good)
    series = [Series("TTFT from due time", _due_s(good), waits, "dots")]
    if failed:
        top = waits.max(initial=1.0) * 1.5
        series.append(Series("failed", _due_s(failed), np.full(len(failed), top), "dots"))
    return chart("Time to first token", "due time, s", "ms", series, log_y=True, at=at)


def ttft_cdf(results: list[RequestResult], at: tuple[int, int] = (0, 0)) -> str:
    good = [result for result in results if result.ok]
    series = [
        _cdf("from due time", _ms(result.since_due(result.first_token_ns) for result in good)),
        _cdf("from send", _ms(result.since_sent(result.first_token_ns) for result in good)),
    ]
    return chart("Time to first token, share of requests", "ms", "share", series, log_x=True, at=at)


def inter_token_cdf(results: list[RequestResult], at: tuple[int, int] = (0, 0)) -> str:
    good = [result for result in results if result.ok]
    pairs = [pair for result in good for pair in result.token_gaps_ns()]
    gaps = np.repeat(_ms(gap for gap, _ in pairs), [tokens for _, tokens in pairs] or 0)
    series = [
        _cdf("per token", gaps),
        _cdf("time per output token, of requests", _ms(r.time_per_output_token_ns() for r in good)),
    ]
    return chart("Inter-token latency", "ms", "share", series, log_x=True, at=at)


def rates(results: list[RequestResult], at: tuple[int, int] = (0, 0)) -> str:
    """Requests per second: as intended, as sent, as finished."""
    last = max((result.end_ns or result.intended_ns for result in results), default=1) / 1e9
    edges = np.linspace(0, max(last, 1e-3), min(RATE_BINS, max(int(last), 10)) + 1)
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
    return chart("Rate", "s", "requests/s", series, at=at)


def in_flight(results: list[RequestResult], at: tuple[int, int] = (0, 0)) -> str:
    """Requests sent and not yet ended."""
    sent = [result for result in results if result.sent_ns is not None and result.end_ns is not None]
    times = np.array([r.sent_ns for r in sent] + [r.end_ns for r in sent], dtype=float) / 1e9
    order = np.argsort(times, kind="stable")
    steps = np.repeat([1, -1], len(sent))[order].cumsum()
    return chart("In flight", "s", "requests", [Series("in flight", times[order], steps)], at=at)


Chart = Callable[[list[RequestResult], tuple[int, int]], str]
ALL_CHARTS: tuple[Chart, ...] = (ttft_over_time, ttft_cdf, rates, inter_token_cdf, in_flight)
OVERVIEW_CHARTS: tuple[Chart, ...] = (ttft_over_time, ttft_cdf)


def _ms(values_ns: Iterable[float | None]) -> np.ndarray:
    return np.array([value for value in values_ns if value is not None], dtype=float) / 1e6


def _due_s(results: list[RequestResult]) -> np.ndarray:
    return np.array([result.intended_ns for result in results], dtype=float) / 1e9


def _cdf(name: str, values: np.ndarray) -> Series:
    shares = np.linspace(0, 1, CDF_POINTS)
    return Series(name, np.quantile(values, shares) if len(values) else np.full(CDF_POINTS, np.nan), shares)
