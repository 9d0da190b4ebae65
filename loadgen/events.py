"""What the events of an OpenAI-style stream say: which carry generated tokens, how many, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.sse import split_events


@dataclass(slots=True)
class TokenChunk:
    """One event that carries at least one generated token. Counts are None where the server gives none."""

    time_ns: int
    is_content: bool  # False for reasoning and tool calls
    by_ids: int | None  # from `token_ids`
    by_logprobs: int | None
    usage_so_far: int | None  # `usage.completion_tokens` of a server that reports it with every chunk


@dataclass(slots=True)
class Stream:
    """All that a stream of one choice told."""

    chunks: list[TokenChunk] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None  # an error event
    malformed: str | None = None  # why an event could not be read
    done: bool = False  # `[DONE]` was seen

    @property
    def complete(self) -> bool:
        return self.done or self.finish_reason is not None


def read_stream(parts: list[bytes], part_times_ns: list[int]) -> Stream:
    """Read a whole event stream. An event is given the time of the read that completed it."""
    stream = Stream()
    part, part_end = 0, len(parts[0]) if parts else 0
    for data, end in split_events(b"".join(parts)):
        while end > part_end:
            part += 1
            part_end += len(parts[part])
        if data.strip() == b"[DONE]":
            stream.done = True
            continue
        try:
            _read_payload(stream, orjson.loads(data), part_times_ns[part])
        except (ValueError, AttributeError, TypeError) as error:  # no JSON, or not of the expected shape
            stream.malformed = stream.malformed or f"{error}: {data[:80]!r}"
    return stream


def _read_payload(stream: Stream, payload: dict[str, Any], time_ns: int) -> None:
    if payload.get("error") is not None:
        error = payload["error"]
        stream.error = str(error.get("message", error) if isinstance(error, dict) else error)
        return
    usage = payload.get("usage") or {}
    if usage:
        _read_usage(stream, usage)
    for choice in payload.get("choices") or ():
        stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
        chunk = _token_chunk(choice, time_ns, usage.get("completion_tokens"))
        if chunk is not None:
            stream.chunks.append(chunk)


def _read_usage(stream: Stream, usage: dict[str, Any]) -> None:
    stream.prompt_tokens = usage.get("prompt_tokens", stream.prompt_tokens)
    stream.completion_tokens = usage.get("completion_tokens", stream.completion_tokens)
    details = usage.get("prompt_tokens_details") or {}
    stream.cached_tokens = details.get("cached_tokens", stream.cached_tokens)


def _token_chunk(choice: dict[str, Any], time_ns: int, usage_so_far: int | None) -> TokenChunk | None:
    """The chunk of an event, or None if it carries no token: role only, empty text, finish reason only."""
    delta = choice.get("delta") or {}
    content = choice.get("text") or delta.get("content")
    other = delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
    by_ids = len(choice.get("token_ids") or ()) or None
    logprobs = choice.get("logprobs") or {}
    by_logprobs = len(logprobs.get("tokens") or logprobs.get("content") or ()) or None
    if not (content or other or by_ids or by_logprobs):
        return None
    return TokenChunk(time_ns, bool(content), by_ids, by_logprobs, usage_so_far)
