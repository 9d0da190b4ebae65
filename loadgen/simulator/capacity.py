"""How many replicas a load takes: the smallest fleet that meets the objective often enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from loadgen.figures.objectives import Objective
from loadgen.schedule import ScheduledRequest
from loadgen.simulator.fleet import Outcome
from loadgen.simulator.profile import Profile
from loadgen.simulator.results import result_of
from loadgen.simulator.setting import Setting, simulate

MOST_REPLICAS = 4096


@dataclass(slots=True)
class Tally:
    """Counts a run without keeping it, so that a million requests fit in memory."""

    objective: Objective
    requests: int = 0
    good: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        result = result_of(outcome)
        self.requests += 1
        self.good += all(self.objective.met(result).values())
        if result.first_token_ns is not None:
            self.ttft_s.append((result.first_token_ns - result.intended_ns) / 1e9)
        tpot_ns = result.time_per_output_token_ns()
        if tpot_ns is not None:
            self.tpot_s.append(tpot_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Plan:
    """One size of the fleet under one load, and what it gives."""

    rate: float  # requests per second
    replicas: int
    attainment: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    utilization: float  # share of the time that the devices were busy


def evaluate(
    profile: Profile,
    setting: Setting,
    requests: list[ScheduledRequest],
    trace_block_size: int | None,
    objective: Objective,
) -> Plan:
    tally = Tally(objective)
    fleet = simulate(profile, setting, requests, trace_block_size, tally.add)
    span_s = max(replica.now_ns for replica in fleet.replicas) / 1e9
    busy_s = sum(replica.counts.busy_ns for replica in fleet.replicas) / 1e9
    due_s = max(requests[-1].intended_ns / 1e9, 1e-9)
    ttft, tpot = np.array(tally.ttft_s or [np.inf]), np.array(tally.tpot_s or [0.0])
    return Plan(
        rate=len(requests) / due_s,
        replicas=setting.replicas,
        attainment=tally.good / tally.requests,
        ttft_p50_s=float(np.percentile(ttft, 50)),
        ttft_p99_s=float(np.percentile(ttft, 99)),
        tpot_p50_s=float(np.percentile(tpot, 50)),
        utilization=busy_s / (span_s * setting.replicas),
    )


def smallest_fleet(evaluate_at: Callable[[int], Plan], target: float, first: int = 1) -> Plan | None:
    """The plan with the fewest replicas whose attainment reaches `target`; None if even the most do not.

    Brackets by doubling from `first`, then halves the bracket. Takes attainment to grow with replicas.
    """
    plans: dict[int, Plan] = {}

    def reaches(replicas: int) -> bool:
        plans[replicas] = plans.get(replicas) or evaluate_at(replicas)
        return plans[replicas].attainment >= target

    low, high = 0, first
    while not reaches(high):
        if high >= MOST_REPLICAS:
            return None
        low, high = high, min(2 * high, MOST_REPLICAS)
    while high - low > 1:
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return plans[high]


def plans_by_rate(
    profile: Profile,
    setting: Setting,
    loads: Iterable[list[ScheduledRequest]],
    trace_block_size: int | None,
    objective: Objective,
    target: float,
) -> Iterator[Plan | None]:
    """The smallest fleet for each load, which are of growing rates: each search begins at the last result."""

    def evaluate_at(requests: list[ScheduledRequest], replicas: int) -> Plan:
        return evaluate(profile, replace(setting, replicas=replicas), requests, trace_block_size, objective)

    first = setting.replicas
    for requests in loads:
        plan = smallest_fleet(partial(evaluate_at, requests), target, first)
        first = plan.replicas if plan else first
        yield plan
