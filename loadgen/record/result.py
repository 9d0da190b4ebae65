"""What became of one request: a line of `events.jsonl`, the same for a live run and a simulated one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """All times are nanoseconds from the start of the run; None means "has not happened".

    The three lists have an entry for each chunk that carries at least one generated token.
    """

    index: int
    request_id: str
    trace_row: int
    request_class: str = ""
    session: str | None = None
    turn: int = 0
    intended_ns: int  # when it was due
    dispatched_ns: int | None = None  # the pacer released it
    sent_ns: int | None = None  # its bytes were handed to the socket
    headers_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    first_content_ns: int | None = None  # as first_token_ns, but reasoning and tool calls do not count
    last_token_ns: int | None = None
    end_ns: int | None = None
    connect_ns: int = 0  # a duration: opening a connection for it
    input_tokens: int = 0  # as scheduled
    output_tokens_asked: int = 0
    prompt_tokens: int | None = None  # as the server counts
    output_tokens: int = 0
    cached_tokens: int | None = None
    token_method: str | None = None  # how output tokens were assigned to chunks, see client/measure.py
    status: int = 0  # HTTP; 0: no response
    failure: str | None = None
    detail: str = ""
    finish_reason: str | None = None
    done_marker: bool = False  # the stream ended with [DONE]
    reconnected: bool = False
    attempt: int = 0  # latencies of all run from the due time of the first
    retried: bool = False  # a later attempt took its place; figures leave this one out
    worker: int = 0
    chunk_ns: array[int] = field(default_factory=lambda: array("q"))
    chunk_tokens: array[int] = field(default_factory=lambda: array("q"))
    chunk_bytes: array[int] = field(default_factory=lambda: array("q"))  # of the event's data

    @property
    def ok(self) -> bool:
        return self.failure is None

    def since_due(self, time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns - self.intended_ns

    def since_sent(self, time_ns: int | None) -> int | None:
        return None if time_ns is None or self.sent_ns is None else time_ns - self.sent_ns

    def time_per_output_token_ns(self) -> float | None:
        """(last - first) / (tokens behind the first chunk's); None if all came in the first chunk."""
        if self.first_token_ns is None or self.last_token_ns is None or not self.chunk_tokens:
            return None
        later = self.output_tokens - self.chunk_tokens[0]
        return (self.last_token_ns - self.first_token_ns) / later if later > 0 else None

    def chunk_gaps_ns(self) -> list[int]:
        return [after - before for before, after in pairwise(self.chunk_ns)]

    def token_gaps_ns(self) -> Iterator[tuple[float, int]]:
        """(inter-token latency, tokens it holds for): a chunk's gap is shared by the k tokens it brings."""
        gap = 0
        for chunk_gap, tokens in zip(self.chunk_gaps_ns(), self.chunk_tokens[1:], strict=False):
            gap += chunk_gap
            if tokens:
                yield gap / tokens, tokens
                gap = 0

    def to_row(self) -> dict[str, Any]:
        """All but the chunks, which go to `chunks.bin`."""
        return {name: getattr(self, name) for name in ROW_FIELDS}

    @classmethod
    def from_row(
        cls, row: dict[str, Any], chunks: tuple[array[int], array[int], array[int]]
    ) -> RequestResult:
        """Raises TypeError for a row with other fields."""
        return cls(chunk_ns=chunks[0], chunk_tokens=chunks[1], chunk_bytes=chunks[2], **row)


ROW_FIELDS = tuple(item.name for item in fields(RequestResult) if not item.name.startswith("chunk_"))
