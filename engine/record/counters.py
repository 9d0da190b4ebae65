"""Counters of a whole run, owned by the engine thread: plain numbers, so that counting costs next to nothing.

Any thread may read them at any time. Each number is right when it is read and never goes down.
"""

from __future__ import annotations

import numpy as np

from engine.record.histogram import REQUEST_SECONDS, SEQUENCE_COUNTS, TOKEN_COUNTS, TOKEN_SECONDS, Histogram
from engine.record.request_record import RequestRecord

FINISH_REASONS = ("stop", "length", "abort", "error")  # mildest first
NS_PER_SECOND = 1e9


class EngineCounters:
    def __init__(self) -> None:
        self.steps = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0  # in tokens, as hits
        self.prefix_cache_hits = 0
        self.finished_requests = dict.fromkeys(FINISH_REASONS, 0)

        self.step_tokens = Histogram(TOKEN_COUNTS)
        self.time_to_first_token = Histogram(REQUEST_SECONDS)
        self.inter_token_latency = Histogram(TOKEN_SECONDS)
        self.queue_time = Histogram(REQUEST_SECONDS)
        self.prefill_time = Histogram(REQUEST_SECONDS)
        self.decode_time = Histogram(REQUEST_SECONDS)
        self.inference_time = Histogram(REQUEST_SECONDS)
        self.request_latency = Histogram(REQUEST_SECONDS)
        self.request_prompt_tokens = Histogram(TOKEN_COUNTS)
        self.request_generation_tokens = Histogram(TOKEN_COUNTS)
        self.request_max_tokens = Histogram(TOKEN_COUNTS)
        self.request_n = Histogram(SEQUENCE_COUNTS)

    def on_admitted(
        self, num_prompt_tokens: int, num_cached_tokens: int, *, prefix_cache_queried: bool = True
    ) -> None:
        """A request was scheduled for the first time. Call it once per request, preempted or not."""
        self.prompt_tokens += num_prompt_tokens
        self.cached_prompt_tokens += num_cached_tokens
        if prefix_cache_queried:
            self.prefix_cache_queries += num_prompt_tokens
            self.prefix_cache_hits += num_cached_tokens

    def on_step(self, num_scheduled_tokens: int, num_generated_tokens: int, num_preempted: int = 0) -> None:
        """A step was committed: it computed so many tokens and gave its sequences so many new ones."""
        self.steps += 1
        self.step_tokens.observe(num_scheduled_tokens)
        self.generation_tokens += num_generated_tokens
        self.preemptions += num_preempted

    def on_finished(self, record: RequestRecord) -> None:
        """The last sequence of a request ended, or the request was aborted; call it once per request."""
        self.finished_requests[finish_reason(record)] += 1
        self._observe_times(record)
        self.request_prompt_tokens.observe(record.num_prompt_tokens)
        self.request_generation_tokens.observe(record.num_generated_tokens)
        self.request_n.observe(len(record.finish_reasons))
        if record.max_tokens is not None:
            self.request_max_tokens.observe(record.max_tokens)

    def _observe_times(self, record: RequestRecord) -> None:
        """Phases that the request never reached are left out, so an abort in the queue counts for none."""
        for histogram, start_ns, end_ns in (
            (self.queue_time, record.queued_ns, record.first_scheduled_ns),
            (self.time_to_first_token, record.arrived_ns, record.first_token_ns),
            (self.prefill_time, record.first_scheduled_ns, record.first_token_ns),
            (self.decode_time, record.first_token_ns, record.finished_ns),
            (self.inference_time, record.first_scheduled_ns, record.finished_ns),
            (self.request_latency, record.arrived_ns, record.finished_ns),
        ):
            if start_ns and end_ns:
                histogram.observe((end_ns - start_ns) / NS_PER_SECOND)
        for times_ns in record.token_times_ns:
            self.inter_token_latency.observe_many(
                np.diff(np.asarray(times_ns, dtype=np.int64)) / NS_PER_SECOND
            )


def finish_reason(record: RequestRecord) -> str:
    """One word for a request whose n sequences may have ended in different ways: the gravest of theirs."""
    reasons = [reason or "abort" for reason in record.finish_reasons] or ["abort"]
    return max(reasons, key=FINISH_REASONS.index)
