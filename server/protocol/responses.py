"""POST /v1/responses: a conversation in other words. It is read here and translated to a chat request."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from server.errors import APIError, invalid, unsupported
from server.protocol.common import GenerationBody
from server.protocol.response_items import chat_messages

LOGPROBS = "message.output_text.logprobs"
ACCEPTED_INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
"""What `include` may ask for; there is no encrypted reasoning, so that asking for it changes nothing."""

_ELSEWHERE = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
}
"""Fields of chat requests: where /v1/responses has the same."""

_NEED_A_STORE = ("conversation", "prompt")
_NOT_OFFERED = (
    "return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs", "add_special_tokens", "background",
)  # fmt: skip


class TextOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    format: dict[str, Any] | None = None


class ReasoningOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    effort: str | None = None


class ResponsesRequest(GenerationBody):
    """Nothing is stored: `store` is ignored, and what would refer to an earlier response is refused."""

    input: str | list[dict[str, Any]] | None = Field(default=None, description="a text, or items")
    instructions: str | None = Field(default=None, description="a system message before the input")
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    store: bool | None = None
    truncation: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def text_format(self) -> dict[str, Any]:
        return (self.text.format if self.text is not None else None) or {"type": "text"}

    def as_chat(self) -> dict[str, Any]:
        """The fields of the chat request that asks for the same. Raises `APIError`."""
        self._refuse_unsupported()
        # Sampling and the extensions are spelled alike in both.
        fields = {name: getattr(self, name) for name in GenerationBody.model_fields}
        wants_logprobs = self.top_logprobs is not None or LOGPROBS in (self.include or ())
        fields |= {
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": wants_logprobs,
            "top_logprobs": self.top_logprobs,
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
            "response_format": _chat_format(self.text_format),
            "tools": [_chat_tool(tool, i) for i, tool in enumerate(self.tools or ())] or None,
            "tool_choice": _chat_tool_choice(self.tool_choice) if self.tools else None,
            "parallel_tool_calls": self.parallel_tool_calls,
        }
        extra = {name: value for name, value in (self.model_extra or {}).items() if name not in fields}
        return {**extra, **{name: value for name, value in fields.items() if value is not None}}

    def _messages(self) -> list[dict[str, Any]]:
        if self.input is None:
            raise invalid("input", "input is required", "missing_required_parameter")
        if not self.input:
            raise invalid("input", "input must not be empty")
        system = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return system + chat_messages(self.input)

    def _refuse_unsupported(self) -> None:
        if self.previous_response_id is not None:
            message = "nothing is stored here: send the whole conversation as input"
            raise APIError(404, message, code="previous_response_not_found", param="previous_response_id")
        for name in _NEED_A_STORE:
            if getattr(self, name) is not None:
                raise unsupported(name, f"{name} is not supported: nothing is stored here")
        for name, instead in _ELSEWHERE.items():
            if getattr(self, name, None) is not None:  # a field or an extra one
                raise unsupported(name, f"{name} is not supported here: use {instead}")
        for name in _NOT_OFFERED:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise unsupported(name)
        if self.n not in (None, 1):
            raise unsupported("n", "n is not supported: a response is one answer")
        if self.truncation not in (None, "disabled"):
            raise unsupported("truncation", "truncation is not supported: input is never cut")
        for name in self.include or ():
            if name not in ACCEPTED_INCLUDES:
                raise unsupported("include", f"include: {name[:60]!r} is not supported")


def _chat_format(text_format: dict[str, Any]) -> dict[str, Any]:
    """`text.format` keeps flat what `response_format` nests."""
    if text_format.get("type") != "json_schema":
        return text_format
    return {"type": "json_schema", "json_schema": {k: v for k, v in text_format.items() if k != "type"}}


def _chat_tool(tool: dict[str, Any], index: int) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:40]
        raise unsupported("tools", f"tools[{index}]: only tools of type function are supported, not {kind!r}")
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _chat_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice
