"""Whether a server takes a request at all, by what its queue would make of the time to the first token."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.schedule import ScheduledRequest
from loadgen.simulator.profile import Profile, max_step_rows
from loadgen.simulator.replica import Replica
from loadgen.simulator.step_model import StepTimer
from loadgen.simulator.step_shape import StepShape

Admission = Callable[[Replica, ScheduledRequest], bool]

_PROBE_ROWS = 2048


def admit_all(replica: Replica, request: ScheduledRequest) -> bool:
    return True


def admit_within(profile: Profile, ttft_s: float) -> Admission:
    """Refuse a request if the prompts before it and its own take longer than `ttft_s` to compute.

    It is the estimate that a server could make: prompt tokens over the speed of prompts that run alone.
    """
    limits = profile.limits
    rows = min(_PROBE_ROWS, limits.max_num_batched_tokens)
    timer = StepTimer(profile.step, max_rows=max_step_rows(limits))
    tokens_per_s = rows / timer.seconds(StepShape(0, 0, 1, rows, rows * rows // 2))

    def admits(replica: Replica, request: ScheduledRequest) -> bool:
        return (replica.prompt_backlog + request.input_tokens) / tokens_per_s <= ttft_s

    return admits
