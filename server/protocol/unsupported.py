"""Parameters that are known and would change the answer but are not offered: refused, never ignored."""

from __future__ import annotations

import logging
from typing import Any

from server.errors import unsupported
from server.protocol.common import RequestBody

logger = logging.getLogger(__name__)

_ABSENT: tuple[Any, ...] = (None,)

HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "prompt_embeds": _ABSENT,
    "prompt_logprobs": _ABSENT,
    "truncate_prompt_tokens": _ABSENT,
    "allowed_token_ids": _ABSENT,
    "bad_words": (None, []),
    "spaces_between_special_tokens": (None, True),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": _ABSENT,
    "guided_json": _ABSENT,
    "guided_regex": _ABSENT,
    "guided_choice": _ABSENT,
    "guided_grammar": _ABSENT,
    "json_schema": _ABSENT,
    "regex": _ABSENT,
    "ebnf": _ABSENT,
    "grammar": _ABSENT,
    "tools": _ABSENT,
    "tool_choice": (None, "none"),
    "functions": _ABSENT,
    "function_call": (None, "none"),
    "audio": _ABSENT,
    "modalities": (None, ["text"]),
    "web_search_options": _ABSENT,
    "chat_template": _ABSENT,
    "echo": (None, False),
}
"""Field: the values that ask for nothing out of the ordinary."""


def refuse_unsupported(body: RequestBody) -> None:
    """Raise `APIError` for a known field that is not offered; what nobody knows is only noted in the log."""
    extra = body.model_extra or {}
    for name, value in extra.items():
        harmless = HARMLESS_VALUES.get(name)
        if harmless is not None and value not in harmless:
            raise unsupported(name)
    unknown = extra.keys() - HARMLESS_VALUES.keys()
    if unknown:
        logger.debug("ignored unknown fields: %s", ", ".join(sorted(unknown))[:200])
