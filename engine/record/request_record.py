"""The times and counts of one request, from its arrival at the socket to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """All times are nanoseconds of `time.monotonic_ns()`; 0 means "has not happened".

    The front end writes `arrived_ns` and `tokenized_ns`; from `queued_ns` on the engine thread is the only
    writer. Others may read at any time: every field is a plain value or an append-only list.
    """

    request_id: str
    arrived_ns: int = 0
    tokenized_ns: int = 0
    queued_ns: int = 0
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    finished_ns: int = 0
    token_times_ns: list[list[int]] = field(default_factory=list)  # one list for each of the n sequences
    finish_reasons: list[str | None] = field(default_factory=list)  # likewise
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens read from the prefix cache at first admission
    num_preemptions: int = 0
    max_tokens: int | None = None
    sequence_ids: list[int] = field(default_factory=list)  # as the step log names them
    # One for each full block, in an event log only: equal ids mean equal tokens from the beginning to there.
    # They cover the prompt, and for n=1 the output too, so prefix sharing can be simulated without the text.
    block_ids: list[int] = field(default_factory=list)

    @property
    def num_generated_tokens(self) -> int:
        return sum(map(len, self.token_times_ns))
