"""GET / and /dashboard: the chat page and the live page, with the files that they load."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from starlette.responses import Response

from server.errors import APIError

MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

# Nothing from elsewhere, nothing inline, no text turned into markup, no framing.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class PageFile(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def add_page_routes(app: FastAPI) -> set[Callable[..., Any]]:
    """Returns the endpoints, for the list of those that need no key: a browser sends none for a page.

    The files hold no data. Their scripts ask the API for all that they show, with the key that the user has
    typed in.
    """
    pages = _read_pages()

    @app.get("/", include_in_schema=False)
    async def chat_page(request: Request) -> Response:
        return _answer(request, pages["chat.html"])

    @app.get("/dashboard", include_in_schema=False)
    async def live_page(request: Request) -> Response:
        return _answer(request, pages["dashboard.html"])

    @app.get("/pages/{name}", include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        """Only what was found at the start: no path is ever made of a name."""
        if name not in pages:
            raise APIError(404, f"Invalid URL (GET {request.url.path})")
        return _answer(request, pages[name])

    return {chat_page, live_page, page_file}


def _read_pages() -> dict[str, PageFile]:
    """The files in server/pages that browsers load, by name."""
    pages = {}
    for file in files("server.pages").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in MEDIA_TYPES:
            content = file.read_bytes()
            pages[file.name] = PageFile(content, MEDIA_TYPES[suffix], f'"{sha256(content).hexdigest()[:32]}"')
    return pages


def _answer(request: Request, page: PageFile) -> Response:
    headers = {**HEADERS, "ETag": page.etag}
    if request.headers.get("if-none-match") == page.etag:
        return Response(None, 304, headers)
    return Response(page.content, 200, headers, page.media_type)
