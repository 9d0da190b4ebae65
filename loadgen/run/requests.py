"""The bytes of requests, made before the run, from pieces that requests share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.client import Server
from loadgen.prompts import PromptBuilder
from loadgen.run.replay import PreparedRequest
from loadgen.schedule import ScheduledRequest

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class RequestFactory:
    """Makes requests for `/v1/completions` with token ids, or for chats with text.

    `run_id` makes request ids unique among processes.
    """

    server: Server
    model: str
    prompts: PromptBuilder
    run_id: str
    endpoint: str = "completions"
    temperature: float = 0.0
    ignore_eos: bool = True
    extra_body: dict[str, Any] = field(default_factory=dict)

    def prepare(self, request: ScheduledRequest) -> PreparedRequest:
        head = orjson.dumps(self._options(request))[:-1] + b","
        body = [head, *(self._messages(request) if self.endpoint == "chat" else self._prompt(request)), b"}"]
        request_id = f"{self.run_id}-{request.index}"
        payload = self.server.request("POST", PATHS[self.endpoint], body, request_id)
        return PreparedRequest(request, request_id, payload)

    def _options(self, request: ScheduledRequest) -> dict[str, Any]:
        forced = {"ignore_eos": True} if self.ignore_eos else {}
        return {
            "model": self.model,
            "max_tokens": request.output_tokens,
            **forced,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra_body,
        }

    def _prompt(self, request: ScheduledRequest) -> list[bytes]:
        pieces = [b'"prompt":[']
        for fragment in self.prompts.fragments(request):
            pieces += (fragment, b",")
        pieces[-1] = b"]"
        return pieces

    def _messages(self, request: ScheduledRequest) -> list[bytes]:
        return [b'"messages":' + orjson.dumps(list(self._conversation(request)))]

    def _conversation(self, request: ScheduledRequest) -> Iterator[dict[str, str]]:
        if request.previous is not None and request.continues:
            yield from self._conversation(request.previous)
            yield {"role": "assistant", "content": self.prompts.reply_text(request.previous)}
        yield {"role": "user", "content": self.prompts.text(request)}
