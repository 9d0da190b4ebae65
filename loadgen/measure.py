"""From one finished exchange to the numbers of one request.

TTFT is taken from the first event that carries a generated token; role-only, empty, comment and usage-only
events never count. Latencies have two origins, kept apart: when the request was due, which is what a user of
an open system waits from, and when its bytes left, which leaves out what the client itself delayed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import orjson

from loadgen.client import Exchange
from loadgen.events import Stream, read_stream
from loadgen.schedule import ScheduledRequest


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """All times are nanoseconds from the start of the run; None means "has not happened"."""

    index: int
    request_id: str
    trace_row: int
    intended_ns: int
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
    token_method: str | None = None  # how output tokens were assigned to chunks, see `_count_tokens`
    status: int = 0  # HTTP; 0: no response
    failure: str | None = None
    detail: str = ""
    finish_reason: str | None = None
    done_marker: bool = False  # the stream ended with [DONE]
    reconnected: bool = False
    chunk_ns: array[int] = field(default_factory=lambda: array("q"))  # of each chunk that carries tokens
    chunk_tokens: array[int] = field(default_factory=lambda: array("q"))  # likewise

    @property
    def ok(self) -> bool:
        return self.failure is None

    def since_due(self, time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns - self.intended_ns

    def since_sent(self, time_ns: int | None) -> int | None:
        return None if time_ns is None or self.sent_ns is None else time_ns - self.sent_ns

    def time_per_output_token_ns(self) -> float | None:
        """(last - first) / (tokens behind the first chunk's); None if all came in the first chunk."""
        if self.first_token_ns is None or self.last_token_ns is None:
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

    def to_json(self) -> bytes:
        row = {name.name: getattr(self, name.name) for name in fields(self)}
        row |= {"chunk_ns": self.chunk_ns.tolist(), "chunk_tokens": self.chunk_tokens.tolist()}
        return orjson.dumps({"type": "request", **row})

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> RequestResult:
        values = {key: value for key, value in row.items() if key != "type"}
        return cls(**values | {key: array("q", values[key]) for key in ("chunk_ns", "chunk_tokens")})


def measure(request: ScheduledRequest, request_id: str, exchange: Exchange, start_ns: int) -> RequestResult:
    """Read what came back and time it from `start_ns`, the start of the run on the monotonic clock."""
    response = exchange.response
    result = RequestResult(
        index=request.index,
        request_id=request_id,
        trace_row=request.trace_row,
        intended_ns=request.intended_ns,
        input_tokens=request.input_tokens,
        output_tokens_asked=request.output_tokens,
        dispatched_ns=_relative(exchange.dispatched_ns, start_ns),
        sent_ns=_relative(exchange.sent_ns, start_ns),
        headers_ns=_relative(response.headers_ns, start_ns),
        first_byte_ns=_relative(response.first_byte_ns, start_ns),
        end_ns=_relative(exchange.end_ns, start_ns),
        connect_ns=exchange.connect_ns,
        status=response.status,
        failure=exchange.failure,
        detail=exchange.detail,
        reconnected=exchange.reconnected,
    )
    if response.status >= 300:
        if result.failure is None:
            result.failure, result.detail = f"http_{response.status}", _error_text(exchange.body())
    elif response.parts:
        stream = read_stream(response.parts, response.part_times_ns)
        _take_stream(result, stream, start_ns)
    if result.failure is None:
        result.failure = "no_tokens" if not result.chunk_ns else None
    return result


def _relative(time_ns: int, start_ns: int) -> int | None:
    return time_ns - start_ns if time_ns else None


def _error_text(body: bytes) -> str:
    """The message of an OpenAI-style error body, or the start of whatever the body is."""
    try:
        return str(orjson.loads(body)["error"]["message"])[:300]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace")


def _take_stream(result: RequestResult, stream: Stream, start_ns: int) -> None:
    counts, result.token_method = _count_tokens(stream)
    result.chunk_ns = array("q", [time_ns - start_ns for time_ns in stream.times_ns])
    result.chunk_tokens = array("q", counts)
    if result.chunk_ns:
        result.first_token_ns, result.last_token_ns = result.chunk_ns[0], result.chunk_ns[-1]
    if stream.first_content is not None:
        result.first_content_ns = result.chunk_ns[stream.first_content]
    total = stream.completion_tokens
    result.output_tokens = sum(counts) if total is None else total
    result.prompt_tokens = stream.prompt_tokens
    result.cached_tokens = stream.cached_tokens
    result.finish_reason = stream.finish_reason
    result.done_marker = stream.done
    if result.failure is not None:
        return
    if stream.error is not None:
        result.failure, result.detail = "error_in_stream", stream.error[:300]
    elif stream.malformed is not None:
        result.failure, result.detail = "malformed_sse", stream.malformed
    elif not stream.complete:
        result.failure, result.detail = "stream_cut", "neither [DONE] nor a finish reason"


def _count_tokens(stream: Stream) -> tuple[list[int], str | None]:
    """Tokens of each chunk, and the method, the best that the server's answers allow.

    running_usage: differences of the usage sent with each chunk. token_ids, logprobs: counted. usage: one a
    chunk, and the total agrees. usage_spread: the total shared evenly, since chunks hold several tokens or
    some tokens came without text. chunks: one a chunk is an assumption.
    """
    chunks, total = len(stream.times_ns), stream.completion_tokens
    if not chunks:
        return [], None
    if chunks > 1 and len(stream.running_usage) == chunks:
        return [after - before for before, after in pairwise([0, *stream.running_usage])], "running_usage"
    if len(stream.by_ids) == chunks:
        return stream.by_ids, "token_ids"
    if len(stream.by_logprobs) == chunks:
        return stream.by_logprobs, "logprobs"
    if total is None:
        return [1] * chunks, "chunks"
    if total == chunks:
        return [1] * chunks, "usage"
    each, extra = divmod(total, chunks)
    return [each + (place < extra) for place in range(chunks)], "usage_spread"
