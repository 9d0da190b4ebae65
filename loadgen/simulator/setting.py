"""What is simulated: a profile with its limits changed, replicas, a router and an admission rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from loadgen.run.status_lines import StatusLines
from loadgen.schedule import ScheduledRequest
from loadgen.simulator.admission import admit_all, admit_within
from loadgen.simulator.fleet import Fleet, Outcome
from loadgen.simulator.profile import Profile
from loadgen.simulator.routing import ROUTERS


@dataclass(frozen=True, slots=True)
class Setting:
    replicas: int = 1
    routing: str = "round-robin"
    limits: dict[str, Any] = field(default_factory=dict)  # changes to the profile's `SchedulerConfig`
    pipeline_depth: int | None = None
    admission_ttft_s: float | None = None
    noise_seed: int | None = 0  # None: steps of one shape all take the same time

    def applied_to(self, profile: Profile) -> Profile:
        """Raises `ConfigError`, when a replica is made, for limits that no scheduler can keep."""
        return replace(
            profile,
            limits=replace(profile.limits, **self.limits),
            pipeline_depth=self.pipeline_depth or profile.pipeline_depth,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def simulate(
    profile: Profile,
    setting: Setting,
    requests: list[ScheduledRequest],
    trace_block_size: int | None,
    on_outcome: Callable[[Outcome], None],
) -> Fleet:
    """Send the requests to the setting's replicas; returns them as they are after the last request."""
    profile = setting.applied_to(profile)
    limit_s = setting.admission_ttft_s
    status, done = StatusLines(), count(1)

    def tell(outcome: Outcome) -> None:
        on_outcome(outcome)
        so_far = next(done)
        status.update(lambda _: [f"{so_far} of {len(requests)} requests, {setting.replicas} replica(s)"])

    fleet = Fleet(
        profile,
        setting.replicas,
        ROUTERS[setting.routing](),
        tell,
        trace_block_size=trace_block_size,
        admission=admit_all if limit_s is None else admit_within(profile, limit_s),
        noise_seed=setting.noise_seed,
    )
    with status:
        fleet.run(requests)
    return fleet
