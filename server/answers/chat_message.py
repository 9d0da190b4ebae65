"""The message of a whole chat answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from server.parsers.events import CallArguments, CallCut, CallStart, Content, Event, Reasoning


def message_object(events: Iterable[Event], reasoning_fields: Sequence[str]) -> dict[str, Any]:
    """A call that was cut is content: it could not be made. `reasoning_fields` are null without reasoning."""
    content, reasoning = "", ""
    calls: list[dict[str, Any]] = []
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case CallStart(name, call_id):
                calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
            case CallArguments(text):
                calls[-1]["function"]["arguments"] += text
            case CallCut(text):
                calls.pop()
                content += text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    message |= dict.fromkeys(reasoning_fields, reasoning or None)
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message
