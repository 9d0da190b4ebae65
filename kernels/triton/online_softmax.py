"""Attention that never sees all scores at once: tile by tile (online softmax, Milakov and Gimelshein 2018),
or split by split of a long context, to be combined later.

A split of a head leaves partial [parts, head_dim], its sum of weighted values, and stats [parts, 2], its
highest score and its sum of weights, all fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

MASKED = tl.constexpr(-1e30)
"""A score that weighs nothing; instead of -inf, whose differences are not numbers."""


@triton.jit
def softmax_step(acc, top, total, q, k, v, visible, scale_log2):
    """(acc, top, total) after one more tile: the weighted values' sum, the highest score, the weights' sum.

    A weight is 2^(score - top). q [M, D], k [D, N], v [N, D], acc [M, D], top and total [M]; visible
    [1 or M, N], None if all keys are.
    """
    scores = tl.dot(q, k, input_precision="ieee") * scale_log2
    if visible is not None:
        scores = tl.where(visible, scores, MASKED)
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    decay = tl.exp2(top - new_top)
    total = total * decay + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit
def softmax_new_key(acc, total, q, k, v, scale_log2):
    """(acc, top, total) after the new token's key and value, k and v [D]; acc and total are 0 before."""
    top = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale_log2
    return acc + v.to(tl.float32)[None, :], top, total + 1.0


@triton.jit
def store_whole(out_ptr, head, acc, total, inside, HEAD_DIM: tl.constexpr):
    """For several heads whose context is not split: out [heads, HEAD_DIM], the rest as in `store_split`."""
    dims = tl.arange(0, acc.shape[1])
    mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + head[:, None] * HEAD_DIM + dims[None, :], result, mask=mask)


@triton.jit
def store_split(partial_ptr, stats_ptr, part, acc, top, total, inside, HEAD_DIM: tl.constexpr):
    """For several heads: part [M] says where; acc [M, D], top and total [M]; D is HEAD_DIM or padded."""
    dims = tl.arange(0, acc.shape[1])
    mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(partial_ptr + part[:, None] * HEAD_DIM + dims[None, :], acc, mask=mask)
    tl.store(stats_ptr + part * 2, top, mask=inside)
    tl.store(stats_ptr + part * 2 + 1, total, mask=inside)


@triton.jit
def combine_parts(partial_ptr, stats_ptr, part, inside, DIM_PAD: tl.constexpr, HEAD_DIM: tl.constexpr):
    """What a head's splits give together, [D] fp32; part [S] says where those `inside` are."""
    dims = tl.arange(0, DIM_PAD)
    top = tl.load(stats_ptr + part * 2, mask=inside, other=MASKED)
    total = tl.load(stats_ptr + part * 2 + 1, mask=inside, other=0.0)
    mask = inside[:, None] & (dims < HEAD_DIM)[None, :]
    acc = tl.load(partial_ptr + part[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
    share = tl.exp2(top - tl.max(top, 0))
    return tl.sum(acc * share[:, None], 0) / tl.sum(total * share, 0)
