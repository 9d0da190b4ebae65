"""A closed loop: N users, each of whom sends the next request when the last one is answered."""

from __future__ import annotations

from dataclasses import replace

from loadgen.schedule.request import NS_PER_S, Schedule, ScheduledRequest


def close_loop(
    schedule: Schedule, users: int, *, think_time_s: float = 0.0, ramp_up_s: float = 0.0
) -> Schedule:
    """Give the requests of a schedule, in order, to `users`; their arrival times are left aside.

    The first request of each user is due within `ramp_up_s`, at even distances. The rate follows from how
    fast the server answers, so a closed loop can never show how long requests wait at a given rate.
    """
    chained: list[ScheduledRequest] = []
    for request in schedule.requests:
        place = len(chained)
        if place < users:
            due_ns = round(place * ramp_up_s * NS_PER_S / users)
            chained.append(replace(request, intended_ns=due_ns))
        else:
            think_ns = round(think_time_s * NS_PER_S)
            previous = chained[place - users]
            chained.append(replace(request, intended_ns=think_ns, previous=previous, follows=True))
    return replace(schedule, requests=chained)
