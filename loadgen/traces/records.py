"""What every trace reader makes: rows with arrival times and lengths, and a count of all that it dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_TOKENS = 10_000_000  # of one prompt or output; more is damage, and would not fit in memory


class TraceError(ValueError):
    """The file as a whole cannot be replayed; the message names the file and the reason."""


class RowError(ValueError):
    """One row cannot be replayed. Its only argument is the reason, a short name that is counted."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request. `arrival_ns` counts from the start of the trace.

    A later turn of a session comes `delay_ns` after the end of the turn before, or, with None, at its
    `arrival_ns`; its `input_tokens` and `hash_ids` are those of the new part of the prompt.
    """

    arrival_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None = None  # one per prefix block; equal ids mean equal leading tokens
    session: str | None = None
    turn: int = 0
    delay_ns: int | None = None
    request_class: str = ""


@dataclass(slots=True)
class Trace:
    """A whole trace in order of arrival. Always `rows_read == len(rows) + sum(dropped.values())`."""

    format: str
    path: str
    rows: list[TraceRow]
    rows_read: int
    dropped: Counter[str] = field(default_factory=Counter)  # reason -> rows
    block_size: int | None = None  # tokens per hash id; None where the format has no hash ids
    notes: list[str] = field(default_factory=list)  # what a user should know of how it was read

    @property
    def has_sessions(self) -> bool:
        return any(row.session is not None for row in self.rows)


def positive_tokens(value: object, name: str) -> int:
    """Read a token count. Raises RowError `bad_NAME` if it is no plausible whole number, `zero_NAME` if 0."""
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() else None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise RowError(f"bad_{name}")
    if value == 0:
        raise RowError(f"zero_{name}")
    return value


def sorted_trace(
    rows: Sequence[TraceRow], *, format: str, path: str, dropped: Counter[str], block_size: int | None = None
) -> Trace:
    """Order the rows by arrival (equal stamps keep the file's order). Raises TraceError if none is left."""
    if not rows:
        reasons = (
            ", ".join(f"{reason}: {count}" for reason, count in dropped.items()) or "the file has no rows"
        )
        raise TraceError(f"{path}: no usable row ({reasons})")
    return Trace(
        format=format,
        path=path,
        rows=sorted(rows, key=lambda row: row.arrival_ns),
        rows_read=len(rows) + sum(dropped.values()),
        dropped=dropped,
        block_size=block_size,
    )
