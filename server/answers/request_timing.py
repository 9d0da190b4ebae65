"""How long one request took, for its answer: under the names that vLLM gave them."""

from __future__ import annotations

from engine.record import RequestRecord

NAMES = (
    "time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms", "tokens_per_second",
)  # fmt: skip


def timing_object(record: RequestRecord, num_tokens: int) -> dict[str, float | None]:
    """Of a request with one continuation, which got `num_tokens` tokens; null for what never happened.

    The time to the first token begins when the request arrived, not when it was scheduled.
    """
    times = record.token_times_ns[0][:num_tokens] if record.token_times_ns else []
    if not times:
        return dict.fromkeys(NAMES)
    generation_ns = times[-1] - times[0]
    return {
        "time_to_first_token_ms": (times[0] - record.arrived_ns) / 1e6,
        "queue_time_ms": (record.first_scheduled_ns - record.queued_ns) / 1e6,
        "generation_time_ms": generation_ns / 1e6,
        "mean_itl_ms": generation_ns / (len(times) - 1) / 1e6 if len(times) > 1 else None,
        "tokens_per_second": len(times) / (times[-1] - record.first_scheduled_ns) * 1e9,
    }
