"""Which part of a run shows the server in a steady state, and whether there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.record.result import RequestResult
from loadgen.schedule.request import NS_PER_S

BATCH = 5  # of MSER-5
MIN_BATCHES = 10
GROWTH_T = 3.0  # how many standard errors make a trend
GROWTH_SHARE = 0.5  # of the mean, over the run: less growth is not worth a word


def steady_state(results: Sequence[RequestResult]) -> dict[str, Any] | None:
    """The window [from_s, to_s) of due times that warm-up and drain leave; None for a run that is too short.

    The warm-up is cut where MSER-5 says (White, Simulation 69, 1997): where the mean of the remaining TTFTs,
    in batches of five, is known best. `steady` is false if that would cut more than half, or if the latency
    still grows after the cut, as it does when a server gets more than it can serve.
    """
    done = sorted(
        (result for result in results if result.ok and result.first_token_ns is not None),
        key=lambda result: result.intended_ns,
    )
    if len(done) < BATCH * MIN_BATCHES:
        return None
    due_s = np.array([result.intended_ns for result in done]) / NS_PER_S
    ttft_ms = np.array([result.since_due(result.first_token_ns) for result in done], dtype=float) / 1e6
    cut = _mser_cut(ttft_ms)
    growth = _growth_per_s(due_s[cut:], ttft_ms[cut:])
    return {
        "from_s": float(due_s[cut]),
        "to_s": float(due_s[-1]),
        "warmup_requests": cut,
        "ttft_growth_ms_per_s": growth,
        "steady": cut <= len(done) // 2 and growth is None,
    }


def _mser_cut(values: np.ndarray) -> int:
    """How many of the first values to leave out."""
    batches = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    left = np.arange(len(batches), 0, -1)
    sums, squares = batches[::-1].cumsum()[::-1], (batches**2)[::-1].cumsum()[::-1]
    errors = (squares - sums**2 / left) / left**2
    return int(np.argmin(errors[: len(batches) - BATCH])) * BATCH


def _growth_per_s(times_s: np.ndarray, values: np.ndarray) -> float | None:
    """The slope of a line through the values, if it is a trend that matters, else None."""
    centred = times_s - times_s.mean()
    spread = float((centred**2).sum())
    if len(values) < BATCH * MIN_BATCHES or spread == 0:
        return None
    slope = float((centred * values).sum()) / spread
    rest = values - values.mean() - slope * centred
    error = float(np.sqrt((rest**2).sum() / (len(values) - 2) / spread))
    grows = slope > GROWTH_T * error and slope * np.ptp(times_s) > GROWTH_SHARE * values.mean()
    return slope if grows else None


def tokens_per_s(results: Sequence[RequestResult], from_s: float, to_s: float) -> float | None:
    """Output tokens that came within the window, over its length."""
    if to_s <= from_s:
        return None
    low, high = from_s * NS_PER_S, to_s * NS_PER_S
    count = 0
    for result in results:
        times = np.array(result.chunk_ns)
        within = (times >= low) & (times < high)
        count += int(np.array(result.chunk_tokens)[within].sum()) if len(times) else 0
    return count / (to_s - from_s)
