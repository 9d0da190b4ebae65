"""What the mock server is to do, and what it saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BEHAVIOURS = ("ok", "429", "500", "cut", "error", "malformed", "stall", "not_http", "no_done")


@dataclass(frozen=True, slots=True)
class Script:
    """What the server does with every completion. Times are seconds from the receipt of the request."""

    ttft_s: float = 0.05
    itl_s: float = 0.01
    tokens_per_chunk: int = 1
    token_text: str = " token"
    head_event_s: float | None = None  # an event without tokens (role only, or empty text) at this time
    reasoning_tokens: int = 0  # so many first tokens of a chat are reasoning
    comments: bool = False  # a comment before every event
    line_end: str = "\n"
    split_bytes: int | None = None  # write every event in pieces of so many bytes, 1 ms apart
    merge_events: int = 1  # events written together
    usage: bool = True
    running_usage: bool = False
    token_ids: bool = False
    capacity: int | None = None  # requests served at once; others wait, as in a server's queue
    max_model_len: int = 131072
    metrics: bool = True  # there is /metrics
    close_on_reuse: bool = False  # close a connection, unanswered, when a second request comes over it
    slow_read_s: float = 0.0  # read nothing more from a connection for so long after it opened
    retry_after_s: int | None = None  # sent with a 429
    behaviour: str = "ok"
    misbehave_every: int = 1  # the behaviour is for every so-many-th request; others are ok

    @property
    def is_plain(self) -> bool:
        """Whether all chunks of so many tokens are the same bytes, each written at once."""
        return self.merge_events == 1 and not (
            self.split_bytes or self.running_usage or self.reasoning_tokens
        )


@dataclass(slots=True)
class Truth:
    """One request as the server saw it; times are `time.monotonic_ns()`."""

    body: dict[str, Any]
    headers: dict[str, str]
    received_ns: int
    first_token_ns: int = 0
    token_times_ns: list[int] = field(default_factory=list)
