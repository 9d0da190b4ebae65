"""What requests and tokens take outside the engine thread, from the server's and the clients' times.

Both are of one machine and its monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.record import RequestRecord, StepEntry
from loadgen.simulator.least_squares import robust_line
from loadgen.simulator.profile import FrontEndCosts, Line


class ClientView(NamedTuple):
    """A request of a calibration as its client saw it. Times are of the monotonic clock."""

    request_id: str  # as the server names it, in answers and logs
    sent_ns: int
    first_token_ns: int


def front_end_costs(
    entries: Sequence[StepEntry], records: Sequence[RequestRecord], seen: Sequence[ClientView]
) -> FrontEndCosts:
    """Without what clients saw, sending and delivering take no time."""
    finished = [record for record in records if record.first_token_ns and record.tokenized_ns]
    if not finished:
        return FrontEndCosts()
    before_s = [(record.tokenized_ns - record.arrived_ns) / 1e9 for record in finished]
    constant, slope = robust_line([record.num_prompt_tokens for record in finished], before_s)
    views = {view.request_id: view for view in seen}
    pairs = [(record, views[record.request_id]) for record in finished if record.request_id in views]
    if not pairs:
        return FrontEndCosts(before=Line(constant, slope))
    travel_s = float(np.median([(record.arrived_ns - view.sent_ns) / 1e9 for record, view in pairs]))
    tokens_of_step = {entry.tokens_at_ns: entry.num_generated for entry in entries}
    delivered = [
        (tokens_of_step.get(record.first_token_ns, 1), (view.first_token_ns - record.first_token_ns) / 1e9)
        for record, view in pairs
    ]
    counts, delays_s = zip(*delivered, strict=True)
    return FrontEndCosts(Line(constant + travel_s, slope), Line(*robust_line(counts, delays_s)))
