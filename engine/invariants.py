"""What holds between the scheduler's queues, rows and blocks after every step, as `Scheduler.check` sees it.

All raise `AssertionError`. They look at everything, and are slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Listing

from engine.block_manager import BlockManager
from engine.config import SchedulerConfig
from engine.decoding import Decoding
from engine.sequence import Sequence, SequenceStatus, by_order


def check_queues(
    running: list[Sequence],
    waiting: list[Sequence],
    sequences: dict[int, Sequence],
    siblings: Mapping[str, Listing[Sequence]],
) -> None:
    """Each sequence that has not ended stands in one queue, in the policy's order."""
    assert sorted(running, key=by_order) == running and sorted(waiting, key=by_order) == waiting
    assert {s.sequence_id: s for s in running + waiting} == sequences, "a sequence is lost"
    assert len(running) + len(waiting) == len(sequences), "a sequence stands in two queues"
    assert sum(map(len, siblings.values())) == len(sequences), "an ended sequence is kept"


def check_stages(running: list[Sequence], prompts: list[Sequence], decoding: Decoding) -> None:
    """A running sequence is a prompt, or decodes, or is done but for the tokens under way."""
    assert prompts == [sequence for sequence in running if sequence.is_prompt]
    assert decoding.sequences == [sequence for sequence in running if sequence.decode_steps is not None]
    for sequence in running:
        is_done = sequence.num_tokens == sequence.max_length and sequence.num_scheduled_tokens > 0
        num_stages = sequence.is_prompt + (sequence.decode_steps is not None)
        assert num_stages == 1 or is_done, "a sequence is forgotten"
    decoding.check()


def check_rows_and_blocks(
    running: list[Sequence], free_rows: list[int], blocks: BlockManager, config: SchedulerConfig
) -> None:
    """Running sequences hold what is not free, each row once, each block as often as it is counted."""
    blocks.check()
    assert len(running) <= config.max_num_seqs, "more sequences run than rows exist"
    rows = [sequence.row for sequence in running] + free_rows
    assert sorted(rows) == list(range(config.max_num_seqs)), "a row is lost or given twice"
    tables = Counter(block for sequence in running for block in sequence.block_table)
    assert blocks.ref_counts == [tables[block] for block in range(config.num_blocks)]


def check_counters(sequence: Sequence, block_size: int) -> None:
    """What is in flight is cached, what is cached has tokens and blocks, what is published is computed."""
    cached, in_flight = sequence.num_cached_tokens, sequence.num_scheduled_tokens
    assert sequence.num_tokens <= sequence.max_length, "longer than it may become"
    assert sequence.num_tokens == len(sequence.token_ids) + sequence.num_pending_tokens
    assert sequence.num_pending_tokens <= in_flight, "tokens are awaited from no step"
    assert in_flight >= 0 and len(set(sequence.block_table)) == len(sequence.block_table)
    assert sequence.num_published_blocks <= len(sequence.block_hashes)
    if sequence.status is SequenceStatus.WAITING:
        assert sequence.row == -1 and not sequence.block_table
        assert not cached and not sequence.num_published_blocks
        return
    covered = len(sequence.block_table) * block_size
    assert sequence.status is SequenceStatus.RUNNING
    assert in_flight <= cached <= min(sequence.num_tokens, covered), "the counters are out of order"
    assert sequence.num_prefill_tokens <= covered, "an admitted prompt has no room"
    assert sequence.num_published_blocks * block_size <= cached - in_flight
