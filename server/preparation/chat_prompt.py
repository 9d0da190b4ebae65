"""A conversation to the token ids of its prompt. For a thread, not for the event loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from model.config import ModelError
from model.text.chat_template import ChatTemplate, ChatTemplateError
from server.errors import invalid, unsupported
from server.parsers.reasoning import ReasoningFormat, Thoughts
from server.preparation.tokenizing import check_length
from server.preparation.tool_use import Tool
from server.protocol.chat import ChatFields, check_messages
from server.state import ServerState

MAX_REQUEST_TEMPLATES = 16
"""Compiled templates of requests that are kept."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation."""

    text: str
    token_ids: list[int]
    continued: str | None  # what there is of the message that is to be continued
    enables_thinking: bool

    def thoughts(self, tags: ReasoningFormat) -> Thoughts:
        """Of the answer."""
        if self.continued is not None:
            return tags.within_message(self.continued)
        return tags.after_prompt(self.text, enable_thinking=self.enables_thinking)


def render_chat(body: ChatFields, state: ServerState, tools: tuple[Tool, ...]) -> ChatPrompt:
    """The template owns BOS. Raises `APIError`."""
    messages = check_messages(body.messages)
    continues = bool(body.continue_final_message)
    adds_prompt = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    if continues and adds_prompt:
        message = "continue_final_message and add_generation_prompt cannot both be true"
        raise invalid("continue_final_message", message)
    template_kwargs = body.template_kwargs()
    try:
        text = _template(body, state).render(
            messages,
            tools,
            add_generation_prompt=adds_prompt,
            continue_final_message=continues,
            template_kwargs=template_kwargs,
        )
    except ChatTemplateError as error:
        raise invalid("messages", str(error)) from None
    check_length(state, text, "messages")
    ids = state.text.tokenizer.encode_chat(text)
    if not ids:
        raise invalid("messages", "messages give an empty prompt")
    return ChatPrompt(
        text,
        ids,
        _text_of(messages[-1]["content"]) if continues else None,
        template_kwargs.get("enable_thinking") is not False,
    )


def _template(body: ChatFields, state: ServerState) -> ChatTemplate:
    if body.chat_template is None:
        return state.text.chat_template
    if not state.config.trust_request_chat_template:
        message = "chat_template needs a server with --trust-request-chat-template"
        raise unsupported("chat_template", message)
    tokenizer = state.text.tokenizer
    try:
        return _compile(body.chat_template, tokenizer.bos_token, tokenizer.eos_token)
    except ModelError as error:
        raise invalid("chat_template", str(error)) from None


@lru_cache(maxsize=MAX_REQUEST_TEMPLATES)
def _compile(source: str, bos_token: str | None, eos_token: str | None) -> ChatTemplate:
    return ChatTemplate(source, bos_token, eos_token)


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())
