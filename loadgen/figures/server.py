"""What the server's own metrics say of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COUNTERS = ("preemptions", "prefix_hits", "prefix_queries", "prompt_tokens", "generation_tokens")
GAUGES = ("running", "waiting", "kv_usage")


def server_figures(scrapes: Sequence[dict[str, Any]], client_ttft_ms: float | None) -> dict[str, Any] | None:
    """Largest gauges, growth of counters, and its mean TTFT beside the client's; None without scrapes.

    The difference is what stands between server and client: the network, or an event loop.
    """
    if len(scrapes) < 2:
        return None
    first, last = scrapes[0], scrapes[-1]
    grown = {name: last[name] - first[name] for name in COUNTERS if name in first and name in last}
    figures: dict[str, Any] = {
        "scrapes": len(scrapes),
        **{f"max_{name}": max(row[name] for row in scrapes) for name in GAUGES if name in first},
        **grown,
        "prefix_hit_rate": _ratio(grown.get("prefix_hits"), grown.get("prefix_queries")),
        "ttft_mean_ms": None,
        "client_ttft_mean_ms": client_ttft_ms,
    }
    if "ttft_count" in first and last.get("ttft_count", 0) > first["ttft_count"]:
        seconds = last["ttft_sum_s"] - first["ttft_sum_s"]
        figures["ttft_mean_ms"] = 1000 * seconds / (last["ttft_count"] - first["ttft_count"])
    return figures


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
