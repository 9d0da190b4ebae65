"""One scripted answer: a stream at absolute times, with the misbehaviour that the script asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from loadgen.mock.script import Script, Truth
from loadgen.mock.ticker import Ticker
from loadgen.sockets import SocketLink

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reply:
    """Writes one stream at its scripted times, which are absolute and counted from `start`."""

    def __init__(
        self,
        script: Script,
        link: SocketLink,
        truth: Truth,
        ticker: Ticker,
        *,
        chat: bool,
        behaviour: str,
        on_end: Callable[[], None],
    ) -> None:
        self._script, self._on_end = script, on_end
        self._link, self._truth, self._ticker = link, truth, ticker
        self._chat, self._behaviour = chat, behaviour
        self._total = truth.body.get("max_tokens") or truth.body.get("max_completion_tokens") or 16
        self._sent = 0
        self._begun = self._ended = False
        self._buffered: list[bytes] = []
        self._frames: dict[int, bytes | None] = {}  # by count of tokens; made once, so that the mock is quick

    def start(self) -> None:
        self._begun = True
        if self._ended:  # the client went away while queued
            self._on_end()
            return
        self._write(HEAD)
        self._start_s = asyncio.get_running_loop().time()
        if self._script.head_event_s is not None:
            head_event = self._choice("", 0)
            self._ticker.call_at(self._start_s + self._script.head_event_s, lambda: self._event(head_event))
        self._ticker.call_at(self._start_s + self._script.ttft_s, self._tokens)

    def _tokens(self) -> None:
        """One chunk of tokens; then the next one is set for its own absolute time."""
        if self._ended:
            return
        count = min(self._script.tokens_per_chunk, self._total - self._sent)
        self._sent += count
        if count not in self._frames:
            self._frames[count] = self._token_frame(count)
        frame = self._frames[count]
        now_ns = time.monotonic_ns()
        self._truth.token_times_ns += [now_ns] * count
        self._truth.first_token_ns = self._truth.first_token_ns or now_ns
        if frame is None:
            self._event(self._choice(self._script.token_text * count, count))
        else:
            self._write(frame)
        if self._sent >= self._total:
            self._finish()
        elif self._behaviour in ("ok", "no_done") or self._sent * 2 < self._total:
            later = self._script.ttft_s + self._script.itl_s * self._sent
            self._ticker.call_at(self._start_s + later, self._tokens)
        else:
            self._misbehave()

    def _token_frame(self, count: int) -> bytes | None:
        """A chunk of tokens as it goes to the socket; None where chunks differ or are not written as such."""
        if not self._script.is_plain:
            return None
        return self._framed(self._encoded(self._choice(self._script.token_text * count, count)))

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
        self._link.close()
        self.end()

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

    def _event(self, payload: dict[str, Any]) -> None:
        self._buffered.append(self._encoded(payload))
        if len(self._buffered) >= self._script.merge_events:
            self._flush()

    def _encoded(self, payload: dict[str, Any]) -> bytes:
        end = self._script.line_end.encode()
        comment = b": comment" + end * 2 if self._script.comments else b""
        return comment + b"data: " + orjson.dumps(payload) + end * 2

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
        if data and not self._link.closed:
            self._link.send(data)
