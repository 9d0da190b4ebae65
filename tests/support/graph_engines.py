"""Engines over the graph runner, on the CPU: what it captures runs eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.runner.capture import EagerCapture
from kernels.attention.interface import AttentionBatch, ChunkBatch, DecodeBatch
from kernels.attention.torch_backend import TorchAttention
from tests.support.decoders import build_decoder
from tests.support.engines import SteppedEngine


class GraphTorchAttention(TorchAttention):
    """Plans a decode from device tensors by reading them, which a CPU can do."""

    def plan_decode(self, batch: DecodeBatch) -> Any:
        contexts = batch.context_lens.tolist()
        assert max(contexts) <= batch.max_context
        host_batch = AttentionBatch(
            len(contexts), [1] * len(contexts), contexts, batch.block_tables, batch.slots
        )
        return self.plan(host_batch)

    def plan_chunks(self, chunks: ChunkBatch, decodes: DecodeBatch | None = None) -> Any:
        starts = chunks.query_starts.tolist()
        assert starts[-1] == starts[-2], "the last chunk has to stay unused"
        used = [c for c in range(len(starts) - 1) if starts[c + 1] > starts[c]]
        num_decodes = starts[0]
        query_lens = [1] * num_decodes + [starts[c + 1] - starts[c] for c in used]
        contexts = chunks.context_lens[used].tolist()
        tables = [chunks.block_tables[used], torch.zeros_like(chunks.block_tables[:1])]
        if decodes is not None:
            assert not decodes.context_lens[num_decodes:].any()
            contexts = decodes.context_lens[:num_decodes].tolist() + contexts
            tables.insert(0, decodes.block_tables[:num_decodes])
        num_padding = len(chunks.slots) - starts[-1]
        if num_padding:  # rows of a context that nobody has
            query_lens.append(num_padding)
            contexts.append(num_padding)
        block_tables = torch.cat(tables)[: len(query_lens)]
        return self.plan(AttentionBatch(num_decodes, query_lens, contexts, block_tables, chunks.slots))

    def chunk_schedule_size(self, num_rows: int, num_chunks: int) -> int:
        return 1

    def chunk_schedule(self, *_: Any) -> np.ndarray:
        return np.zeros(1, dtype=np.int32)


class OnePoolCapture(EagerCapture):
    """Careless with memory, as CUDA graphs of one pool are: a pass of the model ruins what others gave."""

    def __init__(self) -> None:
        self._results: list[torch.Tensor] = []

    def __call__(self, function: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        replay, result = super().__call__(function)
        self._results.append(result)
        return (lambda: self._ruin_and(replay)) if result.is_floating_point() else replay, result

    @torch.inference_mode()
    def _ruin_and(self, replay: Callable[[], None]) -> None:
        for result in self._results:
            result.fill_(float("nan") if result.is_floating_point() else -1)
        replay()


def graph_engine(model: Any, *, graphs: bool, num_blocks: int, depth: int = 2) -> SteppedEngine:
    decoder = build_decoder(model, block_size=4, num_blocks=1)
    attention = GraphTorchAttention(decoder.attention.shape)
    attention.allocate(num_blocks + 1)  # one to spare, for padding
    decoder.attention = attention
    for layer in decoder.model.layers:
        layer.self_attn.attention = attention
    capture = OnePoolCapture() if graphs else None
    return SteppedEngine(
        decoder, num_blocks, depth=depth, capture=capture, max_num_seqs=11, eos_token_ids=[2]
    )
