"""The flash backend's own part: which rows go where, and how flash-attn 4 is called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention.flash_backend import FlashAttention
from kernels.attention.flash_versions import Attend, PagedQueries, _RepeatedCall, find_flash_attn
from kernels.attention.interface import AttentionShape
from tests.support.attention_steps import TwinCaches

EXACT = {"atol": 1e-5, "rtol": 1e-4}


class PlainFlash:
    """What flash-attn computes, in plain torch."""

    name = "plain"

    def __init__(self) -> None:
        self.max_query_lens: list[int] = []

    def prepare(self, queries: PagedQueries, shape: AttentionShape) -> Attend:
        self.max_query_lens.append(queries.max_query_len)
        lens = queries.context_lens.tolist()
        starts = queries.query_starts
        bounds = list(range(len(lens) + 1)) if starts is None else starts.tolist()

        def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
            for i, length in enumerate(lens):
                rows = slice(bounds[i], bounds[i + 1])
                pages = queries.block_tables[i, : -(-length // shape.block_size)].long()
                k, v = (t[pages].flatten(0, 1)[:length].transpose(0, 1) for t in (keys, values))
                num_rows = rows.stop - rows.start
                mask = torch.ones(num_rows, length, dtype=torch.bool).tril(length - num_rows)
                out[rows] = torch.nn.functional.scaled_dot_product_attention(
                    q[rows].transpose(0, 1), k, v, mask, scale=shape.scale, enable_gqa=True
                ).transpose(0, 1)

        return attend


@pytest.mark.skipif(torch.cuda.is_available(), reason="CPU tensors, for the interpreter")
@pytest.mark.parametrize("flash_decode_pairs", [None, 4, 5])
def test_rows_go_to_the_kernel_that_the_tuning_says(flash_decode_pairs: int | None) -> None:
    """Two decodes over two KV heads are four pairs: 4 sends them to flash-attn, 5 does not."""
    shape = AttentionShape(2, 4, 2, 32, 0.2, 16, torch.float32, torch.device("cpu"))
    version = PlainFlash()
    attention = FlashAttention(shape, version)
    attention.tuning = replace(attention.tuning, flash_decode_pairs=flash_decode_pairs)
    twins = TwinCaches(attention, 12, seed=4)
    lens = [(20, 1), (3, 1), (9, 4)]
    for cached, new in lens:
        twins.add(cached + new + 1)
    twins.step([(0, cached) for cached, _ in lens], **EXACT)
    twins.step(lens, **EXACT)
    by_flash = [1] if flash_decode_pairs == 4 else []
    assert version.max_query_lens == [20, *by_flash, 4]
    twins.tables.pop()
    twins.decode([21, 4], padding=0, max_context=30, **EXACT)


class Kernels(dict[str, Any]):
    """flash-attn's table of compiled kernels."""


class FlashFunction:
    """As flash-attn 4 does it: the kernel comes from `compile_cache` and gets views of the arguments."""

    def __init__(self, copies: bool = False) -> None:
        self.compile_cache: Any = Kernels()
        self.calls = 0
        self.kernel_calls: list[tuple[Any, ...]] = []
        self.copies = copies

    def __call__(self, q: Any, k: Any, v: Any, *, out: Any, causal: bool) -> None:
        self.calls += 1
        if "key" not in self.compile_cache:
            self.compile_cache["key"] = lambda *arguments: self.kernel_calls.append(arguments)
        q = q.clone() if self.copies else q.detach()
        self.compile_cache["key"](q, k.detach(), v.detach(), out.detach(), causal, None)


def test_only_the_first_layer_calls_flash_attn_in_full() -> None:
    function = FlashFunction()
    kernels = function.compile_cache
    attend = _RepeatedCall(function, {"causal": True}, add_row_dim=True)
    layers = [[torch.randn(3, 2, 8) for _ in range(4)] for _ in range(3)]
    for layer in layers:
        attend(*layer)
    assert function.calls == 1
    assert function.compile_cache is kernels
    for layer, (q, k, v, out, *more) in zip(layers, function.kernel_calls, strict=True):
        assert more == [True, None]
        assert q.shape == out.shape == (3, 1, 2, 8)
        assert [t.data_ptr() for t in (q, k, v, out)] == [t.data_ptr() for t in layer]
    attend(*(t[:2] for t in layers[0]))  # other rows: worked out anew
    assert function.calls == 2


def test_a_flash_attn_that_copies_its_arguments_is_called_in_full_every_time() -> None:
    function = FlashFunction(copies=True)
    attend = _RepeatedCall(function, {"causal": True}, add_row_dim=False)
    for _ in range(3):
        attend(*(torch.randn(3, 2, 8) for _ in range(4)))
    assert function.calls == 3


def test_the_reason_why_no_flash_attn_fits_names_every_version() -> None:
    shape = AttentionShape(1, 4, 2, 32, 0.2, 16, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"flash-attn 4 needs a CUDA device; flash-attn 3 .*; flash-attn 2 "):
        find_flash_attn(shape)
