"""Reported cases of a small KV pool: preemption and eviction lose nothing, and nobody waits for ever."""

from __future__ import annotations

import random
from typing import Any

from tests.support.api import at_once, complete, joined_token_ids, stream_complete, token_ids
from tests.support.process import ServerProcess


def test_r1_preempted_answers_are_whole(tight: ServerProcess, roomy: ServerProcess) -> None:
    """Eight answers want 1,700 tokens of the pool's 1,024; half are sampled, so that no spans are alike."""
    prompts = [f"Story number {i}: once" for i in range(8)]
    options: list[dict[str, Any]] = [
        {"max_tokens": 200, "ignore_eos": True, "temperature": i % 2, "seed": i} for i in range(8)
    ]
    preemptions = tight.metric("num_preemptions_total")
    streams = at_once([lambda i=i: stream_complete(tight, prompts[i], **options[i]) for i in range(8)])
    assert tight.metric("num_preemptions_total") > preemptions
    expected = at_once([lambda i=i: token_ids(roomy, prompts[i], **options[i]) for i in range(8)])
    assert [joined_token_ids(events) for events in streams] == expected


def test_q3_cached_blocks_make_room_for_the_head_of_the_queue(
    tight: ServerProcess, roomy: ServerProcess
) -> None:
    rng = random.Random(3)
    for _ in range(6):  # leaves the pool full of cached blocks
        complete(tight, [rng.randrange(3, 259) for _ in range(160)], max_tokens=1)
    head = [rng.randrange(3, 259) for _ in range(920)]  # 58 of 64 blocks
    prompts = [head, *([rng.randrange(3, 259) for _ in range(20)] for _ in range(6))]
    options = {"max_tokens": 5, "ignore_eos": True}
    answers = at_once([lambda p=p: token_ids(tight, p, **options) for p in prompts])
    assert answers == [token_ids(roomy, prompt, **options) for prompt in prompts]
