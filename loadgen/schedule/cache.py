"""What a prefix cache without limit would find of a load."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.schedule.request import ScheduledRequest


def ideal_hit_rate(requests: Sequence[ScheduledRequest], block_size: int | None) -> float | None:
    """Share of prompt tokens that an earlier prompt had at its start. The last token of a prompt is always
    computed. None for a load that shares nothing on purpose.

    A later turn finds the whole prompt of the turn before, but not the reply, which is made up.
    """
    if block_size is None and not any(request.continues for request in requests):
        return None
    seen: set[tuple[int, int]] = set()
    hits = 0
    for request in requests:
        if request.continues and request.previous is not None:
            hits += request.previous.input_tokens
            continue
        blocks = [(request.copy, block_id) for block_id in request.hash_ids or ()]
        shared = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        hits += min(shared * (block_size or 0), request.input_tokens - 1)
        seen.update(blocks)
    return hits / sum(request.input_tokens for request in requests)
