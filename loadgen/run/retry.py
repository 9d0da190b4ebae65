"""Which failures are worth another attempt, and when."""

from __future__ import annotations

from loadgen.client import Exchange
from loadgen.schedule import NS_PER_S

STATUSES = frozenset({408, 429, 500, 502, 503, 504})
FAILURES = frozenset({"connect", "connect_refused", "tls", "stream_cut"})
FIRST_DELAY_S = 0.5  # doubled with each attempt, where the server names none


def retry_delay_ns(exchange: Exchange) -> int | None:
    """How long after its end to try again; None if the request succeeded, or failed for good."""
    status = exchange.response.status
    if status not in STATUSES and exchange.failure not in FAILURES:
        return None
    asked = exchange.response.headers.get("retry-after", "")
    delay_s = float(asked) if asked.isdecimal() else FIRST_DELAY_S * 2**exchange.attempt
    return round(delay_s * NS_PER_S)
