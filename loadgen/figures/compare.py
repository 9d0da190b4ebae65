"""Runs side by side, with how sure one can be that they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loadgen.figures.percentiles import SHARES, interval, resample
from loadgen.record import RequestResult, Run

Measure = Callable[[RequestResult], float | None]

MEASURES: dict[str, Measure] = {
    "ttft_from_due": lambda result: result.since_due(result.first_token_ns),
    "tpot": lambda result: result.time_per_output_token_ns(),
    "e2e_from_due": lambda result: result.since_due(result.end_ns),
}
MIN_SAMPLES = 20


def compare(base: Run, other: Run) -> dict[str, Any]:
    """Percentiles, in ms, of each measure in both runs, and their difference with a 95 % interval.

    Runs of the same schedule are paired: request by request, so that what differs between requests cancels.
    Others are compared as independent samples.
    """
    paired = _same_schedule(base, other)
    return {
        "base": base.name,
        "other": other.name,
        "paired": paired,
        "measures": {name: _compare_one(measure, base, other, paired) for name, measure in MEASURES.items()},
    }


def _same_schedule(base: Run, other: Run) -> bool:
    """Whether requests with the same index are the same: as long, and from the same row."""
    keys = [
        {r.index: (r.trace_row, r.input_tokens, r.output_tokens_asked) for r in run.results}
        for run in (base, other)
    ]
    common = keys[0].keys() & keys[1].keys()
    return (
        bool(common)
        and base.env["scheduled"] == other.env["scheduled"]
        and all(keys[0][index] == keys[1][index] for index in common)
    )


def _compare_one(measure: Measure, base: Run, other: Run, paired: bool) -> dict[str, Any] | None:
    """None if one of the runs has too few values."""
    before, after = _values_ms(measure, base), _values_ms(measure, other)
    if paired:
        common = sorted(before.keys() & after.keys())
        before, after = {i: before[i] for i in common}, {i: after[i] for i in common}
    left, right = np.array(list(before.values())), np.array(list(after.values()))
    if min(len(left), len(right)) < MIN_SAMPLES:
        return None
    rng = np.random.default_rng(0)
    places = resample(len(left), rng)
    drawn_left, drawn_right = left[places], right[places if paired else resample(len(right), rng)]
    rounds = min(len(drawn_left), len(drawn_right))
    figures: dict[str, Any] = {"n": [len(left), len(right)]}
    for name, share in SHARES.items():
        changes = np.quantile(drawn_right[:rounds], share, axis=1)
        changes = changes - np.quantile(drawn_left[:rounds], share, axis=1)
        figures[name] = _row(float(np.quantile(left, share)), float(np.quantile(right, share)), changes)
    changes = drawn_right[:rounds].mean(axis=1) - drawn_left[:rounds].mean(axis=1)
    figures["mean"] = _row(float(left.mean()), float(right.mean()), changes)
    return figures


def _row(base: float, other: float, changes: np.ndarray) -> dict[str, Any]:
    low, high = interval(changes)
    return {
        "base": base,
        "other": other,
        "change": other - base,
        "change_95": [low, high],
        "change_share": other / base - 1 if base else None,
        "differs": low > 0 or high < 0,
    }


def _values_ms(measure: Measure, run: Run) -> dict[int, float]:
    """By index, in order of due time, as neighbours are alike."""
    ordered: Sequence[RequestResult] = sorted(run.results, key=lambda result: result.intended_ns)
    values = {r.index: measure(r) for r in ordered if r.ok and not r.retried}
    return {index: value / 1e6 for index, value in values.items() if value is not None}
