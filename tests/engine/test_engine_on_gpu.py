"""The whole engine on a CUDA device: greedy text in fp32 equals transformers', two steps in flight."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.runner.capture import CudaGraphCapture
from engine.sampling_params import SamplingParams
from tests.support.decoders import build_decoder
from tests.support.engines import SteppedEngine
from tests.support.tiny_models import make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

NUM_TOKENS = 24


CUDA = torch.device("cuda")


def make_engine(model: Any, num_blocks: int, *, graphs: bool = False, **options: Any) -> SteppedEngine:
    """Eager on the torch backend, or with CUDA graphs on the Triton backend."""
    if not graphs:
        decoder = build_decoder(model, block_size=16, num_blocks=num_blocks, device=CUDA)
        return SteppedEngine(decoder, num_blocks, depth=2, **options)
    decoder = build_decoder(model, block_size=16, num_blocks=num_blocks, device=CUDA, backend="triton")
    return SteppedEngine(decoder, num_blocks, depth=2, capture=CudaGraphCapture(CUDA), **options)


def greedy_by_teacher_forcing(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """What transformers would pick after each prefix; equal to `output` exactly if its greedy text is."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0]
    picks: list[int] = logits.argmax(-1)[len(prompt) - 1 : -1].tolist()
    return picks


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama3"])
@pytest.mark.parametrize("num_blocks", [400, 44], ids=["roomy", "tight"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_greedy_text_equals_transformers(architecture: str, num_blocks: int, graphs: bool) -> None:
    model, _ = make_tiny_model(architecture)
    rng = random.Random(1)
    shared = [rng.randrange(3, 320) for _ in range(40)]
    prompts = [
        shared[: rng.choice([0, 16, 32, 40])] + [rng.randrange(3, 320) for _ in range(rng.randrange(1, 40))]
        for _ in range(40)
    ]
    engine = make_engine(model, num_blocks, graphs=graphs, max_num_batched_tokens=48)
    for result, prompt in zip(
        engine.generate(prompts, SamplingParams(temperature=0, max_tokens=NUM_TOKENS)), prompts, strict=True
    ):
        assert len(result.token_ids) == NUM_TOKENS
        assert result.token_ids == greedy_by_teacher_forcing(model, prompt, result.token_ids)
    assert (engine.counters.preemptions > 0) == (num_blocks == 44)
    assert engine.scheduler.block_manager.num_used == 0


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_draws_do_not_depend_on_the_batch_or_the_device(graphs: bool) -> None:
    model, _ = make_tiny_model("qwen3")
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20, frequency_penalty=0.4)
    engine = make_engine(model, 200, graphs=graphs)
    alone = engine.generate([[5, 6, 7]], params)[0].token_ids
    crowd = engine.generate([[9, 9]] * 5 + [[5, 6, 7]] + [[8] * 30] * 9, params)
    assert crowd[5].token_ids == alone
    on_cpu = SteppedEngine(build_decoder(model, block_size=16, num_blocks=200), 200)
    assert on_cpu.generate([[5, 6, 7]], params)[0].token_ids == alone
