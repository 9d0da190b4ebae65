"""What both generation endpoints do once the body is parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import Request
from starlette.responses import Response

from engine.handle import PromptTooLongError
from server.answer_objects import answer_object
from server.body import read_body
from server.collected_answer import CollectedAnswer
from server.delivery import Answer
from server.errors import invalid
from server.frames import ChunkFormat
from server.generation import Generation
from server.protocol.common import GenerationBody
from server.state import ServerState
from server.stream_answer import StreamAnswer

BodyT = TypeVar("BodyT", bound=GenerationBody)

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads it; the status is for logs."""


async def generate(
    request: Request,
    state: ServerState,
    model: type[BodyT],
    prepare: Callable[[BodyT, ServerState, int], Generation],
) -> Response:
    """Everything that can be refused is refused before the response starts, the engine's queue included."""
    body = await read_body(request, model, state.config.max_request_bytes)
    generation = await state.in_thread(lambda: prepare(body, state, request.state.arrived_ns))
    if body.stream:
        stream = _make_stream(generation, state)
        _submit(stream, state)
        return stream
    answer = CollectedAnswer(generation, state.delivery)
    _submit(answer, state)
    if not await answer.wait(request.receive):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if generation.logprobs:  # much to build: not on the event loop
        return await state.in_thread(lambda: json_response(answer_object(generation, state.text.tokenizer)))
    return json_response(answer_object(generation, state.text.tokenizer))


def _submit(answer: Answer, state: ServerState) -> None:
    try:
        state.delivery.submit(answer)
    except PromptTooLongError as error:
        param = "messages" if answer.generation.kind == "chat" else "prompt"
        raise invalid(param, str(error), "context_length_exceeded") from None


def json_response(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


def _make_stream(generation: Generation, state: ServerState) -> StreamAnswer:
    return StreamAnswer(
        generation,
        ChunkFormat(generation, state.text.tokenizer),
        state.delivery,
        ping_interval=state.config.sse_ping_interval,
        stuck_timeout=state.config.stuck_reader_timeout,
    )
