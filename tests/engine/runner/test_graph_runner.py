"""The graph runner, its graphs run eagerly: the same tokens as the plain runner, whatever comes and goes."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from engine.runner.captured import EagerCapture
from engine.runner.graph_runner import graph_sizes
from engine.sampling_params import SamplingParams
from kernels.attention.interface import AttentionBatch, ChunkBatch, DecodeBatch
from kernels.attention.torch_backend import TorchAttention
from tests.support.decoders import build_decoder
from tests.support.engines import SteppedEngine
from tests.support.tiny_models import make_tiny_model

NUM_BLOCKS = 60


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


def make_engine(model: Any, *, graphs: bool, num_blocks: int = NUM_BLOCKS, depth: int = 2) -> SteppedEngine:
    decoder = build_decoder(model, block_size=4, num_blocks=1)
    attention = GraphTorchAttention(decoder.attention.shape)
    attention.allocate(num_blocks + 1)  # one to spare, for padding
    decoder.attention = attention
    for layer in decoder.model.layers:
        layer.self_attn.attention = attention
    capture = EagerCapture() if graphs else None
    return SteppedEngine(
        decoder, num_blocks, depth=depth, capture=capture, max_num_seqs=11, eos_token_ids=[2]
    )


def random_load(engine: SteppedEngine, seed: int) -> list[list[int]]:
    """Requests of all kinds that arrive while others run; some are aborted. The tokens of the others."""
    rng = random.Random(seed)
    requests = []
    for i in range(40):
        params = SamplingParams(
            temperature=rng.choice([0, 0, 0.9]),
            seed=i,
            top_p=rng.choice([1.0, 1.0, 0.8]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
            logprobs=rng.choice([None, None, 2]),
            min_tokens=rng.choice([0, 3]),
            max_tokens=rng.randrange(3, 30),
        )
        prompt = [rng.randrange(3, 320) for _ in range(rng.choice([1, 3, 4, 9, 30]))]
        requests.append(engine.submit(prompt, params))
        for _ in range(rng.randrange(3)):
            engine.loop.turn()
        if i % 7 == 6:
            engine.abort(requests[-3])
    engine.run()
    return [
        engine.results[request.sequence_ids[0]].token_ids
        for i, request in enumerate(requests)
        if (i + 2) % 7 != 6
    ]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [NUM_BLOCKS * 4, 24], ids=["roomy", "tight"])
def test_graphs_give_the_plain_runners_tokens(num_blocks: int, depth: int) -> None:
    model, _ = make_tiny_model("qwen3")
    plain = make_engine(model, graphs=False, num_blocks=num_blocks, depth=depth)
    graphs = make_engine(model, graphs=True, num_blocks=num_blocks, depth=depth)
    for seed in range(2):
        assert random_load(graphs, seed) == random_load(plain, seed)
    assert (graphs.counters.preemptions > 0) == (num_blocks == 24)
    assert graphs.scheduler.block_manager.num_used == 0


@pytest.mark.parametrize("max_num_seqs", [1, 2, 7, 16, 64, 256, 300, 512, 1000])
def test_sizes_cover_every_batch_up_to_the_limit(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == max_num_seqs
