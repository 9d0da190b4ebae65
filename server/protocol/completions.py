"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from server.errors import invalid
from server.protocol.common import GenerationBody

PromptT = TypeVar("PromptT", str, list[int])

MAX_QUICK_IDS = 8192
"""Longer lists of token ids take the event loop a millisecond."""


def _count(value: Any) -> Any:
    """Older clients send a bool for logprobs: true means the chosen token and one more."""
    return {True: 1, False: None}[value] if isinstance(value, bool) else value


class CompletionRequest(GenerationBody):
    prompt: Any = Field(
        default=None, description="a string, a list of strings, a list of token ids, or a list of such lists"
    )
    logprobs: Annotated[int | None, BeforeValidator(_count)] = None
    echo: bool | None = None
    best_of: int | None = None

    @property
    def prepares_quickly(self) -> bool:
        ids = self.prompt
        has_few_ids = isinstance(ids, list) and 0 < len(ids) <= MAX_QUICK_IDS and isinstance(ids[0], int)
        return has_few_ids and self.n in (None, 1) and not self.echo


def parse_prompts(prompt: Any) -> list[str | list[int]]:
    """All four forms of `prompt` as texts and id lists, the ids unchecked. Raises `APIError`."""
    if prompt is None:
        raise invalid("prompt", "prompt is required", "missing_required_parameter")
    if isinstance(prompt, str):
        return [_non_empty(prompt, "prompt")]
    if not isinstance(prompt, list):
        raise invalid("prompt", "prompt must be a string or a list", "invalid_type")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [prompt]
    if not kinds:
        raise invalid("prompt", "prompt must not be empty")
    if kinds == {str}:
        return [_non_empty(text, f"prompt[{i}]") for i, text in enumerate(prompt)]
    if kinds == {list}:
        return [_token_ids(ids, f"prompt[{i}]") for i, ids in enumerate(prompt)]
    raise invalid(
        "prompt", "prompt must hold only strings, only token ids, or only lists of ids", "invalid_type"
    )


def _token_ids(ids: list[Any], name: str) -> list[int]:
    if ids and set(map(type, ids)) != {int}:
        raise invalid("prompt", f"{name} must hold only token ids", "invalid_type")
    return _non_empty(ids, name)


def _non_empty(prompt: PromptT, name: str) -> PromptT:
    if not prompt:
        raise invalid("prompt", f"{name} must not be empty")
    return prompt
