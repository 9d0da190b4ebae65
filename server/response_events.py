"""The events of a streamed /v1/responses answer: named, numbered, each with the item that it is about."""

from __future__ import annotations

from typing import Any

from engine.request import FinishReason
from model.text.tokenizer import Tokenizer
from server.choice import Choice
from server.errors import APIError
from server.frames import to_line
from server.generation import Generation
from server.logprobs import chat_logprobs
from server.protocol.responses import ResponsesRequest
from server.response_object import ResponseObject, item_id, message_item, text_part


class ResponseEvents:
    """A `StreamFormat`. The output is one message with one text, which is gathered for the closing events."""

    def __init__(self, body: ResponsesRequest, generation: Generation, tokenizer: Tokenizer) -> None:
        self.response = ResponseObject(body, generation)
        self.generation = generation
        self.tokenizer = tokenizer
        self._sequence_number = 0
        self._message_id = item_id("msg")
        self._where = {"item_id": self._message_id, "output_index": 0, "content_index": 0}
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._message: dict[str, Any] | None = None

    def openings(self) -> bytes:
        message = message_item(self._message_id, [], "in_progress")
        return (
            self._created()
            + self._event("response.in_progress", response=self.response.running())
            + self._event("response.output_item.added", output_index=0, item=message)
            + self._event("response.content_part.added", **self._where, part=text_part("", []))
        )

    def delta(self, choice: Choice) -> bytes:
        text, tokens = choice.take_text(), choice.take_tokens()
        logprobs = []
        if self.generation.logprobs and tokens:
            logprobs = chat_logprobs(self.generation, choice, tokens, self.tokenizer)["content"]
        events = b""
        if text or logprobs:
            self._texts.append(text)
            self._logprobs += logprobs
            events = self._event("response.output_text.delta", **self._where, delta=text, logprobs=logprobs)
        return events + self._ends(choice.finish_reason) if choice.finish_reason else events

    def closing(self) -> bytes:
        assert self._message is not None
        response = self.response.ended([self._message])
        return self._event(f"response.{response['status']}", response=response)

    def failure(self, error: APIError) -> bytes:
        """Clients expect the creation first, whenever the failure came."""
        created = b"" if self._sequence_number else self._created()
        return created + self._event("response.failed", response=self.response.failed(error.message))

    def _created(self) -> bytes:
        return self._event("response.created", response=self.response.running())

    def _ends(self, reason: str) -> bytes:
        text = "".join(self._texts)
        part = text_part(text, self._logprobs)
        status = "incomplete" if reason is FinishReason.LENGTH else "completed"
        self._message = message_item(self._message_id, [part], status)
        return (
            self._event("response.output_text.done", **self._where, text=text, logprobs=self._logprobs)
            + self._event("response.content_part.done", **self._where, part=part)
            + self._event("response.output_item.done", output_index=0, item=self._message)
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return b"event: " + kind.encode() + b"\ndata: " + to_line(payload) + b"\n\n"
