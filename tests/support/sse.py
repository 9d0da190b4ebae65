"""A strict reader of event streams: what it accepts, every client accepts."""

from __future__ import annotations

import json
from typing import Any


def parse_events(raw: bytes) -> list[Any]:
    """The JSON payloads of a complete stream; asserts each framing rule and the closing `[DONE]`."""
    assert raw.endswith(b"data: [DONE]\n\n")
    assert b"\r" not in raw
    payloads = []
    for block in raw[:-2].split(b"\n\n"):
        if block.startswith(b": "):
            continue
        assert block.startswith(b"data: ")
        text = block.removeprefix(b"data: ").decode()
        assert len(text.splitlines()) == 1, "a client may take this for two lines"
        payloads.append(text)
    assert payloads.pop() == "[DONE]" and "[DONE]" not in payloads
    return [json.loads(payload) for payload in payloads]


def joined_text(events: list[Any], index: int = 0) -> str:
    """The text of one choice, of either endpoint."""
    text = ""
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text
