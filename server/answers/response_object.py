"""The response object of /v1/responses: what was asked for, how it went, and the output so far."""

from __future__ import annotations

import time
from typing import Any

from engine.request import FinishReason
from model.text.tokenizer import Tokenizer
from server.answers.logprobs import chat_logprobs
from server.answers.response_output import ResponseOutput
from server.delivery.choice import Choice
from server.delivery.generation import Generation
from server.parsers.events import Content, merged
from server.protocol.responses import ResponsesRequest


class ResponseObject:
    """Makes the object in each of its states; it holds nothing of the answer itself."""

    def __init__(self, body: ResponsesRequest, generation: Generation) -> None:
        self.body = body
        self.generation = generation

    def running(self) -> dict[str, Any]:
        """Before there is any output."""
        return self._object("in_progress", [])

    def ended(self, output: list[dict[str, Any]]) -> dict[str, Any]:
        """Completed, or incomplete if the answer reached its length."""
        is_cut = self.generation.choices[0].finish_reason == FinishReason.LENGTH
        response = self._object("incomplete" if is_cut else "completed", output)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response | {"completed_at": int(time.time()), "usage": self._usage()}

    def failed(self, message: str) -> dict[str, Any]:
        return self._object("failed", []) | {"error": {"code": "server_error", "message": message}}

    def _object(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body, params = self.body, self.generation.choices[0].params
        return {
            "id": self.generation.response_id,
            "object": "response",
            "created_at": self.generation.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.generation.model,
            "output": output,
            "usage": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "text": {"format": body.text_format},
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "tools": body.tools or [],
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "background": False,
            "store": False,  # whatever was asked for
            "truncation": "disabled",
            "metadata": body.metadata or {},
            "service_tier": self.generation.service_tier or "default",
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.generation.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": usage["total_tokens"],
        }


def whole_response(body: ResponsesRequest, generation: Generation, tokenizer: Tokenizer) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    (choice,) = generation.choices
    output = ResponseOutput(lambda kind, **fields: None)  # nobody is told of the steps
    add_output(output, choice, generation, tokenizer)
    return ResponseObject(body, generation).ended(output.items)


def add_output(output: ResponseOutput, choice: Choice, generation: Generation, tokenizer: Tokenizer) -> None:
    """What the choice has gained since the last time, and its end."""
    tokens, events = choice.take_tokens(), merged(choice.take_events())
    logprobs = []
    if generation.logprobs and tokens:
        logprobs = chat_logprobs(generation, choice, tokens, tokenizer)["content"]
        if not events and not generation.is_parsed:  # tokens of no text, EOS for one
            events = [Content("")]
    for event in events:
        output.add(event, logprobs)
        if isinstance(event, Content):
            logprobs = []
    if choice.finish_reason is not None:
        output.close(is_cut=choice.finish_reason == FinishReason.LENGTH)
