"""The block manager against a brute-force model, and the hash chain against its definition."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.block_manager import DIGEST_SIZE, BlockManager, BlockState, hash_blocks
from tests.support.examples import examples

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@examples(60)
@given(TOKENS, st.integers(1, 9), st.binary(max_size=4))
def test_hash_chain_is_its_definition(token_ids: list[int], block_size: int, salt: bytes) -> None:
    digest, expected = blake2b(salt, digest_size=DIGEST_SIZE).digest(), []
    for end in range(block_size, len(token_ids) + 1, block_size):
        block = b"".join(t.to_bytes(4, "little") for t in token_ids[end - block_size : end])
        digest = blake2b(digest + block, digest_size=DIGEST_SIZE).digest()
        expected.append(digest)
    assert hash_blocks(np.array(token_ids, np.int32), block_size, salt) == expected
    assert hash_blocks(np.array(token_ids, np.int64), block_size, salt) == expected
    assert hash_blocks(np.repeat(np.array(token_ids, np.int32), 2)[::2], block_size, salt) == expected


@examples(60)
@given(TOKENS, st.integers(1, 5), st.integers(0, 8))
def test_hash_chain_goes_on_from_a_parent(token_ids: list[int], block_size: int, split: int) -> None:
    tokens = np.array(token_ids, np.int32)
    whole = hash_blocks(tokens, block_size, b"salt")
    head = hash_blocks(tokens[: split * block_size], block_size, b"salt")
    tail = hash_blocks(tokens[split * block_size :], block_size, b"salt", head[-1] if head else b"")
    assert head + tail == whole


def test_hashes_depend_on_everything_before_them() -> None:
    tokens = np.arange(12, dtype=np.int32)
    hashes = hash_blocks(tokens, 4)
    assert len({*hashes, *hash_blocks(tokens, 4, b"a"), *hash_blocks(tokens, 4, b"b")}) == 9
    tokens[0] = 99
    assert not set(hashes) & set(hash_blocks(tokens, 4))


def test_exhaustion_and_double_free_are_noticed() -> None:
    blocks = BlockManager(num_blocks=2, block_size=4)
    table = [blocks.allocate(), blocks.allocate()]
    with pytest.raises(IndexError, match="no free KV block"):
        blocks.allocate()
    blocks.free(table)
    assert blocks.num_free == 2
    blocks.free(table)
    with pytest.raises(AssertionError, match="freed more often"):
        blocks.check()


def test_the_beginning_of_a_prefix_outlives_its_end() -> None:
    blocks = BlockManager(num_blocks=3, block_size=1)
    hashes = hash_blocks(np.array([5, 6, 7]), 1)
    table = [blocks.allocate() for _ in hashes]
    for block, digest in zip(table, hashes, strict=True):
        blocks.publish(block, digest)
    blocks.free(table)
    assert blocks.match(hashes) == table
    assert blocks.allocate() == table[2]
    assert blocks.match(hashes) == table[:2]


def test_states_of_a_pool_of_several_slices() -> None:
    blocks = BlockManager(2500, 1)
    tables = [[blocks.allocate() for _ in range(700)] for _ in range(3)]
    for block in tables[1]:
        blocks.publish(block, block.to_bytes(4))
    blocks.free(tables[0])
    blocks.free(tables[1])
    expected = np.full(2500, BlockState.EMPTY)
    expected[tables[1]], expected[tables[2]] = BlockState.CACHED, BlockState.USED
    assert (blocks.states() == expected).all()


class BlockManagerMachine(RuleBasedStateMachine):
    """Prompts over a tiny alphabet, so that prefixes meet; the model knows contents, not hashes."""

    @initialize(num_blocks=st.integers(1, 12), block_size=st.integers(1, 3))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.blocks = BlockManager(num_blocks, block_size)
        self.tables: list[tuple[list[int], list[int], int]] = []  # tokens, blocks, number published
        self.cached: dict[tuple[int, ...], int] = {}  # whole prefix: the block that ends it
        self.unused = dict.fromkeys(range(num_blocks), 0)  # block: when it was freed
        self.now = 0

    def references(self) -> list[int]:
        return [block for _, table, _ in self.tables for block in table]

    def prefixes(self, tokens: list[int]) -> list[tuple[int, ...]]:
        size = self.blocks.block_size
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def take_one(self) -> int:
        """Allocate, and see that it is an empty block, or else the one unused for longest."""
        cached = set(self.cached.values())
        empty = [block for block in self.unused if block not in cached]
        block = self.blocks.allocate()
        if empty:
            assert block in empty
        else:
            assert self.unused[block] == min(self.unused.values())
            self.cached = {prefix: b for prefix, b in self.cached.items() if b != block}
        del self.unused[block]
        return block

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def admit(self, tokens: list[int]) -> None:
        hashes = hash_blocks(np.array(tokens), self.blocks.block_size)
        matched = []
        for prefix in self.prefixes(tokens):
            if prefix not in self.cached:
                break
            matched.append(self.cached[prefix])
        assert self.blocks.match(hashes) == matched
        assert self.blocks.num_unused(matched) == len(self.unused.keys() & set(matched))
        num_new = self.blocks.blocks_for(len(tokens)) - len(matched)
        if num_new + self.blocks.num_unused(matched) > self.blocks.num_free:
            return
        self.blocks.share(matched)
        for block in matched:
            self.unused.pop(block, None)
        table = matched + [self.take_one() for _ in range(num_new)]
        self.tables.append((tokens, table, len(matched)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        tokens, table, num_published = self.tables[index]
        prefixes = self.prefixes(tokens)
        if num_published < len(prefixes):
            digest = hash_blocks(np.array(tokens), self.blocks.block_size)[num_published]
            self.blocks.publish(table[num_published], digest)
            self.cached.setdefault(prefixes[num_published], table[num_published])
            self.tables[index] = (tokens, table, num_published + 1)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        _, table, _ = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.blocks.free(table)
        for block in reversed(table):
            self.now += 1
            if block not in self.references():
                self.unused[block] = self.now

    @rule()
    def forget(self) -> None:
        assert self.blocks.forget_prefixes() == len(self.cached)
        self.cached.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "blocks"):
            return
        self.blocks.check()
        references = self.references()
        assert self.blocks.ref_counts == [references.count(b) for b in range(self.blocks.num_blocks)]
        assert self.blocks.num_free == len(self.unused)
        assert self.blocks.num_used == len(set(references))
        assert self.blocks.usage == len(set(references)) / self.blocks.num_blocks
        states = [BlockState.EMPTY] * self.blocks.num_blocks
        for block in self.cached.values():
            states[block] = BlockState.CACHED
        for block in references:
            states[block] = BlockState.USED
        assert self.blocks.states().tolist() == states


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = examples(40, stateful_step_count=40)
