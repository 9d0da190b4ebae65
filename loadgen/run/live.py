"""What a user sees while requests run."""

from __future__ import annotations

from loadgen.run.counters import Counters


def live_lines(counters: Counters, total: int, elapsed_s: float) -> list[str]:
    """How far `total` requests are."""
    count = counters.total
    flight = f"{count('in_flight')} in flight, {count('waiting')} held back, {count('failed')} failed"
    rates = f"{count('sent') / elapsed_s:.1f} sent/s, {count('output_tokens') / elapsed_s:.0f} tokens/s"
    p50, p99 = counters.ttft_ms(0.5), counters.ttft_ms(0.99)
    if p50 is not None and p99 is not None:
        rates += f"; TTFT p50 about {_rounded(p50)} ms, p99 {_rounded(p99)} ms"
    lag = f"latest {counters.largest('max_lag_us') / 1000:.2f} ms behind the schedule"
    return [f"{elapsed_s:.0f} s: {count('finished')}/{total} finished", flight, rates, lag]


def _rounded(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,g}"
