"""The graph runner, its graphs run eagerly: the same tokens as the plain runner, whatever comes and goes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from engine.runner import graph_runner
from engine.runner.graph_runner import GraphModelRunner, graph_sizes
from engine.sampling_params import SamplingParams
from model.decoder import Decoder
from model.parallel import LoneRank
from tests.support.engines import SteppedEngine
from tests.support.graph_engines import graph_engine
from tests.support.tiny_models import make_tiny_model

NUM_BLOCKS = 60


def random_load(engine: SteppedEngine, seed: int) -> list[list[int]]:
    """Requests of all kinds that arrive while others run; some are aborted. The tokens of the others.

    With an odd seed of those kinds alone whose draws are in graphs.
    """
    rng = random.Random(seed)
    requests = []
    for i in range(40):
        extras: dict[str, Any] = {} if seed % 2 else {
            "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
            "logprobs": rng.choice([None, None, 2]),
            "min_tokens": rng.choice([0, 3]),
        }  # fmt: skip
        params = SamplingParams(
            temperature=rng.choice([0, 0, 0.9]),
            seed=i,
            top_p=rng.choice([1.0, 1.0, 0.8]),
            top_k=rng.choice([0, 0, 5]),
            max_tokens=rng.randrange(3, 30),
            **extras,
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


def test_steps_that_no_graph_holds_compute_numbers_of_rows_that_decodes_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = make_tiny_model("qwen3")
    plain = graph_engine(model, graphs=False, num_blocks=NUM_BLOCKS * 4, depth=2)
    graphs = graph_engine(model, graphs=True, num_blocks=NUM_BLOCKS * 4, depth=2)
    runner = graphs.loop._runner
    assert isinstance(runner, GraphModelRunner)
    monkeypatch.setattr(runner._mixed_graphs, "key_of", lambda plan: None)
    numbers: set[int] = set()
    logits = runner._decoder.logits

    def noted_logits(hidden: torch.Tensor) -> torch.Tensor:
        numbers.add(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(runner._decoder, "logits", noted_logits)
    assert random_load(graphs, 0) == random_load(plain, 0)
    assert numbers and numbers <= set(runner._sizes)


class RecordedSmallBatches:
    """In place of the fused kernels, which a CPU lacks."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.sizes_alone: list[int] = []

    def takes(self, num_rows: int, max_context: int) -> bool:
        return True

    def run(self, token_ids: torch.Tensor, positions: torch.Tensor, batch: Any, logits: torch.Tensor) -> None:
        if isinstance(self.decoder.tp, LoneRank):
            self.sizes_alone.append(len(token_ids))
        logits.zero_()


def test_small_batches_are_compiled_before_any_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all sizes up to the most sequences that may run, 11 here: fewer than the kernels could take."""

    def run_in_turns(functions: Sequence[Callable[[], object]], device: torch.device) -> None:
        for function in functions:
            function()

    monkeypatch.setattr(graph_runner, "run_side_by_side", run_in_turns)
    engine = graph_engine(make_tiny_model("qwen3")[0], graphs=True, num_blocks=NUM_BLOCKS)
    runner = engine.loop._runner
    assert isinstance(runner, GraphModelRunner)
    small = RecordedSmallBatches(runner._decoder)
    runner._small_batch = small  # type: ignore[assignment]
    with torch.inference_mode():
        runner.capture_all()
    assert list(dict.fromkeys(small.sizes_alone)) == [*reversed(graph_sizes(11))]


@pytest.mark.parametrize("max_num_seqs", [1, 2, 7, 16, 64, 256, 300, 512, 1000])
def test_sizes_cover_every_batch_up_to_the_limit(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == max_num_seqs
