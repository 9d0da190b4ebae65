"""Every head is computed once, by a rank that holds its KV head, whatever the numbers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from model.partition import HeadParts, Part


@settings(deadline=None)
@given(total=st.integers(1, 200), num_ranks=st.integers(1, 16))
def test_parts_cover_everything_once(total: int, num_ranks: int) -> None:
    parts = [Part.split(total, rank, num_ranks) for rank in range(num_ranks)]
    covered = [i for part in parts for i in range(part.first, part.first + part.count)]
    assert covered == list(range(total))
    assert len({part.size for part in parts}) == 1 and all(part.count <= part.size for part in parts)


@settings(deadline=None)
@given(kv_heads=st.integers(1, 12), group=st.integers(1, 9), num_ranks=st.integers(1, 16))
def test_query_heads_find_their_kv_head(kv_heads: int, group: int, num_ranks: int) -> None:
    ranks = [HeadParts.split(kv_heads * group, kv_heads, rank, num_ranks) for rank in range(num_ranks)]
    computed = []
    for heads in ranks:
        query, kv = heads.query, heads.kv
        per_kv = query.size // kv.size
        assert query.size == per_kv * kv.size
        for local in range(query.count):
            assert local // per_kv < kv.count
            assert (query.first + local) // group == kv.first + local // per_kv
            computed.append(query.first + local)
    assert sorted(computed) == list(range(kv_heads * group))
    assert len({(heads.query.size, heads.kv.size) for heads in ranks}) == 1


def test_the_embedded_models_heads() -> None:
    two = [HeadParts.split(9, 3, rank, 2) for rank in range(2)]
    assert [(heads.query.count, heads.kv.count) for heads in two] == [(6, 2), (3, 1)]
    four = [HeadParts.split(9, 3, rank, 4) for rank in range(4)]
    assert [(heads.query.count, heads.kv.count) for heads in four] == [(3, 1), (3, 1), (3, 1), (0, 0)]
