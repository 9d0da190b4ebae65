"""Server-sent events out of a whole body, however the network cut it.

Follows the WHATWG event stream format: lines end in LF, CR or CRLF, a blank line ends an event, lines that
begin with a colon are comments, and several data lines of one event are joined by LF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(rb"\r\n|\n|\r")
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")  # atomic, or a lone CRLF would count as two ends


def split_events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (data, offset just behind the event) of every event that has data.

    Bytes behind the last blank line count as an event too: some servers leave out the final blank line.
    """
    start = 0
    for end in _EVENT_END.finditer(body):
        data = _event_data(body[start : end.start()])
        start = end.end()
        if data is not None:
            yield data, start
    data = _event_data(body[start:])
    if data is not None:
        yield data, len(body)


def _event_data(block: bytes) -> bytes | None:
    if block.startswith(b"data:") and b"\n" not in block and b"\r" not in block:
        return block[6:] if block.startswith(b" ", 5) else block[5:]
    lines = [line for line in _LINE_END.split(block) if line == b"data" or line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
