"""What the events of an OpenAI-style stream say: which carry generated tokens, how many, and how it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson

from loadgen.client.sse import split_events

FRAME_BYTES = len(b"data: \n\n")
BACKSLASH = b"\\"
SPECIAL = re.compile(rb'["\\]')
INSIDE_STRING = re.compile(rb'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})+')
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
    start = end = 0  # of the parts that have been looked at, but for the end of an event
    while end < len(parts):
        if usual is not None and start == end:
            end = usual.end_of_run(parts, start)
            stream.times_ns += part_times_ns[start:end]
            stream.sizes += [len(part) - FRAME_BYTES for part in parts[start:end]]
            start = end
        end += 1
        if end >= len(parts) or parts[end - 1].endswith(b"\n\n"):
            usual = _read_events(stream, parts[start:end], part_times_ns[start:end], usual)
            start = end
    return stream


def _read_events(
    stream: Stream, parts: list[bytes], part_times_ns: list[int], usual: UsualEvent | None
) -> UsualEvent | None:
    """Read all events of some parts. Returns what most events behind them will look like."""
    reads = zip(accumulate(map(len, parts)), part_times_ns, strict=True)
    read_end = time_ns = 0
    for data, end in split_events(b"".join(parts)):
        while end > read_end:
            read_end, time_ns = next(reads)
        if usual is not None and usual.matches(b"data: " + data + b"\n\n"):
            stream.times_ns.append(time_ns)
            stream.sizes.append(len(data))
            continue
        if data.strip() == b"[DONE]":
            stream.done = True
            continue
        try:
            payload = orjson.loads(data)
            _read_payload(stream, payload, time_ns, len(data))
            usual = UsualEvent.of(data, payload) or usual  # the latest: some servers count seconds in it
        except (ValueError, AttributeError, TypeError) as error:  # no JSON, or not of the expected shape
            stream.malformed = stream.malformed or f"{error}: {data[:80]!r}"
    return usual


@dataclass(frozen=True, slots=True)
class UsualEvent:
    """The bytes around the text of an event that holds text and nothing else of interest.

    Most events of a stream differ in their text alone. One that begins and ends with the same bytes, with
    the inside of a JSON string between, says the same, and need not be parsed.
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
        if data.count(quoted) != 1 or BACKSLASH in data:
            return None
        before, after = data.split(quoted)
        return cls(b"data: " + before + b'"', b'"' + after + b"\n\n")

    def matches(self, event: bytes) -> bool:
        """`event` from `data: ` to the blank line that ends it."""
        return self.end_of_run([event], 0) == 1

    def end_of_run(self, parts: list[bytes], start: int) -> int:
        """The place of the first part from `start` on that is not one such event."""
        before, after, end = self.before, self.after, start
        while end < len(parts) and parts[end].startswith(before) and parts[end].endswith(after):
            end += 1
        text_start, text_end = len(before), -len(after)
        texts = [part[text_start:text_end] for part in parts[start:end]]
        if b"" in texts or SPECIAL.search(b"".join(texts)):
            odd = (place for place, text in enumerate(texts, start) if not INSIDE_STRING.fullmatch(text))
            end = next(odd, end)
        return end


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
