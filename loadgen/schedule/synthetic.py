"""A made-up trace: random arrivals, lengths, and prefixes that groups of requests share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadgen.schedule.arrivals import Process, arrivals_ns
from loadgen.schedule.lengths import parse_lengths
from loadgen.schedule.rates import parse_rate
from loadgen.traces.records import Trace, TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticLoad:
    """What to make up; `rate` and the lengths are in the forms of `rates.py` and `lengths.py`."""

    process: Process = "poisson"
    rate: str = "1"
    burstiness: float = 1.0  # the shape of gamma and Weibull gaps
    requests: int | None = None
    duration_s: float | None = None
    input_tokens: str = "256"
    output_tokens: str = "64"
    prefix_tokens: int = 0  # the same at the start of all prompts of a group
    prefix_groups: int = 1
    seed: int = 0


def synthetic_trace(load: SyntheticLoad) -> Trace:
    """The same load always gives the same trace. Raises ValueError for a form that is wrong, or no arrival.

    Arrivals, lengths and groups have streams of their own, so that a change of one keeps the others.
    """
    if load.burstiness != 1 and load.process not in ("gamma", "weibull"):
        raise ValueError(f"--burstiness shapes gamma and weibull gaps, not {load.process} ones: --arrivals")
    if load.prefix_groups > 1 and not load.prefix_tokens:
        raise ValueError("--prefix-groups share --prefix-tokens, and none are asked for")
    arrival_rng, input_rng, output_rng, group_rng, rate_rng = (
        np.random.default_rng(seed) for seed in np.random.SeedSequence(load.seed).spawn(5)
    )
    times_ns = arrivals_ns(
        load.process,
        parse_rate(load.rate, load.duration_s, rate_rng, count=load.requests or 0),
        arrival_rng,
        shape=load.burstiness,
        count=load.requests,
        duration_s=load.duration_s,
    )
    count = len(times_ns)
    if not count:
        raise ValueError(f"rate {load.rate} brings no request within {load.duration_s:g} s")
    inputs = parse_lengths(load.input_tokens)(count, input_rng) + load.prefix_tokens
    outputs = parse_lengths(load.output_tokens)(count, output_rng)
    groups = group_rng.integers(load.prefix_groups, size=count)
    rows = [
        TraceRow(
            int(times_ns[place]),
            int(inputs[place]),
            int(outputs[place]),
            _hash_ids(place, int(inputs[place]), int(groups[place]), load),
        )
        for place in range(count)
    ]
    block_size = load.prefix_tokens or None
    return Trace("synthetic", f"{load.process} {load.rate}", rows, count, block_size=block_size)


def _hash_ids(place: int, input_tokens: int, group: int, load: SyntheticLoad) -> tuple[int, ...] | None:
    """Blocks as long as the prefix: the group's, then blocks that no other request has."""
    if not load.prefix_tokens:
        return None
    own = -(-input_tokens // load.prefix_tokens) - 1
    first = load.prefix_groups + place * 1_000_000
    return (group, *range(first, first + own))
