"""The OpenAPI schema: bodies that the routes parse themselves, and every status that they answer with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from server.protocol.answers import ErrorAnswer
from server.protocol.common import RequestBody
from server.protocol.field_notes import describe

_REF_TEMPLATE = "#/components/schemas/{model}"
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}
_EVENTS = {"text/event-stream": {"schema": _EVENT}}  # of each event
_documented: set[type[RequestBody]] = set()

ERRORS = {
    400: "The request is wrong; `param` names the field",
    401: "The key is missing or wrong",
    404: "There is no such model, request or response",
    408: "The body was sent too slowly",
    413: "The body is too large",
    415: "The body is not sent as application/json",
    429: "The queue is full; `Retry-After` tells when to come again",
    500: "A fault of the server",
    503: "The engine takes no requests: it drains, stalls or has died",
}
BODY_ERRORS = (400, 404, 408, 413, 415, 500)
GENERATION_ERRORS = (*BODY_ERRORS, 429, 503)


def json_body(model: type[RequestBody]) -> dict[str, Any]:
    """`openapi_extra` for a route that reads `model` from its body."""
    _documented.add(model)
    schema = {"$ref": _REF_TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answers(model: Any, *errors: int, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """`responses` for a route: 200 with JSON of the type `model`, and these errors."""
    ok: dict[str, Any] = {"description": "OK", "model": model}
    if streams:
        ok["content"] = _EVENTS
    return {200: ok, **{status: _error(status) for status in errors}}


def refusal(status: int) -> dict[int | str, dict[str, Any]]:
    """`responses` for a route that always answers with one error."""
    return {status: _error(status)}


def _error(status: int) -> dict[str, Any]:
    return {"description": ERRORS[status], "model": ErrorAnswer}


def install_openapi(app: FastAPI, open_endpoints: set[Callable[..., Any]] | None) -> None:
    """Complete the app's schema with what FastAPI cannot find by itself.

    `open_endpoints` are those that need no key; None if there are no keys.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(_request_schemas())
            # FastAPI's own answer to bad paths and queries is replaced by a 400.
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for operation in _operations(schema):
                operation["responses"].pop("422", None)
            if open_endpoints is not None:
                _require_key(schema, {route.unique_id for route in _routes_of(app, open_endpoints)})
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _routes_of(app: FastAPI, endpoints: set[Callable[..., Any]]) -> list[APIRoute]:
    return [route for route in app.routes if isinstance(route, APIRoute) and route.endpoint in endpoints]


def _operations(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in schema["paths"].values() for operation in path.values()]


def _request_schemas() -> dict[str, Any]:
    models = [(model, "validation") for model in sorted(_documented, key=lambda model: model.__name__)]
    _, definitions = models_json_schema(models, ref_template=_REF_TEMPLATE)  # type: ignore[arg-type]
    schemas: dict[str, Any] = definitions["$defs"]
    for model in _documented:
        describe(schemas[model.__name__], model.__name__)
    return schemas


def _require_key(schema: dict[str, Any], open_ids: set[str]) -> None:
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    error = {"$ref": _REF_TEMPLATE.format(model="ErrorAnswer")}
    denied = {"description": ERRORS[401], "content": {"application/json": {"schema": error}}}
    for operation in _operations(schema):
        if operation["operationId"] not in open_ids:
            operation["security"] = [{"key": []}]
            operation["responses"]["401"] = denied
