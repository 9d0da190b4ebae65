"""A sequence's blocks: taken at admission, shared with known prefixes, published when full, given back."""

from __future__ import annotations

import numpy as np

from engine.block_manager import BlockManager, hash_blocks
from engine.sequence import Sequence


class SequenceBlocks:
    """Keeps the block tables of sequences, and tells the prefix cache what stands in them."""

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager
        self._block_size = manager.block_size

    def make_private(self, sequence: Sequence) -> None:
        """Root its hashes in the request, so that only siblings and its own resumption find its blocks."""
        request = sequence.request
        sequence.cache_salt = b"request %d" % request.sequence_ids[0]
        sequence.block_hashes = hash_blocks(request.prompt_token_ids, self._block_size, sequence.cache_salt)

    def take(self, sequence: Sequence, *, beside_others: bool) -> bool:
        """Blocks for all its tokens, cached ones shared; False, and nothing done, if they do not fit.

        Beside running sequences one block and a hundredth of all must stay free, so that these can grow a
        while before the newcomer would be preempted. Alone, any prompt fits.
        """
        blocks = self._manager
        matched = blocks.match(self._readable_hashes(sequence))
        num_new = blocks.blocks_for(sequence.num_tokens) - len(matched)
        reserve = 1 + blocks.num_blocks // 100 if beside_others else 0
        if num_new + blocks.num_unused(matched) + reserve > blocks.num_free:
            return False
        blocks.share(matched)
        sequence.block_table = matched + [blocks.allocate() for _ in range(num_new)]
        sequence.num_published_blocks = len(matched)
        return True

    def _readable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Of the blocks it may read from the cache: not the last token's, whose logits are needed."""
        wants_all_rows = sequence.params.prompt_logprobs is not None
        if wants_all_rows and sequence.leader is None and not sequence.num_generated_tokens:
            return []
        return sequence.block_hashes[: (sequence.num_tokens - 1) // self._block_size]

    def extend(self, sequence: Sequence) -> None:
        """One more block. Raises `IndexError` when none is free."""
        sequence.block_table.append(self._manager.allocate())

    def publish(self, sequence: Sequence, num_computed: int) -> None:
        """Its first `num_computed` tokens are known and computed: let others find the blocks now full."""
        block_size, hashes = self._block_size, sequence.block_hashes
        num_full = num_computed // block_size
        for index in range(sequence.num_published_blocks, num_full):
            if index == len(hashes):
                block = np.array(sequence.token_ids[index * block_size : (index + 1) * block_size], np.int32)
                parent = hashes[-1] if hashes else b""
                hashes += hash_blocks(block, block_size, sequence.cache_salt, parent)
            self._manager.publish(sequence.block_table[index], hashes[index])
        sequence.num_published_blocks = max(num_full, sequence.num_published_blocks)

    def give_back(self, sequence: Sequence) -> None:
        """All of its blocks; those that were published can be found until they are reused."""
        self._manager.free(sequence.block_table)
        sequence.block_table = []
        sequence.num_published_blocks = 0
