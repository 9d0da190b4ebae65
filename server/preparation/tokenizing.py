"""Text and id lists of clients to token ids, with the API's errors. For a thread, not for the event loop."""

from __future__ import annotations

from server.errors import invalid
from server.state import ServerState


def check_length(state: ServerState, text: str, param: str, name: str | None = None) -> None:
    """Refuse text that no tokenizer could make fit, before time is spent on tokenizing it."""
    if len(text) > state.max_prompt_bytes or len(text.encode()) > state.max_prompt_bytes:
        message = f"{name or param} is too long: the context holds {state.engine.max_model_len} tokens"
        raise invalid(param, message, "context_length_exceeded")


def tokenize(state: ServerState, text: str, name: str, *, add_special_tokens: bool) -> list[int]:
    """Of a prompt, or of one in a list of them, by its `name` for errors.

    Raises `APIError` for text that is too long or has no tokens.
    """
    check_length(state, text, "prompt", name)
    ids = state.text.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not ids:
        raise invalid("prompt", f"{name} is empty: it has no tokens")
    return ids


def check_token_ids(ids: list[int], vocab_size: int, param: str) -> list[int]:
    """Raises `APIError` for an id that the model does not have; it would fault on the device."""
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise invalid(param, f"{param} holds a token id outside 0..{vocab_size - 1}", "invalid_token_id")
    return ids
