"""The events of a streamed /v1/responses answer: named, numbered, each with the item that it is about."""

from __future__ import annotations

from typing import Any

from model.text.tokenizer import Tokenizer
from server.answers.frames import to_line
from server.answers.response_object import ResponseObject, add_output
from server.answers.response_output import ResponseOutput
from server.delivery.choice import Choice
from server.delivery.generation import Generation
from server.errors import APIError
from server.protocol.responses import ResponsesRequest


class ResponseEvents:
    """A `StreamFormat`."""

    def __init__(self, body: ResponsesRequest, generation: Generation, tokenizer: Tokenizer) -> None:
        self.response = ResponseObject(body, generation)
        self.generation = generation
        self.tokenizer = tokenizer
        self._output = ResponseOutput(self._emit)
        self._sequence_number = 0
        self._events: list[bytes] = []  # not taken yet

    def openings(self) -> bytes:
        self._emit("created", response=self.response.running())
        self._emit("in_progress", response=self.response.running())
        return self._take()

    def delta(self, choice: Choice) -> bytes:
        add_output(self._output, choice, self.generation, self.tokenizer)
        return self._take()

    def closing(self) -> bytes:
        response = self.response.ended(self._output.items)
        self._emit(response["status"], response=response)
        return self._take()

    def failure(self, error: APIError) -> bytes:
        """Clients expect the creation first, whenever the failure came."""
        if not self._sequence_number:
            self._emit("created", response=self.response.running())
        self._emit("failed", response=self.response.failed(error.message))
        return self._take()

    def _emit(self, kind: str, **fields: Any) -> None:
        payload = {"type": f"response.{kind}", "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        self._events.append(b"event: response." + kind.encode() + b"\ndata: " + to_line(payload) + b"\n\n")

    def _take(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)
