"""One error shape for every failure: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine.handle import EngineUnavailableError, PromptTooLongError, QueueFullError
from engine.sampling_params import ParameterError

MAX_MESSAGE_LENGTH = 500

HTTP_CODES = {
    404: "unknown_url",
    405: "method_not_supported",
    413: "request_too_large",
    415: "unsupported_media_type",
    431: "headers_too_large",
}
"""The slug of a failure for which HTTP itself has a status; OpenAI's own where it has one."""


class APIError(Exception):
    """A failure as the client sees it. `code` is the API's slug, `param` names the field at fault.

    Only where HTTP's own status says all may the code be left out.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE_LENGTH else message[:MAX_MESSAGE_LENGTH] + "..."
        self.code = code or HTTP_CODES.get(status)
        self.param = param
        self.type = type or ("server_error" if status >= 500 else "invalid_request_error")
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return Response(orjson.dumps(self.body()), self.status, self.headers, media_type="application/json")


def invalid(param: str | None, message: str, code: str = "invalid_value") -> APIError:
    """A 400 for a parameter that is there but wrong."""
    return APIError(400, message, code=code, param=param)


def invalid_schema(param: str, message: str) -> APIError:
    """A 400 for a schema, regular expression or grammar that cannot be followed."""
    return invalid(param, f"{param}: {message}", "invalid_schema")


def unsupported(param: str, message: str | None = None) -> APIError:
    """A 400 for what would change the answer but is not offered: it must never be ignored silently."""
    return invalid(param, message or f"{param} is not supported", "unsupported_parameter")


def internal_error(request_id: str) -> APIError:
    """Retrying the same request would fail alike, so clients are told not to."""
    message = f"internal error while serving request {request_id}"
    return APIError(500, message, code="internal_error", headers={"x-should-retry": "false"})


def from_exception(error: Exception) -> APIError | None:
    """The API's view of an error that a lower room raised; None if it is no failure that we know."""
    match error:
        case APIError():
            return error
        case ParameterError():
            return invalid(error.param, str(error))
        case PromptTooLongError():
            return invalid("prompt", str(error), "context_length_exceeded")
        case QueueFullError():
            retry_after = {"Retry-After": str(max(1, round(error.retry_after_s)))}
            return APIError(429, str(error), code="queue_full", type="rate_limit_error", headers=retry_after)
        case EngineUnavailableError():
            retry_after = {} if error.code == "engine_dead" else {"Retry-After": "5"}
            return APIError(503, str(error), code=error.code, headers=retry_after)
        case UnicodeError():
            return invalid(None, "the text is not valid Unicode", "invalid_unicode")
    return None


def install_error_handlers(app: FastAPI) -> None:
    """Exceptions that leave an endpoint become error objects; `InternalErrorMiddleware` has the rest."""
    for error_type in (
        APIError,
        ParameterError,
        PromptTooLongError,
        QueueFullError,
        EngineUnavailableError,
        UnicodeError,
    ):
        app.add_exception_handler(error_type, _known_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _known_error(request: Request, error: Exception) -> Response:
    known = from_exception(error)
    assert known is not None
    return known.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """The router's own 404 and 405."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        is_astray = request.method == "POST" and not request.url.path.startswith("/v1/")
        message = f"Invalid URL ({where})" + "; the base URL of clients ends in /v1" * is_astray
    elif error.status_code == 405:
        message = f"Method not allowed ({where})"
    else:
        message = HTTPStatus(error.status_code).phrase
    return APIError(error.status_code, message, headers=error.headers).response()


async def _validation_error(request: Request, error: Exception) -> Response:
    """FastAPI's own validation (path and query); its text would show server paths and the input."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(map(str, first["loc"][1:])) or None
    return invalid(param, f"{param}: {first['msg']}").response()
