"""One HTTP/1.1 response read from raw bytes, with the arrival time of each piece of its body."""

from __future__ import annotations

from functools import lru_cache

MAX_HEAD_BYTES = 64 * 1024


class HttpError(ValueError):
    """The bytes are not an HTTP/1.1 response; the message says where they go wrong."""


class ResponseReader:
    """Feed it what the socket gives. Body framing (chunked, Content-Length, until close) is undone at once,
    which costs a slice a read; nothing of the body itself is looked at."""

    __slots__ = (
        "_between_chunks", "_chunk_left", "_chunked", "_head", "_length_left", "_rest", "first_byte_ns",
        "headers", "headers_ns", "keep_alive", "part_times_ns", "parts", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}  # names in lower case
        self.keep_alive = True
        self.first_byte_ns = 0  # times are those given to `feed`; 0 means not yet
        self.headers_ns = 0
        self.parts: list[bytes] = []  # the body, in order
        self.part_times_ns: list[int] = []  # when each part was read
        self._head = b""
        self._rest = b""  # chunked: an incomplete chunk header or trailer
        self._chunked = False
        self._between_chunks = False  # the next byte begins a chunk
        self._chunk_left = 0  # bytes of the current chunk still to come, its closing CRLF included
        self._length_left: int | None = None  # None: the body ends where the connection does

    def feed(self, data: bytes, now_ns: int) -> bool:
        """Take what one read gave. Returns True once the response is complete. Raises HttpError."""
        if self._between_chunks:
            line = _length_line(len(data))
            if data.startswith(line):  # one whole chunk and nothing else, as most reads are
                self.parts.append(data[len(line) : -2])
                self.part_times_ns.append(now_ns)
                return False
        if not self.headers_ns:
            self.first_byte_ns = self.first_byte_ns or now_ns
            body = self._feed_head(data, now_ns)
            if body is None:
                return False
            data = body
        if self._chunked:
            complete = self._feed_chunked(data, now_ns)
            self._between_chunks = not (complete or self._rest or self._chunk_left)
            return complete
        return self._feed_plain(data, now_ns)

    def ends_at_close(self) -> bool:
        """Whether the end of the connection is the regular end of this response."""
        return bool(self.headers_ns) and not self._chunked and self._length_left is None

    def _feed_head(self, data: bytes, now_ns: int) -> bytes | None:
        """Collect the head; None while it is incomplete, else the first bytes of the body."""
        self._head += data
        while True:
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > MAX_HEAD_BYTES:
                    raise HttpError("the response head has no end")
                return None
            head, self._head = self._head[:end], self._head[end + 4 :]
            self._parse_head(head)
            if self.status >= 200:
                break
            # 1xx: the real response follows.
        self.headers_ns = now_ns
        body, self._head = self._head, b""
        return body

    def _parse_head(self, head: bytes) -> None:
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise HttpError(f"bad status line {status_line[:80]!r}")
        self.status = int(rest[:3])
        self.headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and version != "HTTP/1.0"
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            length = "0"
        if length is not None and not self._chunked:
            if not length.isdecimal():
                raise HttpError(f"bad Content-Length {length[:20]!r}")
            self._length_left = int(length)

    def _feed_plain(self, data: bytes, now_ns: int) -> bool:
        if self._length_left is not None:
            if len(data) > self._length_left:
                self.keep_alive = False  # bytes that belong to no response
                data = data[: self._length_left]
            self._length_left -= len(data)
        if data:
            self.parts.append(data)
            self.part_times_ns.append(now_ns)
        return self._length_left == 0

    def _feed_chunked(self, data: bytes, now_ns: int) -> bool:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._chunk_left:
                step = min(self._chunk_left, size - at)
                payload = min(step, self._chunk_left - 2)
                if payload > 0:
                    self.parts.append(data[at : at + payload])
                    self.part_times_ns.append(now_ns)
                self._chunk_left -= step
                at += step
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            length = _chunk_length(data[at:end])
            if length == 0:
                return self._feed_trailer(data, at, end + 2)
            self._chunk_left = length + 2
            at = end + 2
        self._rest = data[at:]
        return False

    def _feed_trailer(self, data: bytes, last_chunk: int, at: int) -> bool:
        """The last chunk is in: the response ends after the blank line that follows any trailer fields."""
        if data.startswith(b"\r\n", at):
            end = at + 2
        else:
            end = data.find(b"\r\n\r\n", at) + 4
            if end < 4:
                self._rest = data[last_chunk:]  # read the last chunk again when more has come
                return False
        self.keep_alive = self.keep_alive and end == len(data)
        return True


@lru_cache(maxsize=4096)
def _length_line(read_size: int) -> bytes:
    """How a read of that size begins if it is one whole chunk with content, as most servers write it."""
    for digits in range(1, 9):
        length = read_size - digits - 4  # without the line ends behind the length and behind the content
        line = b"%x\r\n" % max(length, 0)
        if length > 0 and len(line) == digits + 2:
            return line
    return b"none"


def _chunk_length(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if not digits.isalnum():
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise HttpError(f"bad chunk length {line[:20]!r}") from None
