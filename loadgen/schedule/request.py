"""One request of a load, and the load as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request of the load. Its prompt is known from `copy`, and `hash_ids` or `trace_row`.

    With `follows` it is due `intended_ns` after the end of `previous`, else after the start of the run.
    With `continues`, as a later turn of a session, its prompt is that of `previous`, the reply to it, and
    tokens of its own.
    """

    index: int
    intended_ns: int
    input_tokens: int  # of the whole prompt, what it continues included
    output_tokens: int
    trace_row: int  # place in the ordered trace
    copy: int = 0  # 0 is the trace itself, 1 and up its superposed copies
    hash_ids: tuple[int, ...] | None = None  # of its own tokens
    previous: ScheduledRequest | None = None
    follows: bool = False
    continues: bool = False
    session: str | None = None
    turn: int = 0
    request_class: str = ""  # figures and objectives can be had by class

    @property
    def own_tokens(self) -> int:
        """Prompt tokens that it does not take over from the previous turn."""
        if self.previous is None or not self.continues:
            return self.input_tokens
        return self.input_tokens - self.previous.input_tokens - self.previous.output_tokens

    def to_row(self) -> dict[str, Any]:
        """As in `schedule.jsonl`."""
        row: dict[str, Any] = {
            "index": self.index,
            "intended_ns": self.intended_ns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "trace_row": self.trace_row,
            "copy": self.copy,
        }
        if self.hash_ids is not None:
            row["hash_ids"] = self.hash_ids
        if self.previous is not None:
            row |= {"previous": self.previous.index, "follows": self.follows, "continues": self.continues}
        if self.session is not None:
            row |= {"session": self.session, "turn": self.turn}
        if self.request_class:
            row["class"] = self.request_class
        return row


@dataclass(slots=True)
class Schedule:
    """Requests by index, and what became of the trace rows that are not among them.

    Whom a request follows or continues stands before it.
    """

    requests: list[ScheduledRequest]
    dropped: Counter[str] = field(default_factory=Counter)
    clipped: Counter[str] = field(default_factory=Counter)
    dejitter_ns: int | None = None  # width of the bins that equal stamps were spread over

    @classmethod
    def from_rows(cls, rows: Iterator[dict[str, Any]]) -> Schedule:
        """From what `to_row` made of each request. Raises KeyError or TypeError for rows of another shape."""
        requests: list[ScheduledRequest] = []
        for row in rows:
            hash_ids, previous = row.pop("hash_ids", None), row.pop("previous", None)
            requests.append(
                ScheduledRequest(
                    request_class=row.pop("class", ""),
                    hash_ids=None if hash_ids is None else tuple(hash_ids),
                    previous=None if previous is None else requests[previous],
                    **row,
                )
            )
        return cls(requests)
