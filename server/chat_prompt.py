"""A conversation to the token ids of its prompt. For a thread, not for the event loop."""

from __future__ import annotations

from model.text.chat_template import ChatTemplateError
from server.errors import invalid
from server.protocol.chat import ChatFields, check_messages
from server.state import ServerState
from server.tokenizing import check_length


def render_chat(body: ChatFields, state: ServerState) -> list[int]:
    """Token ids of the rendered conversation; the template owns BOS. Raises `APIError`."""
    messages = check_messages(body.messages)
    continues = bool(body.continue_final_message)
    adds_prompt = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    try:
        text = state.text.chat_template.render(
            messages,
            add_generation_prompt=adds_prompt,
            continue_final_message=continues,
            **body.template_kwargs(),
        )
    except ChatTemplateError as error:
        raise invalid("messages", str(error)) from None
    check_length(state, text, "messages")
    ids = state.text.tokenizer.encode_chat(text)
    if not ids:
        raise invalid("messages", "messages give an empty prompt")
    return ids
