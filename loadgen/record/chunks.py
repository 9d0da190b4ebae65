"""The chunks of a request as bytes of `chunks.bin`: about five a chunk.

For n chunks: n times, each as the difference from the one before it, n token counts, n byte counts, all as
LEB128 variable-length integers. A line of `events.jsonl` says where they start and how many there are.
"""

from __future__ import annotations

from array import array

import numpy as np

GROUP_SHIFTS = np.arange(0, 63, 7, dtype=np.int64)  # seven bits a byte, up to 63 bits
MAX_BYTES = 27  # of a chunk
Chunks = tuple["array[int]", "array[int]", "array[int]"]


def encode_chunks(times_ns: array[int], tokens: array[int], sizes: array[int]) -> bytes:
    """Times must not fall and be at least 0."""
    steps_ns = np.diff(np.array(times_ns, np.int64), prepend=0)
    values = np.concatenate([steps_ns, tokens, sizes]).astype(np.int64)
    groups = values[:, None] >> GROUP_SHIFTS[: int(values.max(initial=0)).bit_length() // 7 + 1]
    needed = groups > 0
    needed[:, 0] = True
    more = np.zeros_like(needed)
    more[:, :-1] = needed[:, 1:]
    encoded = ((groups & 127) | (more << 7)).astype(np.uint8)
    return encoded[needed].tobytes()


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
