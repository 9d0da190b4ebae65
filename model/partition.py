"""Which part of each dimension a tensor-parallel rank holds; where it does not divide, zeros fill it up.

All ranks' parts have the same size, so that they run the same kernels. A head, a feed-forward feature or a
token of zeros adds exactly nothing to what the ranks compute together, so any model can be split.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """`count` of the `total` rows (or columns) of a checkpoint matrix, from `first`; zeros up to `size`."""

    total: int
    size: int
    first: int
    count: int

    @staticmethod
    def clipped(total: int, size: int, first: int) -> Part:
        """`size` from `first` on, as far as there are so many."""
        return Part(total, size, first, max(0, min(size, total - first)))

    @staticmethod
    def split(total: int, rank: int, num_ranks: int) -> Part:
        size = -(-total // num_ranks)
        return Part.clipped(total, size, rank * size)

    def times(self, width: int) -> Part:
        """The same part where each unit, a head say, takes `width` rows."""
        return Part(self.total * width, self.size * width, self.first * width, self.count * width)


@dataclass(frozen=True, slots=True)
class HeadParts:
    """A rank's query heads and the KV heads that these use; each KV head serves as many query heads."""

    query: Part
    kv: Part

    @staticmethod
    def split(num_heads: int, num_kv_heads: int, rank: int, num_ranks: int) -> HeadParts:
        """Whole KV heads with all their query heads; or, with fewer KV heads than ranks, shared KV heads.

        Neighbouring ranks then hold the same KV head and split its query heads. Nine query and three KV heads
        give two ranks (6, 2) and (3, 1) of them; of four ranks three hold (3, 1), and the last only zeros.
        """
        group = num_heads // num_kv_heads
        if num_kv_heads >= num_ranks:
            kv = Part.split(num_kv_heads, rank, num_ranks)
            return HeadParts(kv.times(group), kv)
        sharers = num_ranks // num_kv_heads
        head, sharer = divmod(rank, sharers)
        kv = Part.clipped(num_kv_heads, 1, head)
        mine = Part.split(group, sharer, sharers)
        count = mine.count if kv.count else 0
        return HeadParts(Part(num_heads, mine.size, head * group + mine.first, count), kv)
