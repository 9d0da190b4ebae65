"""Writes the tables of docs/api.md from the request models and their notes.

python docs/generate_api.py; a test fails while the page is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from server.protocol.admin import AbortRequest
from server.protocol.chat import ChatRequest
from server.protocol.common import GenerationBody, RequestBody
from server.protocol.completions import CompletionRequest
from server.protocol.field_notes import REQUIRED, FieldNote, note_of
from server.protocol.responses import ResponsesRequest
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from server.protocol.unsupported import HARMLESS_VALUES, IGNORED

PAGE = Path(__file__).with_name("api.md")

ENDPOINTS: tuple[tuple[type[RequestBody], str], ...] = (
    (CompletionRequest, "POST /v1/completions"),
    (ChatRequest, "POST /v1/chat/completions"),
    (ResponsesRequest, "POST /v1/responses"),
    (TokenizeRequest, "POST /tokenize"),
    (DetokenizeRequest, "POST /detokenize"),
    (AbortRequest, "POST /abort_request"),
)
GENERATION = (CompletionRequest, ChatRequest, ResponsesRequest)
HEADER = "| field | type | default | range | | others |\n| --- | --- | --- | --- | --- | --- |"


def updated(page: str) -> str:
    """The page with what stands between `<!-- NAME -->` and `<!-- end -->` made anew."""
    for name, content in (("fields", field_tables()), ("refused", refused()), ("ignored", ignored())):
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = between.subn(lambda match, new=content: f"{match[1]}{new}{match[2]}", page)
        assert count == 1, f"the page has no place for {name}"
    return page


def field_tables() -> str:
    """What all endpoints for text share, and then what each has beyond that."""
    shared = [name for name in GenerationBody.model_fields if _means_the_same(name)]
    sections = [_section("All three endpoints for text", CompletionRequest, shared)]
    for model, title in ENDPOINTS:
        own = [name for name in model.model_fields if name not in skipped(model, shared)]
        sections.append(_section(f"`{title}`", model, own))
    return "\n".join(sections)


def skipped(model: type[RequestBody], shared: list[str]) -> Iterable[str]:
    """What a model's own table leaves out; /tokenize looks only at what renders a chat."""
    if model in GENERATION:
        return shared
    return GenerationBody.model_fields if model is TokenizeRequest else ()


def refused() -> str:
    return ", ".join(f"`{name}`" for name in sorted(HARMLESS_VALUES)) + "\n"


def ignored() -> str:
    return ", ".join(f"`{name}`" for name in sorted(IGNORED)) + "\n"


def _means_the_same(field: str) -> bool:
    return len({note_of(model.__name__, field).text for model in GENERATION}) == 1


def _section(title: str, model: type[RequestBody], fields: Iterable[str]) -> str:
    rows = [_row(model, field) for field in fields]
    return "\n".join([f"### {title}", "", HEADER, *rows, ""])


def _row(model: type[RequestBody], field: str) -> str:
    note = note_of(model.__name__, field)
    default = "required" if REQUIRED.get(model.__name__) == field else note.default
    cells = (f"`{field}`", _type(model, field), default, _range(note), note.text, note.differs)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(model: type[RequestBody], field: str) -> str:
    """Of JSON; null aside."""
    schema = {**model.model_json_schema()["properties"][field], **note_of(model.__name__, field).schema}
    kinds = dict.fromkeys(option.get("type", "object") for option in schema.get("anyOf", [schema]))
    return " or ".join(kind for kind in kinds if kind != "null")


def _range(note: FieldNote) -> str:
    schema: dict[str, Any] = note.schema
    low = f"{schema['minimum']:,}" if "minimum" in schema else ""
    low = f"above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else low
    if "maximum" in schema:
        return f"{low} to {schema['maximum']:,}"
    return f"from {low}" if low else ""


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
