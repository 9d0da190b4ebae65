"""Scheduling policies as data: who comes first, and what may share a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from engine.config import SchedulingPolicy
from engine.request import Request


class Stage(Enum):
    """The parts that a step is put together from."""

    DECODES = auto()  # one token of each running sequence whose prompt is done
    CHUNKS = auto()  # the next piece of each prompt that is running
    ADMISSIONS = auto()  # first pieces of waiting prompts


MIXED = ((Stage.DECODES, Stage.CHUNKS, Stage.ADMISSIONS),)
PROMPTS_ELSE_DECODES = ((Stage.CHUNKS, Stage.ADMISSIONS), (Stage.DECODES,))


@dataclass(frozen=True, slots=True)
class Policy:
    urgency: Callable[[Request], int]
    """Lower is admitted earlier and preempted later; among equals, arrival decides."""

    passes: tuple[tuple[Stage, ...], ...]
    """Tried in turn; the first whose stages find anything to compute makes the step."""


def _all_alike(request: Request) -> int:
    return 0


def _client_priority(request: Request) -> int:
    return request.priority


POLICIES: dict[SchedulingPolicy, Policy] = {
    "fcfs": Policy(_all_alike, MIXED),
    "prefill-first": Policy(_all_alike, PROMPTS_ELSE_DECODES),
    "priority": Policy(_client_priority, MIXED),
}
