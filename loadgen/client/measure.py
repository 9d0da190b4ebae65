"""From one finished exchange to the numbers of one request.

TTFT is taken from the first event that carries a generated token; role-only, empty, comment and usage-only
events never count. Latencies have two origins, kept apart: when the request was due, which is what a user of
an open system waits from, and when its bytes left, which leaves out what the client itself delayed.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

import orjson

from loadgen.client.connection import Exchange
from loadgen.client.stream import Stream, read_stream
from loadgen.record.result import RequestResult
from loadgen.schedule import ScheduledRequest


def measure(request: ScheduledRequest, request_id: str, exchange: Exchange, start_ns: int) -> RequestResult:
    """Read what came back and time it from `start_ns`, the start of the run on the monotonic clock."""
    response = exchange.response
    result = RequestResult(
        index=request.index,
        request_id=request_id,
        trace_row=request.trace_row,
        request_class=request.request_class,
        session=request.session,
        turn=request.turn,
        intended_ns=exchange.due_ns - start_ns,
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
        attempt=exchange.attempt,
        retried=exchange.retried,
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
    result.chunk_bytes = array("q", stream.sizes)
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
