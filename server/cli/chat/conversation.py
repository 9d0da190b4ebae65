"""A conversation with its system prompt and parameters: the state that a terminal's commands change."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OWN_FIELDS = frozenset({"messages", "stream", "stream_options", "n"})
KNOWN_PARAMETERS = (
    *("model", "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "min_tokens"),
    *("seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("reasoning_effort", "chat_template_kwargs", "ignore_eos", "priority", "cache_salt"),
)


class ParameterSyntaxError(ValueError):
    """Not of the form name=value, or a field that is not the user's to set."""


@dataclass
class Conversation:
    """What the next request is made of."""

    system: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)  # fields of the request, the model among them
    messages: list[dict[str, str]] = field(default_factory=list)  # of user and assistant

    def request(self) -> dict[str, Any]:
        """The body of the request for the next answer, but for its stream fields."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {**self.parameters, "messages": system + self.messages}

    def set_parameters(self, assignments: Iterable[str]) -> list[str]:
        """Apply `name=value` texts; a value is JSON, or else text, and none takes the parameter away.

        Returns the names that are not known, which are sent all the same: servers have parameters of their
        own, and ignore misspelt ones. Raises `ParameterSyntaxError`; nothing has changed then.
        """
        parsed = [_parse_assignment(assignment) for assignment in assignments]
        for name, value in parsed:
            if value is None:
                self.parameters.pop(name, None)
            else:
                self.parameters[name] = value
        return [name for name, _ in parsed if name not in KNOWN_PARAMETERS]

    def save(self, path: str) -> None:
        """Write the next request's body, to be sent again. Raises `OSError`, also for a file that exists."""
        with Path(path).expanduser().open("x", encoding="utf-8") as file:
            json.dump(self.request(), file, ensure_ascii=False, indent=2)
            file.write("\n")


def split_assignments(text: str) -> list[str]:
    """`a=1 stop="x y"` as a shell would split it. Raises `ParameterSyntaxError`."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ParameterSyntaxError(f"{text}: {error}") from None


def _parse_assignment(assignment: str) -> tuple[str, Any]:
    name, equals, text = assignment.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise ParameterSyntaxError(f"{assignment}: expected name=value, as in temperature=0.7")
    if name in OWN_FIELDS:
        raise ParameterSyntaxError(f"{name} is set by the chat itself")
    try:
        return name, json.loads(text) if text else None
    except ValueError:
        return name, text
