"""What the events of an OpenAI-style stream say: which carry generated tokens, how many, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.client.sse import split_events

OTHER_TOKENS = ("reasoning_content", "reasoning", "tool_calls")  # of a delta, beside content


@dataclass(slots=True)
class Stream:
    """All that a stream of one choice told.

    The first lists have one entry for each event that carries at least one generated token, but for those
    of counts, which are shorter where the server did not give them.
    """

    times_ns: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes of the event's data
    by_ids: list[int] = field(default_factory=list)  # lengths of `token_ids`
    by_logprobs: list[int] = field(default_factory=list)  # lengths of `logprobs`
    running_usage: list[int] = field(default_factory=list)  # `completion_tokens` of servers that repeat it
    first_content: int | None = None  # place in times_ns of the first event that is more than reasoning
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
    usual: UsualEvent | None = None
    part, part_end = 0, len(parts[0]) if parts else 0
    for data, end in split_events(b"".join(parts)):
        while end > part_end:
            part += 1
            part_end += len(parts[part])
        if usual is not None and usual.matches(data):
            stream.times_ns.append(part_times_ns[part])
            stream.sizes.append(len(data))
            continue
        if data.strip() == b"[DONE]":
            stream.done = True
            continue
        try:
            payload = orjson.loads(data)
            _read_payload(stream, payload, part_times_ns[part], len(data))
            usual = usual or UsualEvent.of(data, payload)
        except (ValueError, AttributeError, TypeError) as error:  # no JSON, or not of the expected shape
            stream.malformed = stream.malformed or f"{error}: {data[:80]!r}"
    return stream


@dataclass(frozen=True, slots=True)
class UsualEvent:
    """The bytes around the text of an event that holds text and nothing else of interest.

    Most events of a stream differ in their text alone. One that begins and ends with the same bytes, with
    some text that has neither quote nor escape between, says the same, and need not be parsed as JSON.
    """

    before: bytes
    after: bytes

    @classmethod
    def of(cls, data: bytes, payload: dict[str, Any]) -> UsualEvent | None:
        """None if the event says more than text, or it is not plain where the text stands."""
        choices = payload.get("choices") or []
        if len(choices) != 1 or payload.get("usage") or payload.get("error"):
            return None
        choice = choices[0]
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else delta.get("content")
        extras = [choice.get(name) for name in ("finish_reason", "token_ids", "logprobs")]
        if not text or any(extras) or (delta is not None and any(delta.get(name) for name in OTHER_TOKENS)):
            return None
        quoted = b'"' + text.encode() + b'"'
        if data.count(quoted) != 1 or b"\\" in data:
            return None
        start = data.index(quoted) + 1
        return cls(data[:start], data[start + len(quoted) - 2 :])

    def matches(self, data: bytes) -> bool:
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return False
        text = data[len(self.before) : len(data) - len(self.after)]
        return bool(text) and b'"' not in text and b"\\" not in text


def _read_payload(stream: Stream, payload: dict[str, Any], time_ns: int, size: int) -> None:
    error = payload.get("error")
    if error is not None:
        stream.error = str(error.get("message", error) if isinstance(error, dict) else error)
        return
    usage = payload.get("usage")
    if usage:
        _read_usage(stream, usage)
    for choice in payload.get("choices") or ():
        if choice.get("finish_reason"):
            stream.finish_reason = choice["finish_reason"]
        if _read_tokens(stream, choice):
            stream.times_ns.append(time_ns)
            stream.sizes.append(size)
            if usage and "completion_tokens" in usage:
                stream.running_usage.append(usage["completion_tokens"])


def _read_usage(stream: Stream, usage: dict[str, Any]) -> None:
    stream.prompt_tokens = usage.get("prompt_tokens", stream.prompt_tokens)
    stream.completion_tokens = usage.get("completion_tokens", stream.completion_tokens)
    details = usage.get("prompt_tokens_details") or {}
    stream.cached_tokens = details.get("cached_tokens", stream.cached_tokens)


def _read_tokens(stream: Stream, choice: dict[str, Any]) -> bool:
    """Whether the event carries a token; role only, empty text and finish reason only do not."""
    content, other = choice.get("text"), None
    delta = choice.get("delta")
    if delta:
        content = delta.get("content")
        other = next(filter(None, map(delta.get, OTHER_TOKENS)), None)
    token_ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if token_ids:
        stream.by_ids.append(len(token_ids))
    if logprobs:
        logprobs = logprobs.get("tokens") or logprobs.get("content")
        if logprobs:
            stream.by_logprobs.append(len(logprobs))
    if content and stream.first_content is None:
        stream.first_content = len(stream.times_ns)
    return bool(content or other or token_ids or logprobs)
