"""Writes down what happens to each request and step: records, counters, logs. Engine thread only."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.committed import CommittedStep
from engine.plan import StepPlan
from engine.record import EngineCounters, EventLog, RecentRequests, StepEntry, StepLog
from engine.request import NO_TOKEN, FinishReason, Request
from engine.sequence import Sequence

_BLOCK_ID_BYTES = 6  # of a block's hash: an integer that any JSON reader keeps exactly
_KEPT_NS = 50_000_000  # so long may the times of tokens stay out of their records


@dataclass(slots=True)
class Recorder:
    """One for an engine; the logs are optional."""

    counters: EngineCounters
    recent: RecentRequests
    event_log: EventLog | None = None
    step_log: StepLog | None = None
    # When the newest tokens of sequences that decode together came: at the same times for all of them.
    _decoding: list[Sequence] = field(default_factory=list)
    _times_ns: list[int] = field(default_factory=list)

    def queued(self, request: Request, now_ns: int) -> None:
        """A request has reached the engine thread."""
        record = request.record
        record.queued_ns = now_ns
        record.num_prompt_tokens = len(request.prompt_token_ids)
        record.max_tokens = request.params.max_tokens
        record.finish_reasons = [None] * request.n
        record.sequence_ids = list(request.sequence_ids)
        self.recent.add(record)

    def planned(self, plan: StepPlan) -> None:
        """Count the prompt of each request whose first chunk is in the plan."""
        for chunk in plan.chunks:
            sequence, record = chunk.sequence, chunk.sequence.request.record
            is_first = chunk.start == record.num_cached_tokens and record.num_preemptions == 0
            if is_first and sequence.index == 0:
                self.counters.on_admitted(
                    record.num_prompt_tokens,
                    record.num_cached_tokens,
                    prefix_cache_queried=sequence.params.prompt_logprobs is None,
                )

    def generated(self, step: CommittedStep, now_ns: int) -> None:
        """A step's tokens are known. Only the end of a prompt can have brought a first one, or none."""
        is_old = self._times_ns and now_ns - self._times_ns[0] > _KEPT_NS
        if is_old or step.decoded is not self._decoding:
            self._write_times()
        self._decoding = step.decoded
        self._times_ns.append(now_ns)
        for index in range(step.num_decodes, len(step)):
            if step.token_ids[index] != NO_TOKEN:
                sequence = step.sequences[index]
                sequence.token_times_ns.append(now_ns)
                record = sequence.request.record
                record.first_token_ns = record.first_token_ns or now_ns

    def _write_times(self) -> None:
        if self._times_ns:
            for sequence in self._decoding:
                sequence.token_times_ns.extend(self._times_ns)
            self._times_ns.clear()

    def ended(self, sequence: Sequence, reason: FinishReason, now_ns: int) -> None:
        """One of a request's sequences; with the last one the request is counted and logged."""
        self._write_times()
        record = sequence.request.record
        record.finish_reasons[sequence.index] = reason.value
        if None not in record.finish_reasons:
            record.finished_ns = now_ns
            self.counters.on_finished(record)
            if self.event_log is not None:
                hashes = sequence.block_hashes if sequence.request.n == 1 else sequence.request.block_hashes
                record.block_ids = [int.from_bytes(digest[:_BLOCK_ID_BYTES]) for digest in hashes]
                self.event_log.write(record)

    def stepped(self, plan: StepPlan, num_generated: int) -> None:
        """Before the step's tokens are told: who has received an answer must find it counted."""
        self.counters.on_step(plan.num_tokens, num_generated, plan.num_preempted)

    def timed(self, entry: StepEntry | None) -> None:
        """All times of a step are known: log it."""
        if self.step_log is not None and entry is not None:
            self.step_log.write(entry)

    def close(self) -> None:
        """Flush and close the logs."""
        for log in (self.event_log, self.step_log):
            if log is not None:
                log.close()


def entry_of_plan(
    plan: StepPlan, *, scheduled_at_ns: int, num_waiting: int, num_running: int, num_blocks_used: int
) -> StepEntry:
    """Take down a plan right after it was made, before another step moves the counters.

    Planning has already moved them: it counted this step's tokens as cached and as sampled those that will
    be. The latter are taken back here.
    """
    decodes, chunks = plan.decodes, plan.chunks
    starts = decodes.starts.tolist()
    return StepEntry(
        step=plan.step,
        scheduled_at_ns=scheduled_at_ns,
        num_waiting=num_waiting,
        num_running=num_running,
        num_blocks_used=num_blocks_used,
        num_preempted=plan.num_preempted,
        num_scheduled=plan.num_tokens,
        sequence_ids=decodes.group.sequence_ids + [chunk.sequence.sequence_id for chunk in chunks],
        num_tokens=(decodes.starts + 1).tolist()
        + [chunk.sequence.num_tokens - chunk.samples for chunk in chunks],
        num_cached_tokens=starts + [chunk.start for chunk in chunks],
        num_scheduled_tokens=[1] * len(decodes) + [chunk.num_tokens for chunk in chunks],
        is_prefill=[False] * len(plan.decodes) + [True] * len(plan.chunks),
    )
