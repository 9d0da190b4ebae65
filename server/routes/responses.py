"""POST /v1/responses."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from server.answers.response_events import ResponseEvents
from server.answers.response_object import whole_response
from server.delivery.generation import Generation
from server.errors import APIError
from server.http.body import validated
from server.preparation.prepare import prepare_chat
from server.protocol.answers import ResponsesAnswer
from server.protocol.chat import ChatRequest
from server.protocol.openapi import GENERATION_ERRORS, answers, json_body
from server.protocol.responses import ResponsesRequest
from server.routes.generate import AnswerForms, generate
from server.state import ServerState

FORMS = AnswerForms(whole_response, ResponseEvents, prompt_param="input")

_CHAT_TO_RESPONSES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def add_responses_route(app: FastAPI, state: ServerState) -> None:
    @app.post(
        "/v1/responses",
        tags=["generation"],
        openapi_extra=json_body(ResponsesRequest),
        responses=answers(ResponsesAnswer, *GENERATION_ERRORS, streams=True),
    )
    async def create_response(request: Request) -> Response:
        """Answer an input, streamed with `stream: true`. Nothing is stored."""
        return await generate(request, state, ResponsesRequest, prepare_response, FORMS)


def prepare_response(body: ResponsesRequest, state: ServerState, arrived_ns: int) -> Generation:
    """Raises `APIError` or `ParameterError`."""
    chat = body.as_chat()
    try:
        generation = prepare_chat(validated(ChatRequest, chat), state, arrived_ns, id_prefix="resp_")
    except APIError as error:
        raise _in_terms_of_responses(error) from None
    if generation.grammar is not None:  # whose errors are still to come
        param = generation.grammar.param
        generation.grammar = generation.grammar._replace(param=_CHAT_TO_RESPONSES.get(param, param))
    return generation


def _in_terms_of_responses(error: APIError) -> APIError:
    """The same error, naming the field that the client sent instead of the chat's."""
    name, _, path = (error.param or "").partition("[")
    renamed = _CHAT_TO_RESPONSES.get(name)
    if renamed is not None:
        error.param = renamed
        if not path:  # an index among the messages would be another one in the input
            error.message = error.message.replace(name, renamed)
    return error
