"""What all generation endpoints do once the body is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response

from engine.handle import PromptTooLongError
from model.text.tokenizer import Tokenizer
from server.answers.answer_object import answer_object
from server.answers.message_frames import chunk_format
from server.delivery.collected_answer import CollectedAnswer
from server.delivery.delivery import Answer
from server.delivery.generation import Generation
from server.delivery.stream_answer import StreamAnswer, StreamFormat
from server.errors import invalid
from server.http.body import read_body
from server.http.middleware import label_request
from server.protocol.common import GenerationBody
from server.routes.json_response import json_response
from server.state import ServerState

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads it; the status is for logs."""

BodyT = TypeVar("BodyT", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class AnswerForms(Generic[BodyT]):
    """How an endpoint writes its answers, whole and streamed."""

    whole: Callable[[BodyT, Generation, Tokenizer], dict[str, Any]]
    stream: Callable[[BodyT, Generation, Tokenizer], StreamFormat]
    prompt_param: str  # the field that a prompt comes in


def choices_forms(prompt_param: str) -> AnswerForms[Any]:
    """Those of completions and chats."""
    return AnswerForms(
        lambda body, generation, tokenizer: answer_object(generation, tokenizer),
        lambda body, generation, tokenizer: chunk_format(generation, tokenizer),
        prompt_param,
    )


async def generate(
    request: Request,
    state: ServerState,
    model: type[BodyT],
    prepare: Callable[[BodyT, ServerState, int], Generation],
    forms: AnswerForms[BodyT],
) -> Response:
    """Everything that can be refused is refused before the response starts, the engine's queue included."""
    body = await read_body(request, model, state.config)
    label_request(request, body.request_id)
    arrived_ns = request.state.arrived_ns
    if body.prepares_quickly:
        generation = prepare(body, state, arrived_ns)
    else:
        generation = await state.in_thread(lambda: prepare(body, state, arrived_ns))
    await state.grammars.constrain(generation)
    if body.stream:
        stream = _make_stream(generation, forms.stream(body, generation, state.text.tokenizer), state)
        _submit(stream, forms.prompt_param, state)
        return stream
    answer = CollectedAnswer(generation, state.delivery)
    _submit(answer, forms.prompt_param, state)
    if not await answer.wait(request.receive):
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    def respond() -> Response:
        return json_response(forms.whole(body, generation, state.text.tokenizer))

    # Log-probabilities are much to build: not on the event loop.
    is_long = generation.logprobs or generation.prompt_logprobs is not None
    return await state.in_thread(respond) if is_long else respond()


def _submit(answer: Answer, prompt_param: str, state: ServerState) -> None:
    try:
        state.delivery.submit(answer)
    except PromptTooLongError as error:
        raise invalid(prompt_param, str(error), "context_length_exceeded") from None


def _make_stream(generation: Generation, events: StreamFormat, state: ServerState) -> StreamAnswer:
    return StreamAnswer(
        generation,
        events,
        state.delivery,
        ping_interval=state.config.sse_ping_interval,
        stuck_timeout=state.config.stuck_reader_timeout,
    )
