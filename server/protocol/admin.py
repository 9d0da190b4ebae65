"""POST /abort_request."""

from __future__ import annotations

from server.protocol.common import RequestBody


class AbortRequest(RequestBody):
    """The id of one answer, or `abort_all`."""

    request_id: str | None = None
    abort_all: bool | None = None
