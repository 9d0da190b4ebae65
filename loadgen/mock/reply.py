"""One scripted answer: a stream at absolute times, with the misbehaviour that the script asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from loadgen.mock.script import Script, Truth

_ENCODED: dict[tuple[Script, bool, int], bytes] = {}


class Reply:
    """Writes one stream at its scripted times, which are absolute and counted from `start`."""

    def __init__(
        self,
        script: Script,
        transport: asyncio.Transport,
        truth: Truth,
        *,
        chat: bool,
        behaviour: str,
        on_end: Callable[[], None],
    ) -> None:
        self._script, self._on_end = script, on_end
        self._transport, self._truth = transport, truth
        self._chat, self._behaviour = chat, behaviour
        self._total = truth.body.get("max_tokens") or 16
        self._sent = 0
        self._begun = self._ended = False
        self._buffered: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._begun = True
        if self._ended:  # the client went away while queued
            self._on_end()
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(head)
        self._start_s = self._loop.time()
        if self._script.head_event_s is not None:
            self._loop.call_at(self._start_s + self._script.head_event_s, self._event, self._choice("", 0))
        self._loop.call_at(self._start_s + self._script.ttft_s, self._tokens)

    def _tokens(self) -> None:
        """One chunk of tokens; then the next one is set for its own absolute time."""
        if self._ended:
            return
        count = min(self._script.tokens_per_chunk, self._total - self._sent)
        self._truth.token_times_ns += [time.monotonic_ns()] * count
        self._truth.first_token_ns = self._truth.first_token_ns or time.monotonic_ns()
        self._sent += count
        self._event(self._token_event(count))
        if self._sent >= self._total:
            self._finish()
        elif self._behaviour in ("ok", "no_done") or self._sent * 2 < self._total:
            later = self._script.ttft_s + self._script.itl_s * self._sent
            self._loop.call_at(self._start_s + later, self._tokens)
        else:
            self._misbehave()

    def _token_event(self, count: int) -> dict[str, Any] | bytes:
        """Encoded once for all requests where nothing in it changes, so that the mock is no bottleneck."""
        script = self._script
        if script.running_usage or script.reasoning_tokens:
            return self._choice(script.token_text * count, count)
        key = (script, self._chat, count)
        if key not in _ENCODED:
            _ENCODED[key] = orjson.dumps(self._choice(script.token_text * count, count))
        return _ENCODED[key]

    def _misbehave(self) -> None:
        """Half-way through the output."""
        if self._behaviour == "stall":
            return
        if self._behaviour == "error":
            self._event({"error": {"message": "as scripted", "type": "server_error"}})
            self._finish(finish_reason=False)
            return
        self._write(self._framed(b'data: {"choices": [{"te') if self._behaviour == "cut" else b"")
        if self._behaviour == "malformed":
            self._write(self._framed(b"data: {oops}\n\n"))
            self._finish()
            return
        self._transport.close()

    def end(self) -> None:
        """Free the capacity; called when the answer is complete, and when the client goes away."""
        if self._begun and not self._ended:
            self._on_end()
        self._ended = True

    def _finish(self, finish_reason: bool = True) -> None:
        self._flush()
        if finish_reason:
            self._event(self._choice("", 0) | {"choices": [self._ending()]})
            if self._script.usage:
                self._event({"choices": [], "usage": self._usage()})
        if self._behaviour != "no_done":
            self._buffered.append(f"data: [DONE]{self._script.line_end * 2}".encode())
        self._flush()
        self._write(b"0\r\n\r\n")
        self.end()

    def _ending(self) -> dict[str, Any]:
        return {"index": 0, "finish_reason": "length", **({"delta": {}} if self._chat else {"text": ""})}

    def _choice(self, text: str, count: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
        if self._chat:
            kind = "reasoning_content" if self._sent <= self._script.reasoning_tokens else "content"
            choice["delta"] = {kind: text} if count else {"role": "assistant", "content": ""}
        else:
            choice["text"] = text
        if self._script.token_ids and count:
            choice["token_ids"] = list(range(count))
        usage = self._usage() if self._script.running_usage else None
        return {"id": "cmpl-mock", "object": "text_completion", "choices": [choice], "usage": usage}

    def _usage(self) -> dict[str, Any]:
        prompt = self._truth.body.get("prompt") or ()
        details = {"cached_tokens": 0}
        return {
            "prompt_tokens": len(prompt), "completion_tokens": self._sent, "prompt_tokens_details": details
        }  # fmt: skip

    def _event(self, payload: dict[str, Any] | bytes) -> None:
        data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        end = self._script.line_end
        comment = f": comment{end}{end}" if self._script.comments else ""
        self._buffered.append(f"{comment}data: ".encode() + data + (end * 2).encode())
        if len(self._buffered) >= self._script.merge_events:
            self._flush()

    def _flush(self) -> None:
        data, self._buffered = b"".join(self._buffered), []
        size = self._script.split_bytes or len(data)
        for at in range(0, len(data), size or 1):
            self._write(self._framed(data[at : at + size]))
            if size < len(data):
                time.sleep(0.001)  # so that the pieces are reads of their own on the other side

    def _framed(self, data: bytes) -> bytes:
        return f"{len(data):x}\r\n".encode() + data + b"\r\n"

    def _write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)
