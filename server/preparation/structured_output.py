"""What a body asks its answer to match: `response_format`, or vLLM's `structured_outputs` and `guided_*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.grammar.source import GrammarError, GrammarSource
from server.delivery.generation import WantedGrammar
from server.errors import invalid, invalid_schema, unsupported
from server.protocol.common import GenerationBody

MAX_CHOICES = 1024


def wanted_grammar(body: GenerationBody) -> WantedGrammar | None:
    """None if the answer may be any text. Raises `APIError`."""
    wanted = [*_of_response_format(body.response_format), *_of_structured_outputs(body.structured_outputs)]
    for kind in ("json", "regex", "choice", "grammar"):
        param = f"guided_{kind}"
        value = getattr(body, param)
        if value is not None:
            wanted.append(WantedGrammar(param, _MAKERS[kind](value, param)))
    if len(wanted) > 1:
        raise invalid(wanted[1].param, f"{wanted[0].param} and {wanted[1].param} cannot both be given")
    return wanted[0] if wanted else None


def _of_response_format(response_format: dict[str, Any] | None) -> list[WantedGrammar]:
    param = "response_format"
    if response_format is None:
        return []
    match response_format.get("type"):
        case "text":
            return []
        case "json_object" if response_format.get("schema") is None:
            return [WantedGrammar(param, GrammarSource.any_json_object())]
        case "json_object":  # a schema beside it, as llama.cpp's server takes it
            return [WantedGrammar(param, _json(response_format["schema"], f"{param}.schema"))]
        case "json_schema":
            content = response_format.get("json_schema")
            schema = content.get("schema") if isinstance(content, dict) else None
            if schema is None:
                name = f"{param}.json_schema.schema"
                raise invalid(param, f"{name} is required", "missing_required_parameter")
            return [WantedGrammar(param, _json(schema, param))]
        case "structural_tag":
            raise unsupported(param, f"{param} of type structural_tag is not supported")
    raise invalid(param, f"{param}.type must be text, json_object or json_schema")


def _of_structured_outputs(options: dict[str, Any] | None) -> list[WantedGrammar]:
    wanted = []
    for kind, value in (options or {}).items():
        param = f"structured_outputs.{kind}"
        if value is None or kind == "disable_fallback":  # there is nothing here to fall back to
            continue
        if kind == "json_object":
            if value is True:
                wanted.append(WantedGrammar(param, GrammarSource.any_json_object()))
        elif kind in _MAKERS:
            wanted.append(WantedGrammar(param, _MAKERS[kind](value, param)))
        elif value is not False:
            raise unsupported(param)
    return wanted


def _json(value: Any, param: str) -> GrammarSource:
    try:
        return GrammarSource.json_schema(value)
    except GrammarError as error:
        raise invalid_schema(param, str(error)) from None


def _choice(value: Any, param: str) -> GrammarSource:
    is_list = isinstance(value, list) and all(isinstance(choice, str) for choice in value)
    if not is_list or not 1 <= len(value) <= MAX_CHOICES:
        raise invalid(param, f"{param} must be a list of 1 to {MAX_CHOICES} strings")
    return GrammarSource.choice(value)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise invalid(param, f"{param} must be a string", "invalid_type")
    return value


_MAKERS: dict[str, Callable[[Any, str], GrammarSource]] = {
    "json": _json,
    "regex": lambda value, param: GrammarSource.regex(_text(value, param)),
    "choice": _choice,
    "grammar": lambda value, param: GrammarSource.grammar(_text(value, param)),
}
