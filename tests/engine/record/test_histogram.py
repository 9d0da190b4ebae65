from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.record.histogram import (
    REQUEST_SECONDS,
    SEQUENCE_COUNTS,
    TOKEN_COUNTS,
    TOKEN_SECONDS,
    Histogram,
    quantile,
)
from tests.support.examples import examples

BOUNDS = (0.001, 0.5, 1.0, 7.0)
values_lists = st.lists(st.floats(0, 10) | st.sampled_from(BOUNDS), max_size=50)


def counts_by_definition(values: list[float]) -> list[int]:
    edges = [-np.inf, *BOUNDS, np.inf]
    return [sum(low < value <= high for value in values) for low, high in pairwise(edges)]


@examples(60)
@given(values_lists, values_lists)
def test_single_and_many_observations_fill_the_buckets_they_fall_in(
    one: list[float], many: list[float]
) -> None:
    histogram = Histogram(BOUNDS)
    for value in one:
        histogram.observe(value)
    histogram.observe_many(np.array(many))
    assert histogram.counts == counts_by_definition(one + many)
    assert histogram.count == len(one) + len(many)
    np.testing.assert_allclose(histogram.sum, sum(one) + sum(many))


def test_bounds_ascend_and_resolve_a_step_of_a_millisecond() -> None:
    for bounds in (TOKEN_SECONDS, REQUEST_SECONDS, TOKEN_COUNTS, SEQUENCE_COUNTS):
        assert list(bounds) == sorted(set(bounds))
    assert sum(bound <= 0.003 for bound in TOKEN_SECONDS) >= 4
    assert REQUEST_SECONDS[0] == 0.001


@given(values_lists, st.sampled_from((0.0, 0.01, 0.5, 0.9, 0.99, 1.0)))
@examples(60)
def test_a_quantile_lies_in_the_bucket_of_the_value_that_it_estimates(values: list[float], q: float) -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe_many(np.array(values))
    estimate = quantile(histogram.bounds, histogram.counts, q)
    if not values:
        assert estimate is None
        return
    exact = sorted(values)[max(0, int(np.ceil(q * len(values))) - 1)]
    bucket = int(np.searchsorted(BOUNDS, exact))
    limits = [0.0, *BOUNDS, BOUNDS[-1]]
    assert estimate is not None and limits[bucket] <= estimate <= limits[bucket + 1]


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    assert quantile((10.0, 20.0), [0, 4, 0], 0.5) == 15.0
    assert quantile((10.0, 20.0), [1, 1, 0], 0.25) == 5.0
    assert quantile((10.0, 20.0), [0, 0, 3], 0.5) == 20.0
