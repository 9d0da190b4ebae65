"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from server.errors import invalid
from server.http.body import read_body
from server.preparation.chat_prompt import render_chat
from server.preparation.tokenizing import check_token_ids, tokenize
from server.preparation.tool_use import read_tool_use
from server.protocol.answers import TextAnswer, TokensAnswer
from server.protocol.openapi import BODY_ERRORS, answers, json_body
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from server.routes.json_response import json_response
from server.state import ServerState

MAX_TEXTS = 2048
"""Of a list. Each takes a moment of the threads that prompts of other requests wait for."""

MAX_TOKENS = 500_000
"""To be made a text at once, which holds the interpreter's lock: 0.2 s for so many."""


def add_token_routes(app: FastAPI, state: ServerState) -> None:
    @app.post(
        "/tokenize",
        tags=["tokens"],
        openapi_extra=json_body(TokenizeRequest),
        responses=answers(TokensAnswer, *BODY_ERRORS),
    )
    async def create_tokens(request: Request) -> Response:
        """Token ids as generation would see them; for a list of texts, `count` and `tokens` are lists too."""
        body = await read_body(request, TokenizeRequest, state.config)
        state.resolve_model(body.model)
        return json_response(await state.in_thread(lambda: _tokenize(body, state)))

    @app.post(
        "/detokenize",
        tags=["tokens"],
        openapi_extra=json_body(DetokenizeRequest),
        responses=answers(TextAnswer, *BODY_ERRORS),
    )
    async def create_text(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        body = await read_body(request, DetokenizeRequest, state.config)
        state.resolve_model(body.model)
        if len(body.tokens) > MAX_TOKENS:
            raise invalid("tokens", f"tokens must not hold more than {MAX_TOKENS} ids")
        if body.tokens:
            check_token_ids(body.tokens, state.engine.model_config.vocab_size, "tokens")
        tokenizer = state.text.tokenizer
        text = await state.in_thread(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
        return json_response({"prompt": text})


def _tokenize(body: TokenizeRequest, state: ServerState) -> dict[str, Any]:
    if body.messages is not None:
        prompt = render_chat(body, state, read_tool_use(body).tools)
        return _tokens_object(prompt.token_ids, body, state)
    if body.prompt is None:
        raise invalid("prompt", "prompt or messages is required", "missing_required_parameter")
    add_special_tokens = body.add_special_tokens is not False
    if isinstance(body.prompt, str):
        ids = tokenize(state, body.prompt, "prompt", add_special_tokens=add_special_tokens)
        return _tokens_object(ids, body, state)
    if not isinstance(body.prompt, list) or not all(isinstance(text, str) for text in body.prompt):
        raise invalid("prompt", "prompt must be a string or a list of strings", "invalid_type")
    if len(body.prompt) > MAX_TEXTS:
        raise invalid("prompt", f"prompt must not hold more than {MAX_TEXTS} texts")
    objects = [
        _tokens_object(
            tokenize(state, text, f"prompt[{i}]", add_special_tokens=add_special_tokens), body, state
        )
        for i, text in enumerate(body.prompt)
    ]
    merged = {key: [entry[key] for entry in objects] for key in ("count", "tokens", "token_strs")}
    return {**merged, "max_model_len": state.engine.max_model_len}


def _tokens_object(ids: list[int], body: TokenizeRequest, state: ServerState) -> dict[str, Any]:
    tokenizer = state.text.tokenizer
    token_strs = [tokenizer.id_to_token(token_id) for token_id in ids] if body.return_token_strs else None
    return {
        "count": len(ids),
        "max_model_len": state.engine.max_model_len,
        "tokens": ids,
        "token_strs": token_strs,
    }
