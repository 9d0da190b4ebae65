"""The torch backend against attention written out naively, over random batches, block tables and shapes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.interface import AttentionBatch, AttentionShape, kv_bytes_per_block
from kernels.attention.length_groups import group_by_length
from kernels.attention.torch_backend import TorchAttention
from tests.support.examples import examples

CPU = torch.device("cpu")


def naive_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """One sequence in float64: q [Q, H, D] are the last rows of k and v [L, KV, D]; returns [Q, H * D]."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    first = len(k) - len(q)
    out = torch.zeros_like(q)
    for row in range(len(q)):
        end = first + row + 1
        start = 0 if window is None else max(0, end - window)
        for head in range(q.shape[1]):
            scores = k[start:end, head // group] @ q[row, head] * scale
            out[row, head] = scores.softmax(0) @ v[start:end, head // group]
    return out.flatten(1)


class Cache:
    """Whole K and V of each sequence beside their paged copy; blocks come in a scattered order."""

    def __init__(self, shape: AttentionShape, num_blocks: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.attention = TorchAttention(shape)
        self.attention.allocate(num_blocks)
        self.free = torch.randperm(num_blocks, generator=self.generator).tolist()
        self.tables: list[list[int]] = []
        self.contexts: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def add(self, num_tokens: int) -> None:
        size = self.attention.shape.block_size
        self.tables.append([self.free.pop() for _ in range(-(-num_tokens // size))])
        self.contexts.append([])

    def step(self, lens: list[tuple[int, int]]) -> None:
        """Each sequence i has lens[i] = (cached, new); decodes come first. Checks every layer's output."""
        shape = self.attention.shape
        rows = sum(new for _, new in lens)
        longest = max(map(len, self.tables))
        slots = [
            table[p // shape.block_size] * shape.block_size + p % shape.block_size
            for table, (cached, new) in zip(self.tables, lens, strict=True)
            for p in range(cached, cached + new)
        ]
        batch = AttentionBatch(
            num_decodes=sum(new == 1 and cached > 0 for cached, new in lens),
            query_lens=[new for _, new in lens],
            context_lens=[cached + new for cached, new in lens],
            block_tables=torch.tensor([t + [0] * (longest - len(t)) for t in self.tables], dtype=torch.int32),
            slots=torch.tensor(slots),
        )
        plan = self.attention.plan(batch)
        for layer in range(shape.num_layers):
            q = self.random(rows, shape.num_heads)
            k, v = self.random(rows, shape.num_kv_heads), self.random(rows, shape.num_kv_heads)
            out = self.attention.forward(plan, layer, q, k, v)
            assert out.shape == (rows, shape.num_heads * shape.head_dim)
            self.check(layer, batch.query_lens, q, k, v, out)

    def check(self, layer: int, query_lens: list[int], *tensors: torch.Tensor) -> None:
        shape = self.attention.shape
        pieces = zip(*(tensor.split(query_lens) for tensor in tensors), strict=True)
        for context, (q, k, v, out) in zip(self.contexts, pieces, strict=True):
            if len(context) <= layer:
                context.append((k[:0], v[:0]))
            keys, values = (torch.cat(pair) for pair in zip(context[layer], (k, v), strict=True))
            context[layer] = (keys, values)
            expected = naive_attention(q, keys, values, shape.scale, shape.sliding_window)
            tolerance = 1e-5 if shape.dtype == torch.float32 else 2e-2
            torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)

    def random(self, rows: int, heads: int) -> torch.Tensor:
        shape = self.attention.shape
        return torch.randn(rows, heads, shape.head_dim, generator=self.generator).to(shape.dtype)


@examples(30)
@given(
    lens=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    head_dim=st.sampled_from([8, 20]),
    window=st.sampled_from([None, None, 7]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_equals_naive_attention(
    lens: list[tuple[int, int]],
    block_size: int,
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """A prompt step that fills the caches, then a step of decodes and chunks with cached prefixes."""
    shape = AttentionShape(2, *heads, head_dim, head_dim**-0.5, block_size, dtype, CPU, window)
    lens.sort(key=lambda pair: pair[1] > 1)  # decodes first
    cache = Cache(shape, sum(cached + new for cached, new in lens), seed)
    for cached, new in lens:
        cache.add(cached + new)
    cache.step([(0, cached) for cached, _ in lens])
    cache.step(lens)


def test_decodes_of_very_different_lengths_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths so far apart that decodes are regrouped, in an order that is neither rising nor falling."""
    monkeypatch.setattr("kernels.attention.torch_plan._MIN_SAVED_TOKENS", 8)
    shape = AttentionShape(1, 4, 2, 8, 0.3, 4, torch.float32, CPU)
    cache = Cache(shape, 200, seed=3)
    cached = [5, 90, 17, 41, 90, 3, 64]
    for length in cached:
        cache.add(length + 2)
    cache.step([(0, length) for length in cached])
    cache.step([(length, 1) for length in cached])
    cache.step([(length + 1, 1) for length in cached])


@given(
    lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=40),
    min_saving=st.integers(1, 500),
    max_total=st.integers(1, 4000),
)
@examples(60)
def test_length_groups_cover_all_and_waste_little(
    lengths: list[int], min_saving: int, max_total: int
) -> None:
    lengths = sorted(lengths, reverse=True)
    ranges = group_by_length(lengths, min_saving, max_total)
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(lengths)))
    for start, stop in ranges:
        assert stop - start == 1 or lengths[start] * (stop - start) <= max_total
        for cut in range(start + 1, stop):
            assert (lengths[start] - lengths[cut]) * (stop - cut) < min_saving


def test_pool_is_zeroed_and_as_large_as_announced() -> None:
    shape = AttentionShape(3, 4, 2, 8, 0.3, 4, torch.bfloat16, CPU)
    attention = TorchAttention(shape)
    attention.allocate(10)
    caches = [x for cache in attention.caches for x in (cache.keys, cache.values)]
    assert sum(x.nbytes for x in caches) == 10 * kv_bytes_per_block(shape)
    assert not any(x.any() for x in caches)
    assert math.prod(caches[0].shape) == 10 * 4 * 2 * 8
