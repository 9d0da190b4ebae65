"""Reads and validates a JSON body: 408, 413, 415 and every 400 come from here, before anything is done."""

from __future__ import annotations

import asyncio
import json
from codecs import BOM_UTF8
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from server.config import ServerConfig
from server.errors import APIError, invalid, invalid_schema
from server.protocol.common import RequestBody
from server.protocol.unsupported import refuse_unsupported

BodyT = TypeVar("BodyT", bound=RequestBody)
PathPart = str | int

MAX_VALUES, MAX_MEMBERS = 4_000_000, 300_000
"""Most JSON values of a body, and most members of objects, objects and arrays, which take ten times as long.

Parsing holds the interpreter's lock, so that meanwhile nothing else is served, in whatever thread it is done.
"""

MAX_DIAGNOSED_BYTES = 2**20
"""Larger bodies that do not parse are not parsed again to tell why: that would hold up the event loop."""

MIN_PROGRESS_BYTES, PROGRESS_TIME_S = 16 * 1024, 30.0
"""What must come of a body within that time, again and again; the last part, all that is left."""


async def read_body(request: Request, model: type[BodyT], config: ServerConfig) -> BodyT:
    """The request's body as `model`. Raises `APIError` for whatever is wrong with it."""
    raw = await _read_bytes(request, config.max_request_bytes)
    content_type = request.headers.get("content-type", "")
    is_json = content_type.partition(";")[0].strip().lower() == "application/json"
    if raw and not is_json:
        # Other types are never parsed: browsers send them across sites without asking first.
        raise APIError(415, "send the body with the header 'Content-Type: application/json'")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise APIError(415, "send the body as it is, without a Content-Encoding")
    _check_values(raw)
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise _validation_error(error, raw) from None
    refuse_unsupported(body, refuse_unknown=config.strict_params)
    return body


def validated(model: type[BodyT], fields: dict[str, Any]) -> BodyT:
    """As `read_body`, for a body that was translated from another. Raises `APIError`."""
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        raise _validation_error(error, b"") from None
    refuse_unsupported(body, refuse_unknown=False)
    return body


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    """Also bounds chunked bodies, which name no length, and those that are sent too slowly."""
    too_large = APIError(413, f"the body is larger than {max_bytes} bytes (--max-request-bytes)")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    chunks, size, timed_size = [], 0, 0
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(PROGRESS_TIME_S) as limit:
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
                if size - timed_size >= MIN_PROGRESS_BYTES:
                    timed_size = size
                    limit.reschedule(now() + PROGRESS_TIME_S)
    except TimeoutError:
        message = f"the body came too slowly: less than {MIN_PROGRESS_BYTES} bytes in {PROGRESS_TIME_S:g} s"
        raise APIError(408, message, code="request_timeout", headers={"Connection": "close"}) from None
    return b"".join(chunks).removeprefix(BOM_UTF8)  # which some tools of Windows write before a text


def _check_values(raw: bytes) -> None:
    """Counts the marks between values, those within texts too; an upper bound that takes no time."""
    num_members = raw.count(b":") + raw.count(b"[") + raw.count(b"{")
    if raw.count(b",") > MAX_VALUES or num_members > MAX_MEMBERS:
        raise APIError(413, f"the body holds more than {MAX_VALUES} values or {MAX_MEMBERS} members")


def _validation_error(error: ValidationError, raw: bytes) -> APIError:
    """Location and message only: the input is not echoed."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    kind, message, location = first["type"], first["msg"], first["loc"]
    if kind == "json_invalid" and "recursion limit" in message:
        return _too_deep(raw)
    if kind == "json_invalid":
        return _find_lone_surrogate(raw) or invalid(None, message, "invalid_json")
    if not location:
        return invalid(None, "the body must be a JSON object", "invalid_json")
    code = "missing_required_parameter" if kind == "missing" else "invalid_value"
    # Only conversations are deep enough for a path to help; elsewhere `param` is the field itself.
    param = format_path(location) if location[0] == "messages" else str(location[0])
    return invalid(param, f"{format_path(location)}: {message}", code)


def _too_deep(raw: bytes) -> APIError:
    """The parser does not tell where. Nothing but schemas is deep in bodies that mean something."""
    for param in ("response_format", "structured_outputs", "guided_json", "tools"):
        if b'"%s"' % param.encode() in raw:
            return invalid_schema(param, "it is nested too deeply")
    return invalid(None, "the body is nested too deeply", "invalid_json")


def format_path(path: tuple[PathPart, ...]) -> str:
    """("messages", 0, "role") as `messages[0].role`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")[:100]


def _find_lone_surrogate(raw: bytes) -> APIError | None:
    """Tells text that no tokenizer can take from other JSON errors; the strict parser reports both alike."""
    if b"\\u" not in raw or len(raw) > MAX_DIAGNOSED_BYTES:
        return None
    try:
        path = _surrogate_path(json.loads(raw), ())
    except (ValueError, RecursionError):
        return None
    if path is None:
        return None
    param = format_path(path) if path[:1] == ("messages",) else str(path[0]) if path else None
    return invalid(param, f"{format_path(path)} holds a lone surrogate", "invalid_unicode")


def _surrogate_path(value: Any, path: tuple[PathPart, ...]) -> tuple[PathPart, ...] | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return path
        return None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found = _surrogate_path(item, (*path, key))
        if found is not None:
            return found
    return None
