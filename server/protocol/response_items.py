"""The input items of /v1/responses as the messages of a chat."""

from __future__ import annotations

from typing import Any

from server.errors import invalid, unsupported

TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""Kind of a content part: the field with its text."""


def chat_messages(items: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Raises `APIError`. Roles are checked later, with those of chats."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        _add_item(messages, item, f"input[{i}]")
    return messages


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], param: str) -> None:
    kind = item.get("type", "message")
    match kind:
        case "message":
            content = _content(item.get("content"), f"{param}.content")
            messages.append({"role": item.get("role"), "content": content})
        case "function_call":
            _add_call(messages, item, param)
        case "function_call_output":
            call_id, output = (
                _text_field(item, "call_id", param),
                _content(item.get("output"), f"{param}.output"),
            )
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        case "reasoning":
            pass  # a model is not shown what it thought in earlier turns
        case _:
            raise unsupported("input", f"{param}: items of type {str(kind)[:40]!r} are not supported")


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], param: str) -> None:
    """Calls of one turn stand in one message, after the text that came with them."""
    name, arguments = _text_field(item, "name", param), _text_field(item, "arguments", param)
    function = {"name": name, "arguments": arguments}
    call = {"id": _text_field(item, "call_id", param), "type": "function", "function": function}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)


def _text_field(item: dict[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid("input", f"{param}.{name} must be a string")
    return value


def _content(content: Any, param: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid("input", f"{param} must be a string or a list of parts")
    return [_text_part(part, f"{param}[{i}]") for i, part in enumerate(content)]


def _text_part(part: Any, param: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise unsupported("input", f"{param}: only parts of text are supported, not {str(kind)[:40]!r}")
    return {"type": "text", "text": _text_field(part, TEXT_PARTS[kind], param)}
