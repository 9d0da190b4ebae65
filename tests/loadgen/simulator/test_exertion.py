"""What slows a device down is how long it computed prompts, not in how many steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.exertion import Exertion

MS = 1_000_000


@settings(deadline=None)
@given(st.lists(st.integers(1, 300 * MS), min_size=1, max_size=20), st.integers(0, 100 * MS))
def test_the_same_time_exerts_the_same_in_one_step_or_many(steps_ns: list[int], rest_ns: int) -> None:
    one, many, now_ns = Exertion(), Exertion(), MS
    one.add(now_ns, now_ns + sum(steps_ns))
    for step_ns in steps_ns:
        many.add(now_ns, now_ns + step_ns)
        now_ns += step_ns
        assert 0 <= many.before(now_ns) <= 1
    assert many.before(now_ns + rest_ns) == pytest.approx(one.before(now_ns + rest_ns))


def test_a_device_at_rest_forgets() -> None:
    exertion = Exertion()
    exertion.add(0, 1000 * MS)
    assert exertion.before(1000 * MS) == pytest.approx(1)
    assert 0 < exertion.before(1200 * MS) < exertion.before(1050 * MS) < 0.5
    assert exertion.before(2000 * MS) == 0
