from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate

import pytest

from loadgen.schedule import ScheduledRequest
from loadgen.simulator.capacity import Plan, smallest_fleet
from loadgen.simulator.fleet import Outcome
from loadgen.simulator.profile import FrontEndCosts, Line, Profile
from loadgen.simulator.routing import LeastLoaded, PrefixAffinity, RoundRobin
from loadgen.simulator.setting import Setting, simulate
from tests.support.simulation import make_profile, random_load


def outcomes_of(
    setting: Setting, load: list[ScheduledRequest], profile: Profile | None = None
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    simulate(profile or make_profile(), setting, load, 64, outcomes.append)
    return sorted(outcomes, key=lambda outcome: outcome.scheduled.index)


def hit_rate(outcomes: list[Outcome]) -> float:
    prompt_tokens = sum(outcome.scheduled.input_tokens for outcome in outcomes)
    return sum(outcome.record.num_cached_tokens for outcome in outcomes) / prompt_tokens


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded", "prefix-affinity"])
def test_every_request_is_answered_once_and_whole(routing: str) -> None:
    load = random_load(80, rate=100)
    outcomes = outcomes_of(Setting(replicas=3, routing=routing), load)
    assert [outcome.scheduled for outcome in outcomes] == load
    for outcome in outcomes:
        times = outcome.record.token_times_ns[0]
        assert len(times) == outcome.scheduled.output_tokens
        assert times == sorted(set(times)) and times[0] > outcome.scheduled.intended_ns
    assert len({outcome.replica for outcome in outcomes}) == 3


def test_affinity_finds_more_prefixes_than_taking_turns() -> None:
    load = random_load(120, rate=60)
    by_turns = hit_rate(outcomes_of(Setting(replicas=4, routing="round-robin"), load))
    by_prefix = hit_rate(outcomes_of(Setting(replicas=4, routing="prefix-affinity"), load))
    assert by_prefix > by_turns + 0.02


def test_routers_choose_as_they_say() -> None:
    turns, least, affinity = RoundRobin(), LeastLoaded(), PrefixAffinity()
    assert [turns.choose([0, 0, 0], []) for _ in range(4)] == [0, 1, 2, 0]
    assert least.choose([2, 1, 1], []) == 1 and least.choose([2, 1, 1], []) == 2
    owner = affinity.choose([0, 0, 0], [b"a", b"b"])
    assert affinity.choose([1, 1, 1], [b"a", b"b", b"c"]) == owner
    crowded = [0, 0, 0]
    crowded[owner] = 50
    assert affinity.choose(crowded, [b"a"]) != owner


def test_a_turn_waits_for_the_one_before_and_finds_its_blocks() -> None:
    first = ScheduledRequest(0, 0, 100, 40, 0, session="s")
    second = ScheduledRequest(
        1, 500_000_000, 200, 5, 1, previous=first, follows=True, continues=True, session="s", turn=1
    )
    before, after = outcomes_of(Setting(noise_seed=None), [first, second])
    delivery_ns = make_profile().front_end.delivery.ns(1)
    assert after.due_ns == before.record.finished_ns + delivery_ns + 500_000_000
    assert after.record.num_cached_tokens == 128  # 139 tokens were computed: eight blocks of 16


def test_prompts_of_one_instant_are_prepared_in_their_order() -> None:
    """One after the other: a short prompt does not overtake the long ones before it."""
    before = Line(0.001, 1e-5)
    profile = replace(make_profile(), front_end=FrontEndCosts(before=before))
    lengths = [600, 20, 300]
    burst = [ScheduledRequest(index, 0, length, 2, index) for index, length in enumerate(lengths)]
    ready_ns = [outcome.record.tokenized_ns for outcome in outcomes_of(Setting(), burst, profile)]
    assert ready_ns == list(accumulate(before.ns(length) for length in lengths))
    apart = [outcome.record.tokenized_ns for outcome in outcomes_of(Setting(replicas=3), burst, profile)]
    assert apart == [before.ns(length) for length in lengths]


def test_what_cannot_be_served_is_refused() -> None:
    profile = make_profile()
    too_long = ScheduledRequest(0, 0, profile.limits.max_model_len, 1, 0)
    assert [outcome.refused for outcome in outcomes_of(Setting(), [too_long])] == ["context_length"]
    flood = random_load(60, rate=10_000)
    served = Counter(outcome.refused for outcome in outcomes_of(Setting(admission_ttft_s=0.3), flood))
    assert served["http_429"] > 0 and served[None] > 0
    assert outcomes_of(Setting(), flood)[-1].refused is None


def test_the_same_seed_gives_the_same_run_and_noise_another() -> None:
    profile = make_profile()
    noisy = replace(profile.step.decode_only, noise=[0.8, 1.0, 1.2])
    profile = replace(profile, step=replace(profile.step, decode_only=noisy))
    load = random_load(20)

    def times(seed: int | None) -> list[list[int]]:
        outcomes = outcomes_of(Setting(noise_seed=seed), load, profile)
        return [outcome.record.token_times_ns[0] for outcome in outcomes]

    assert times(1) == times(1)
    assert times(1) != times(2) != times(None)


@pytest.mark.parametrize("needed", [1, 2, 3, 17, 64, 1000])
def test_the_smallest_fleet_is_found(needed: int) -> None:
    asked = []

    def evaluate_at(replicas: int) -> Plan:
        asked.append(replicas)
        return Plan(1.0, replicas, 0.95 if replicas >= needed else 0.5, 0, 0, 0, 0)

    plan = smallest_fleet(evaluate_at, 0.9)
    assert plan is not None and plan.replicas == needed
    assert len(asked) == len(set(asked)) <= 2 * needed.bit_length() + 1


def test_no_fleet_may_do() -> None:
    assert smallest_fleet(lambda replicas: Plan(1.0, replicas, 0.5, 0, 0, 0, 0), 0.9) is None
