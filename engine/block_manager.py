"""KV blocks: who uses them, and which ones hold a prefix that another prompt may reuse.

Each block is in exactly one of three states. *Empty*: nobody uses it and it holds nothing worth keeping.
*Cached and free*: nobody uses it, but it can be found by its hash until it is needed for something else.
*Used*: named by `ref_count` block tables; a used block may be found by its hash too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import blake2b

import numpy as np

DIGEST_SIZE = 32

_SNAPSHOT_SLICE = 1024  # blocks; well under a tenth of a millisecond


class BlockState(IntEnum):
    EMPTY = 0
    CACHED = 1
    """And free."""
    USED = 2


def hash_blocks(
    token_ids: np.ndarray, block_size: int, salt: bytes = b"", parent: bytes = b""
) -> list[bytes]:
    """Digests of the full blocks of `token_ids` ([N] integers): floor(N / block_size) of them.

    Each digest covers the one before it and so the whole prefix; `parent` goes before the first, and without
    one the chain is rooted in `salt`. The hash is cryptographic: an equal digest is taken for equal tokens,
    and no client can craft a prompt that hits the blocks of another salt.
    """
    blocks = np.asarray(token_ids, dtype="<i4").tobytes()
    digest = parent or blake2b(salt, digest_size=DIGEST_SIZE).digest()
    digests = []
    stride = 4 * block_size
    for start in range(0, len(blocks) - stride + 1, stride):
        digest = blake2b(digest + blocks[start : start + stride], digest_size=DIGEST_SIZE).digest()
        digests.append(digest)
    return digests


class BlockManager:
    """Counts and hashes; the memory of the blocks belongs to the attention backend.

    The engine thread calls it. Any thread may read the counts (`num_...`, `usage`) and `states`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached_free: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: list[bytes | None] = [None] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out; those that are only cached count."""
        return len(self._empty) + len(self._cached_free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0..1."""
        return self.num_used / self.num_blocks

    def states(self) -> np.ndarray:
        """The `BlockState` of each block, uint8 [num_blocks].

        For any thread: neither list ever changes its length, so the worst that a step under way does is that
        some blocks are seen as they were a moment ago. Read in slices, between which the engine thread can
        have the interpreter.
        """
        return np.concatenate(
            [
                self._states(slice(start, start + _SNAPSHOT_SLICE))
                for start in range(0, self.num_blocks, _SNAPSHOT_SLICE)
            ]
        )

    def _states(self, blocks: slice) -> np.ndarray:
        is_used = np.frombuffer(bytes(map(bool, self.ref_counts[blocks])), np.uint8)
        has_hash = np.frombuffer(bytes(map(bool, self._hash_of_block[blocks])), np.uint8)
        return np.where(is_used, BlockState.USED, has_hash * BlockState.CACHED).astype(np.uint8)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of a hash chain. Takes no reference."""
        blocks = []
        for digest in hashes:
            block = self._block_of_hash.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_unused(self, blocks: Sequence[int]) -> int:
        """How many of these distinct blocks nobody uses: sharing them makes so many fewer free."""
        return sum(1 for block in blocks if not self.ref_counts[block])

    def share(self, blocks: Sequence[int]) -> None:
        """Take one more reference to each of these matched blocks."""
        for block in blocks:
            if not self.ref_counts[block]:
                del self._cached_free[block]
            self.ref_counts[block] += 1

    def allocate(self) -> int:
        """A block of its own for one table; the least recently used cached one if none is empty.

        Raises `IndexError` when no block is free; callers look at `num_free` first.
        """
        if self._empty:
            block = self._empty.pop()
        elif self._cached_free:
            block, _ = self._cached_free.popitem(last=False)
            digest = self._hash_of_block[block]
            assert digest is not None
            del self._block_of_hash[digest]
            self._hash_of_block[block] = None
        else:
            raise IndexError("no free KV block")
        self.ref_counts[block] = 1
        return block

    def free(self, block_table: Sequence[int]) -> None:
        """Give back one reference to each block of a table.

        Last block first: the end of a prefix is useless without its beginning, so it is to be reused first.
        """
        for block in reversed(block_table):
            self.ref_counts[block] -= 1
            if self.ref_counts[block]:
                continue
            if self._hash_of_block[block] is None:
                self._empty.append(block)
            else:
                self._cached_free[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Let others find this used block, which is full and will not be written again, by its digest.

        When two sequences computed the same prefix side by side the first one stays the one that is found,
        and the other block remains private.
        """
        if digest not in self._block_of_hash:
            self._block_of_hash[digest] = block
            self._hash_of_block[block] = digest

    def forget_prefixes(self) -> int:
        """Let no prompt find the blocks that are cached now; how many there were. Tables keep theirs."""
        num_forgotten = len(self._block_of_hash)
        for block in self._block_of_hash.values():
            self._hash_of_block[block] = None
        self._block_of_hash.clear()
        self._empty += self._cached_free
        self._cached_free.clear()
        return num_forgotten

    def check(self) -> None:
        """Raise `AssertionError` unless every invariant holds."""
        empty, cached_free = set(self._empty), set(self._cached_free)
        used = {block for block, count in enumerate(self.ref_counts) if count}
        assert min(self.ref_counts) >= 0, "a block was freed more often than used"
        assert len(empty) == len(self._empty), "a block is empty twice"
        assert len(empty) + len(cached_free) + len(used) == self.num_blocks, "a block has no state or two"
        assert empty | cached_free | used == set(range(self.num_blocks)), "a block is lost"
        hashed = {block for block, digest in enumerate(self._hash_of_block) if digest is not None}
        assert cached_free <= hashed, "a cached block has no hash"
        assert not empty & hashed, "an empty block has a hash"
        found = {block: digest for digest, block in self._block_of_hash.items()}
        assert found == {block: self._hash_of_block[block] for block in hashed}, (
            "hash index and blocks differ"
        )
