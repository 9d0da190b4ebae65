"""What models write when they call tools, in each parser's format, and what has to be read from it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.parsers.events import CallArguments, CallCut, CallStart, Content, Event, Reasoning

Call = tuple[str, dict[str, Any]]


@dataclass
class Message:
    """Events added up, as a client adds up a stream."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    cut: str | None = None

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallStart(name):
                    self.calls.append((name, ""))
                case CallArguments(text):
                    name, arguments = self.calls.pop()
                    self.calls.append((name, arguments + text))
                case CallCut(text):
                    self.cut = text


def read(parser: Any, text: str, cuts: Sequence[int] = ()) -> Message:
    """Push `text` in pieces, cut at the given positions, and finish."""
    message = Message()
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in itertools.pairwise(borders):
        message.add(parser.push(text[start:end]))
    message.add(parser.finish())
    return message


def hermes(calls: Sequence[Call]) -> str:
    bodies = [
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls
    ]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def llama3_json(calls: Sequence[Call]) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)


def mistral_array(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS] " + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


def mistral_named(calls: Sequence[Call]) -> str:
    return "".join(
        f"[TOOL_CALLS]{name}{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls
    )


def mistral_with_ids(calls: Sequence[Call]) -> str:
    return "".join(
        f"[TOOL_CALLS]{name}[CALL_ID]abcdefghi[ARGS]{json.dumps(arguments)}" for name, arguments in calls
    )


def deepseek_v3(calls: Sequence[Call]) -> str:
    bodies = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```"
        for name, arguments in calls
    ]
    joined = "<｜tool▁call▁end｜>\n".join(bodies)
    return f"<｜tool▁calls▁begin｜>{joined}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def deepseek_v31(calls: Sequence[Call]) -> str:
    bodies = [
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in calls
    ]
    return f"<｜tool▁calls▁begin｜>{''.join(bodies)}<｜tool▁calls▁end｜>"


def qwen3_coder(calls: Sequence[Call]) -> str:
    def parameter(name: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"<parameter={name}>\n{text}\n</parameter>\n"

    bodies = [
        f"<function={name}>\n" + "".join(parameter(*item) for item in arguments.items()) + "</function>"
        for name, arguments in calls
    ]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
