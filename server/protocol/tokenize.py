"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from server.protocol.chat import ChatFields
from server.protocol.common import RequestBody


class TokenizeRequest(ChatFields):
    """A text or a list of texts in `prompt`, or a conversation in `messages`."""

    prompt: Any = Field(default=None, description="a string or a list of strings")
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestBody):
    tokens: list[int]
