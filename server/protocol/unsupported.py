"""Parameters that are known and would change the answer but are not offered: refused, never ignored."""

from __future__ import annotations

import logging
from typing import Any

from server.errors import invalid, unsupported
from server.protocol.common import RequestBody

logger = logging.getLogger(__name__)

_ABSENT: tuple[Any, ...] = (None,)

HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "prompt_embeds": _ABSENT,
    "allowed_token_ids": _ABSENT,
    "bad_words": (None, []),
    "spaces_between_special_tokens": (None, True),
    "guided_whitespace_pattern": _ABSENT,
    "json_schema": (None, ""),
    "regex": (None, ""),
    "ebnf": (None, ""),
    "grammar": (None, ""),
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

HINTS = {"functions": "use tools", "function_call": "use tool_choice"}
"""What took the place of a field."""

IGNORED = frozenset(
    {"user", "safety_identifier", "metadata", "store", "verbosity", "prediction"}
    | {"prompt_cache_key", "prompt_cache_retention", "moderation", "max_tool_calls"}
    | {"kv_transfer_params", "vllm_xargs", "lora", "length_penalty", "repetition_detection"}
    | {"thinking_token_budget"}
)
"""Known fields that are ignored: labels, hints, and features of others that change no answer here."""


def refuse_unsupported(body: RequestBody, *, refuse_unknown: bool) -> None:
    """Raise `APIError` for a known field that is not offered, and for one that nobody knows if told to."""
    extra = body.model_extra or {}
    for name, value in extra.items():
        harmless = HARMLESS_VALUES.get(name)
        if harmless is not None and value not in harmless:
            hint = f": {HINTS[name]}" if name in HINTS else ""
            raise unsupported(name, f"{name} is not supported{hint}")
    unknown = extra.keys() - HARMLESS_VALUES.keys() - IGNORED
    if unknown and refuse_unknown:
        name = min(unknown)[:100]
        raise invalid(name, f"there is no field {name!r} (--strict-params)", "unknown_parameter")
    if unknown and logger.isEnabledFor(logging.DEBUG):
        logger.debug("ignored unknown fields: %s", ", ".join(sorted(unknown))[:200])
