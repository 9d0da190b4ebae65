"""One streamed chat answer after another from an OpenAI-compatible server, by the standard library alone.

The official client takes a second to import, which a command that people type should not.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 600.0
"""A long prompt on a busy server may take minutes, and not every server sends comments meanwhile."""


class ChatError(Exception):
    """Why there is no answer, in words for the user."""


class ChatClient:
    """One server, asked with the standard library: an HTTP library would take long to import."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """`url` as OpenAI clients take it; without a path it gets `/v1`. Raises `ChatError`."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatError(f"{url} is no address: expected http://HOST:PORT or https://HOST:PORT")
        path = parts.path.rstrip("/") or "/v1"
        self.base_url = f"{parts.scheme}://{parts.netloc}{path}"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # Proxies are for other machines, whatever $no_proxy has forgotten.
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if is_local else None))

    def first_model(self) -> str:
        """The name of the model that the server lists first. Raises `ChatError`."""
        with self._open("/models", None, CONNECT_TIMEOUT_S) as response:
            try:
                return str(json.load(response)["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise ChatError(f"{self.base_url}/models lists no model; name one with --model") from None

    def answer(self, body: dict[str, Any]) -> AnswerStream:
        """The answer to a request without stream fields, which is sent when the stream is iterated."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        return AnswerStream(self, json.dumps(body).encode())

    def _open(self, path: str, body: bytes | None, timeout_s: float) -> http.client.HTTPResponse:
        headers = {**self._headers, **({"Content-Type": "application/json"} if body else {})}
        request = urllib.request.Request(self.base_url + path, body, headers)
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=timeout_s)
        except HTTPError as error:
            raise ChatError(_refusal(error)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise ChatError(f"no server answers at {self.base_url} ({_words(reason)})") from None
        return response


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    reasoning: str


class AnswerStream:
    """Iterate it for the answer's pieces, as they come; the figures are of what has come so far."""

    def __init__(self, client: ChatClient, body: bytes) -> None:
        self._client = client
        self._body = body
        self._sent_s = self._first_s = self._last_s = 0.0
        self.num_tokens = 0  # chunks with text, until the server tells the number
        self.is_counted = False
        self.finish_reason: str | None = None

    def __iter__(self) -> Iterator[Piece]:
        """Raises `ChatError`, also for an answer that is cut off."""
        self._sent_s = time.monotonic()
        with self._client._open("/chat/completions", self._body, SILENCE_TIMEOUT_S) as response:
            try:
                for line in response:
                    data = line[5:].strip() if line.startswith(b"data:") else b""
                    if data == b"[DONE]":
                        return
                    if data and (piece := self._take(json.loads(data))) is not None:
                        yield piece
            except (OSError, http.client.HTTPException) as error:
                raise ChatError(f"the connection broke ({_words(error)})") from None
            except ValueError:
                raise ChatError("the server sent something that is not JSON") from None
        if self.finish_reason is None:
            raise ChatError("the answer was cut off")

    @property
    def time_to_first_token_s(self) -> float | None:
        return self._first_s - self._sent_s if self._first_s else None

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None without a second one."""
        seconds = self._last_s - self._first_s
        return (self.num_tokens - 1) / seconds if self.num_tokens > 1 and seconds > 0 else None

    def _take(self, chunk: dict[str, Any]) -> Piece | None:
        if "error" in chunk:
            raise ChatError(_message(chunk) or "the server broke the answer off")
        if chunk.get("usage"):
            self.num_tokens = chunk["usage"]["completion_tokens"]
            self.is_counted = True
        if not chunk.get("choices"):
            return None
        choice = chunk["choices"][0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta") or {}
        piece = Piece(delta.get("content") or "", delta.get("reasoning_content") or "")
        if not piece.text and not piece.reasoning:
            return None
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        self.num_tokens += 0 if self.is_counted else 1
        return piece


def _refusal(error: HTTPError) -> str:
    """What an error response says, and what to do about it where that is known."""
    try:
        message = _message(json.load(error))
    except (ValueError, OSError):
        message = None
    message = message or f"the server answered {error.code} {error.reason}"
    if error.code == 401:
        return f"{message} (give it with --api-key or $OCTAVO_API_KEY)"
    if wait := error.headers.get("Retry-After"):
        return f"{message}; try again in {wait} s"
    return message


def _message(body: Any) -> str | None:
    """Of an error object; servers differ in where they put it."""
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return " ".join(str(message).split()) if message else None


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "it took too long"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return " ".join(str(reason).split()) or type(reason).__name__
