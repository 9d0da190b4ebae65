"""Server-sent events out of a whole body, however the network cut it.

Follows the WHATWG event stream format: lines end in LF, CR or CRLF, a blank line ends an event, lines that
begin with a colon are comments, and several data lines of one event are joined by LF.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")  # atomic, or a lone CRLF would count as two ends


def split_events(body: bytes) -> list[tuple[bytes, int]]:
    """(data, offset just behind the event) of every event that has data.

    Bytes behind the last blank line count as an event too: some servers leave out the final blank line.
    """
    if b"\r" in body:
        return _split_any_line_end(body)
    events = []
    end = 0
    for block in body.split(b"\n\n"):
        end += len(block) + 2
        if block.startswith(b"data: ") and b"\n" not in block:  # nearly all events are one such line
            events.append((block[6:], end))
        elif (data := _event_data(block)) is not None:
            events.append((data, end))
    return _end_within(events, len(body))


def _split_any_line_end(body: bytes) -> list[tuple[bytes, int]]:
    events = []
    start = 0
    for end in _EVENT_END.finditer(body):
        if (data := _event_data(body[start : end.start()])) is not None:
            events.append((data, end.end()))
        start = end.end()
    if (data := _event_data(body[start:])) is not None:
        events.append((data, len(body)))
    return events


def _end_within(events: list[tuple[bytes, int]], size: int) -> list[tuple[bytes, int]]:
    """An unfinished last event ends with the body, not behind the blank line that it lacks."""
    if events and events[-1][1] > size:
        events[-1] = (events[-1][0], size)
    return events


def _event_data(block: bytes) -> bytes | None:
    lines = [line for line in _LINE_END.split(block) if line == b"data" or line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
