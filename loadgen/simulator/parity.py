"""Whether the scheduler decides in a simulation as it did live: a run's logs, replayed step by step.

What the live engine obeyed, planned and settled is put in the order of its recorded times and done again with
a scheduler of its own. Each plan is compared with the logged one. Only times and lengths are taken from the
logs; nothing is put right after a difference, so one may bring many more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from engine.config import SchedulerConfig
from engine.plan import StepPlan
from engine.record import RequestRecord, StepEntry
from engine.request import FinishReason, Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

_EOS = 0
_TOKEN = 1


@dataclass(slots=True)
class Parity:
    num_steps: int = 0
    num_equal: int = 0
    first_difference: str | None = None

    @property
    def share(self) -> float:
        return self.num_equal / self.num_steps if self.num_steps else 0.0


def check_parity(header: dict[str, Any], entries: list[StepEntry], records: list[RequestRecord]) -> Parity:
    """`header` and `entries` are of the step log, `records` of the event log of the same process.

    Sequences that the event log lacks (they had not ended) are missing here too and make differences.
    """
    return _Replay(SchedulerConfig(**header["config"]["limits"]), entries, records).run()


@dataclass(slots=True)
class _Live:
    """A recorded request, and which of its n sequences a sampled EOS ended."""

    record: RequestRecord
    request: Request
    ends_by_eos: bool


@dataclass(slots=True)
class _Replay:
    limits: SchedulerConfig
    entries: list[StepEntry]
    records: list[RequestRecord]
    parity: Parity = field(default_factory=Parity)
    _scheduler: Scheduler = field(init=False)
    _plans: dict[int, StepPlan | None] = field(init=False, default_factory=dict)
    _live: dict[int, tuple[_Live, int]] = field(init=False, default_factory=dict)  # by sequence id

    def run(self) -> Parity:
        self._scheduler = Scheduler(self.limits, frozenset({_EOS}), clock=lambda: 1)
        for _, _, act in sorted(self._events(), key=lambda event: event[:2]):
            act()
        return self.parity

    def _events(self) -> list[tuple[int, int, Callable[[], None]]]:
        """(time, order among equal times, what to do): a step is settled before what is obeyed after it."""
        events: list[tuple[int, int, Callable[[], None]]] = []
        ready = [entry.tokens_at_ns for entry in self.entries]
        for entry, ready_ns in zip(self.entries, ready, strict=True):
            events.append((ready_ns, 0, partial(self._settle, entry)))
            events.append((entry.scheduled_at_ns, 2, partial(self._plan, entry)))
        for record in self.records:
            if not record.queued_ns:
                continue
            step = bisect_left(ready, record.finished_ns) - 1  # the last one settled before the end
            settles = step >= 0 and record.finished_ns <= ready[step] + self.entries[step].commit_ns
            live = _Live(record, self._request(record), ends_by_eos=settles)
            events.append((record.queued_ns, 1, partial(self._add, live)))
            if not settles:
                events.append((record.finished_ns, 1, partial(self._end, live)))
        return events

    def _request(self, record: RequestRecord) -> Request:
        block_size = self.limits.block_size
        hashes = [block.to_bytes(6) for block in record.block_ids[: record.num_prompt_tokens // block_size]]
        request = Request(
            record.request_id,
            np.full(record.num_prompt_tokens, _TOKEN, dtype=np.int32),
            SamplingParams(max_tokens=record.max_tokens),
            hashes,
            RequestRecord(record.request_id),
            n=len(record.finish_reasons),
        )
        request.sequence_ids = tuple(record.sequence_ids)
        return request

    def _add(self, live: _Live) -> None:
        sequences = self._scheduler.add(live.request)
        output_ids = live.record.block_ids[len(live.request.block_hashes) :]
        for sequence in sequences:
            sequence.block_hashes += [block.to_bytes(6) for block in output_ids]
            self._live[sequence.sequence_id] = live, sequence.index

    def _end(self, live: _Live) -> None:
        """From outside: the client left, or the front end found a stop string."""
        if FinishReason.ABORT in live.record.finish_reasons:
            self._scheduler.abort(live.request.request_id)
        for sequence_id in live.request.sequence_ids:
            self._scheduler.finish(sequence_id, FinishReason.STOP)

    def _plan(self, entry: StepEntry) -> None:
        plan = self._plans[entry.step] = self._scheduler.schedule()
        self.parity.num_steps += 1
        expected = list(
            zip(entry.sequence_ids, entry.num_cached_tokens, entry.num_scheduled_tokens, strict=True)
        )
        scheduled = plan.scheduled if plan is not None else []
        planned = [(e.sequence.sequence_id, e.start, e.num_tokens) for e in scheduled]
        if planned == expected:
            self.parity.num_equal += 1
        elif self.parity.first_difference is None:
            odd = set(planned) ^ set(expected)
            self.parity.first_difference = (
                f"step {entry.step}: {len(planned)} sequences here, {len(expected)} live; "
                f"(sequence, start, tokens) in one alone: {sorted(odd)[:4]}"
            )

    def _settle(self, entry: StepEntry) -> None:
        plan = self._plans.pop(entry.step, None)
        if plan is not None:
            self._observe(plan, entry)
            tokens = [self._token(e.sequence.sequence_id, e.start + e.num_tokens) for e in plan.sampled]
            self._scheduler.commit(plan, tokens)

    def _observe(self, plan: StepPlan, entry: StepEntry) -> None:
        budget = self._scheduler.chunk_budget
        if budget is not None and entry.device_ns:
            budget.observe(len(plan.decodes), plan.num_prompt_tokens, entry.device_ns / 1e9)

    def _token(self, sequence_id: int, length: int) -> int:
        """EOS where the live sequence ended with one; `length` counts the tokens before this one."""
        live, index = self._live[sequence_id]
        record = live.record
        is_last = length + 1 - record.num_prompt_tokens == len(record.token_times_ns[index])
        by_token = live.ends_by_eos or len(record.finish_reasons) > 1
        if is_last and by_token and record.finish_reasons[index] == FinishReason.STOP:
            return _EOS
        return _TOKEN + index  # siblings of one prompt write different texts
