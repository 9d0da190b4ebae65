"""The self-test reports its traps right; times are shown and not judged, as the machine may be busy."""

from __future__ import annotations

import pytest

from loadgen.selftest import bias, traps


@pytest.mark.parametrize("trap", [traps.role_only_chunk, traps.tokens_per_chunk, traps.capped_overload])
def test_trap_is_reported_right(trap: object) -> None:
    check = trap()  # type: ignore[operator]
    assert check.ok, check.detail


def test_counts_agree_with_the_truth_and_times_are_reported() -> None:
    found = bias.measure_bias(rate=40, duration_s=1.5)
    assert found.complete
    assert "TTFT is off by" in found.render() and "counts agree" in found.render()
    assert 0 <= found.ttft_ms["p50"] <= found.ttft_ms["p99"]
