"""The graph runner, its graphs run eagerly: the same tokens as the plain runner, whatever comes and goes."""

import random

import pytest

from engine.runner.graph_runner import graph_sizes
from engine.sampling_params import SamplingParams
from tests.support.engines import SteppedEngine
from tests.support.graph_engines import graph_engine
from tests.support.tiny_models import make_tiny_model

NUM_BLOCKS = 60


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
    plain = graph_engine(model, graphs=False, num_blocks=num_blocks, depth=depth)
    graphs = graph_engine(model, graphs=True, num_blocks=num_blocks, depth=depth)
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
