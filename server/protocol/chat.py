"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from server.errors import invalid, unsupported
from server.protocol.common import GenerationBody

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
RESERVED_TEMPLATE_KWARGS = frozenset(
    {"self", "messages", "tools", "tokenize", "chat_template", "add_generation_prompt"}
    | {"continue_final_message", "bos_token", "eos_token"}
)

Message = dict[str, Any]


class ChatFields(GenerationBody):
    """What rendering a conversation takes; /tokenize shares it."""

    messages: list[Message] | None = Field(default=None, description="the conversation, oldest first")
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = Field(default=None, description="needs --trust-request-chat-template")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    def template_kwargs(self) -> dict[str, Any]:
        """Variables for the chat template, beyond the messages. Raises `APIError`."""
        kwargs = dict(self.chat_template_kwargs or {})
        reserved = RESERVED_TEMPLATE_KWARGS & kwargs.keys()
        if reserved:
            name = min(reserved)
            raise invalid("chat_template_kwargs", f"chat_template_kwargs must not set {name}")
        if self.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", self.reasoning_effort)
            if self.reasoning_effort == "none":
                kwargs.setdefault("enable_thinking", False)
        return kwargs


class ChatRequest(ChatFields):
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    include_reasoning: bool | None = Field(default=None, description="false leaves the reasoning out")

    @property
    def max_tokens_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def wanted_max_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def num_logprobs(self) -> int | None:
        """`SamplingParams.logprobs`. Raises `APIError`."""
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
        return (self.top_logprobs or 0) if self.logprobs else None


def check_messages(messages: list[Message] | None) -> list[Message]:
    """Raise `APIError`, naming the message at fault, for what no chat template could render."""
    if messages is None:
        raise invalid("messages", "messages is required", "missing_required_parameter")
    if not messages:
        raise invalid("messages", "messages must not be empty")
    for i, message in enumerate(messages):
        _check_message(message, f"messages[{i}]")
    return messages


def _check_message(message: Message, param: str) -> None:
    if message.get("role") not in ROLES:
        raise invalid(f"{param}.role", f"{param}.role must be one of {', '.join(ROLES)}")
    tool_calls = message.get("tool_calls")
    if tool_calls is not None and not isinstance(tool_calls, list):
        raise invalid(f"{param}.tool_calls", f"{param}.tool_calls must be a list")
    content = message.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            _check_part(part, f"{param}.content[{i}]")
    elif content is None:
        if not tool_calls:
            raise invalid(f"{param}.content", f"{param}.content is required")
    elif not isinstance(content, str):
        raise invalid(f"{param}.content", f"{param}.content must be a string or a list of parts")


def _check_part(part: Any, param: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise unsupported(param, f"{param}: only parts of type text are supported, not {str(kind)[:40]!r}")
    if not isinstance(part.get("text"), str):
        raise invalid(f"{param}.text", f"{param}.text must be a string")
