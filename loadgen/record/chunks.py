"""The chunks of a request as bytes of `chunks.bin`: about five a chunk.

For n chunks: n times, each as the difference from the one before it, n token counts, n byte counts, all as
LEB128 variable-length integers. A line of `events.jsonl` says where they start and how many there are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

MAX_BYTES = 27  # of a chunk
Chunks = tuple["array[int]", "array[int]", "array[int]"]


def encode_chunks(requests: Iterable[Chunks]) -> tuple[bytes, list[int]]:
    """The chunks of some requests, one request behind the other, and where those of each begin.

    Several at once, since NumPy's calls cost more than their work on one. Times must not fall and be at
    least 0.
    """
    values: array[int] = array("q")
    firsts = []
    later_times = []
    for times_ns, tokens, sizes in requests:
        first = len(values)
        firsts.append(first)
        values += times_ns
        values += tokens
        values += sizes
        later_times.append(slice(first + 1, max(first + len(times_ns), first + 1)))
    absolute = np.frombuffer(values, np.int64)
    left = absolute.copy()
    for times in later_times:
        left[times] -= absolute[times.start - 1 : times.stop - 1]
    byte_counts = np.ones(len(left), np.int64)
    for bits in range(7, int(left.max(initial=0)).bit_length(), 7):
        byte_counts += left >> bits > 0
    ends = byte_counts.cumsum()
    encoded = np.empty(byte_counts.sum(), np.uint8)
    places = ends - byte_counts
    starts = np.append(places, len(encoded))[firsts].tolist()
    while len(left):  # the lowest seven bits of all that still have some
        more = left > 127
        encoded[places] = left & 127 | more << 7
        left, places = left[more] >> 7, places[more] + 1
    return encoded.tobytes(), starts


def decode_chunks(data: bytes, at: int, count: int) -> Chunks | None:
    """(times, tokens, sizes) of the `count` chunks that start at `at`; None if the data ends before."""
    if not count:
        return array("q"), array("q"), array("q")
    if at >= len(data):
        return None
    raw = np.frombuffer(data, np.uint8, min(len(data) - at, MAX_BYTES * count), at)
    ends = np.flatnonzero(raw < 128)[: 3 * count]
    if len(ends) < 3 * count:
        return None
    groups = raw[: ends[-1] + 1].astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
    values = np.add.reduceat((groups & 127) << (7 * places), starts)
    times, tokens, sizes = values[:count].cumsum(), values[count : 2 * count], values[2 * count :]
    return array("q", times.tobytes()), array("q", tokens.tobytes()), array("q", sizes.tobytes())
