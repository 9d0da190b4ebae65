"""When to plan the next step: as late as the device allows, so that it holds the newest arrivals.

A step that is launched early waits behind the one that runs; a prompt that comes meanwhile waits for both.
So the next step is planned shortly before the running one is expected to end.
"""

from __future__ import annotations

from collections import deque

from engine.chunk_budget import ChunkBudget

_LEAST_STEP_S = 0.002  # shorter steps gain less than a late wake-up costs
_TRUST = 0.9  # in the expected end: being late leaves the device idle, being early costs an arrival little
_WEIGHT = 0.2  # of the newest step in the running average
_NUM_RECENT = 32  # steps, among which some were not held up
_MOST = 8  # times the quickest of them: what takes longer waits for room in the full queue of a busy device


class Pacer:
    """Expects steps to take what the chunk budget has learnt; leaves room for planning and launching."""

    def __init__(self, budget: ChunkBudget) -> None:
        self._budget = budget
        self._host_s = 0.001
        self._recent_s: deque[float] = deque(maxlen=_NUM_RECENT)

    def observe(self, host_s: float) -> None:
        """Planning and launching a step took so long."""
        self._recent_s.append(host_s)
        bounded_s = min(host_s, _MOST * min(self._recent_s))
        self._host_s += _WEIGHT * (bounded_s - self._host_s)

    def slack_s(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """How long after the beginning of a step the next one need not be planned yet; may be negative."""
        step_s = self._budget.expected_s(num_decodes, num_prompt_tokens)
        if step_s < _LEAST_STEP_S:
            return 0.0
        return _TRUST * step_s - 2 * self._host_s
