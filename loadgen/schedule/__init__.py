"""The whole load, made before the first request is sent: who is due when, and how long."""

from loadgen.schedule.request import NS_PER_S, Schedule, ScheduledRequest

__all__ = ["NS_PER_S", "Schedule", "ScheduledRequest"]
