"""Random arrivals have the distribution that was asked for, at a rate that may change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.figures.load import dispersion
from loadgen.schedule.arrivals import Process, arrivals_ns, unit_gaps
from loadgen.schedule.lengths import parse_lengths
from loadgen.schedule.rates import parse_rate
from loadgen.schedule.synthetic import SyntheticLoad, synthetic_trace
from tests.support.examples import examples


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def distance_from_exponential(gaps: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of gaps from an exponential distribution of their mean."""
    expected = 1 - np.exp(-np.sort(gaps) / gaps.mean())
    places = np.arange(len(gaps) + 1) / len(gaps)
    return float(max((places[1:] - expected).max(), (expected - places[:-1]).max()))


def test_poisson_arrivals_are_poisson() -> None:
    times = arrivals_ns("poisson", parse_rate("50", None, rng()), rng(1), count=20_000)
    assert len(times) == 20_000 and (np.diff(times) >= 0).all()
    assert distance_from_exponential(np.diff(times)) < 1.63 / np.sqrt(20_000)  # the 1 % level
    assert dispersion(times) == pytest.approx(1, abs=0.2)
    assert 20_000 / (times[-1] / 1e9) == pytest.approx(50, rel=0.03)


@pytest.mark.parametrize(
    ("process", "shape", "variation"),
    [
        ("constant", 1.0, 0.0),
        ("gamma", 1.0, 1.0),
        ("gamma", 0.25, 2.0),
        ("gamma", 4.0, 0.5),
        ("weibull", 1.0, 1.0),
    ],
)
def test_gaps_have_mean_one_and_their_variation(process: Process, shape: float, variation: float) -> None:
    gaps = unit_gaps(process, shape, 100_000, rng())
    assert gaps.mean() == pytest.approx(1, abs=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.05)


@pytest.mark.parametrize(
    ("form", "by_quarter"),
    [
        ("40", [1000, 1000, 1000, 1000]),
        ("linear:20:60", [625, 875, 1125, 1375]),
        ("step:10,30,50,70", [250, 750, 1250, 1750]),
        ("sine:40:20:100", [1318, 1318, 682, 682]),
    ],
)
def test_the_rate_is_followed(form: str, by_quarter: list[int]) -> None:
    times = arrivals_ns("poisson", parse_rate(form, 100, rng()), rng(2), duration_s=100)
    counts = np.histogram(times / 1e9, [0, 25, 50, 75, 100])[0]
    assert np.abs(counts - by_quarter).max() < 5 * np.sqrt(max(by_quarter))


@pytest.mark.parametrize("form", ["sine:10:8:20", "burst:2:40:5:1"])
def test_waves_and_bursts_go_on_for_all_requests(form: str) -> None:
    """Without a duration, too: the last two minutes of some ten vary as the first two do."""
    times = arrivals_ns("poisson", parse_rate(form, None, rng(), count=5000), rng(4), count=5000)
    last_s = times[-1] / 1e9
    assert last_s > 300
    for begin_s in (0, last_s - 121):
        per_second = np.histogram(times / 1e9, np.arange(begin_s, begin_s + 121))[0]
        assert per_second.var() / per_second.mean() > 2


def test_bursts_are_over_dispersed() -> None:
    times = arrivals_ns("poisson", parse_rate("burst:2:80:10:2", 600, rng()), rng(3), duration_s=600)
    spread = dispersion(times)
    assert spread is not None and spread > 5


@examples(60)
@given(
    form=st.sampled_from(["3", "linear:1:9", "exponential:1:9", "step:1,5", "sine:5:3:7", "burst:1:9:2:2"]),
    arrivals=st.floats(0, 60),
)
def test_a_rate_profile_is_inverted_exactly(form: str, arrivals: float) -> None:
    profile = parse_rate(form, 20, rng())
    at_s = float(profile.when(np.array([arrivals]))[0])
    assert profile.expected(at_s) == pytest.approx(arrivals, abs=1e-6)


@pytest.mark.parametrize("form", ["0", "-1", "x", "linear:1", "sine:1:2:3", "step:", "step:1,0", "inf"])
def test_wrong_rates_are_refused_with_the_forms(form: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_rate(form, 10, rng())


@pytest.mark.parametrize(
    ("form", "mean", "least", "most"),
    [
        ("128", 128, 128, 128),
        ("uniform:10:20", 15, 10, 20),
        ("normal:100:10", 100, 40, 160),
        ("lognormal:200:1.5", 200, 1, 10**6),
        ("exponential:50", 50, 1, 10**4),
    ],
)
def test_lengths_have_their_mean(form: str, mean: float, least: int, most: int) -> None:
    lengths = parse_lengths(form)(50_000, rng())
    assert lengths.mean() == pytest.approx(mean, rel=0.05)
    assert least <= lengths.min() and lengths.max() <= most


@pytest.mark.parametrize("form", ["0", "x", "uniform:1", "normal:1:2:3", "pareto:1"])
def test_wrong_lengths_are_refused_with_the_forms(form: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_lengths(form)


def test_a_seed_fixes_the_load_and_lengths_do_not_move_arrivals() -> None:
    load = SyntheticLoad(requests=200, input_tokens="uniform:10:90")
    assert synthetic_trace(load) == synthetic_trace(load)
    other = synthetic_trace(SyntheticLoad(requests=200, input_tokens="50"))
    assert [row.arrival_ns for row in other.rows] == [row.arrival_ns for row in synthetic_trace(load).rows]
    moved = synthetic_trace(SyntheticLoad(requests=200, input_tokens="50", seed=1))
    assert [row.arrival_ns for row in moved.rows] != [row.arrival_ns for row in other.rows]


def test_prefixes_are_shared_within_groups_only() -> None:
    load = SyntheticLoad(requests=60, input_tokens="uniform:1:200", prefix_tokens=64, prefix_groups=3)
    trace = synthetic_trace(load)
    ids = [row.hash_ids or () for row in trace.rows]
    assert {block[0] for block in ids} == {0, 1, 2}
    assert all(len(block) == -(-row.input_tokens // 64) for block, row in zip(ids, trace.rows, strict=True))
    own = [one for block in ids for one in block[1:]]
    assert len(own) == len(set(own)) > 60
