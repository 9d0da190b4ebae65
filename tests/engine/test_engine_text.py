"""Greedy text through the whole engine equals transformers', whatever the batch, chunking, pool or depth."""

import random
from typing import Any

import pytest
import torch

from engine.request import FinishReason
from engine.sampling_params import SamplingParams
from tests.support.engines import tiny_engine
from tests.support.tiny_models import make_tiny_model

NUM_TOKENS = 24


def hf_greedy(model: Any, prompt: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def make_prompts(count: int, seed: int) -> list[list[int]]:
    """Some share a prefix, some are alike, lengths on and around block borders."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, 320) for _ in range(40)]
    prompts = []
    for i in range(count):
        tail = [rng.randrange(3, 320) for _ in range(rng.choice([1, 3, 4, 5, 8, 17, 33]))]
        prompts.append(shared[: rng.choice([0, 4, 16, 39, 40])] + tail if i % 5 else shared[:16])
    return prompts


@pytest.fixture(scope="module", params=["smollm", "qwen3"])
def reference(request: pytest.FixtureRequest) -> tuple[Any, list[list[int]], list[list[int]]]:
    model, _ = make_tiny_model(request.param)
    prompts = make_prompts(14, seed=7)
    return model, prompts, [hf_greedy(model, prompt) for prompt in prompts]


GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 8, "max_num_batched_tokens": 9},
        {"num_blocks": 30, "max_num_seqs": 14},  # preempts
        {"block_size": 16, "enable_prefix_caching": False},
        {"policy": "prefill-first"},
    ],
    ids=lambda limits: "-".join(f"{k}={v}" for k, v in limits.items()) or "plain",
)
def test_greedy_text_equals_transformers(reference: Any, limits: dict[str, Any], depth: int) -> None:
    model, prompts, expected = reference
    engine = tiny_engine(model, depth=depth, **limits)
    for _ in range(2):  # the second time from the prefix cache
        results = engine.generate(prompts, GREEDY)
        assert [result.token_ids for result in results] == expected
        assert {result.finish_reason for result in results} == {FinishReason.LENGTH}
    if "num_blocks" in limits:
        assert engine.counters.preemptions > 0
    if limits.get("enable_prefix_caching", True):
        assert engine.counters.prefix_cache_hits > 0
    assert engine.scheduler.block_manager.num_used == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_eos_ends_a_sequence_with_the_eos_token_and_nothing_after(reference: Any, depth: int) -> None:
    model, prompts, expected = reference
    eos = expected[0][10]
    engine = tiny_engine(model, depth=depth, eos_token_ids=[eos])
    for result, full in zip(engine.generate(prompts, GREEDY), expected, strict=True):
        cut = full[: full.index(eos) + 1] if eos in full else full
        assert result.token_ids == cut
        assert result.finish_reason is (FinishReason.STOP if eos in full else FinishReason.LENGTH)
    ignoring = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    assert [r.token_ids for r in engine.generate(prompts, ignoring)] == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_aborts_at_any_moment_leave_the_others_text_alone(reference: Any, depth: int) -> None:
    model, prompts, expected = reference
    rng = random.Random(depth)
    engine = tiny_engine(model, depth=depth, num_blocks=40, max_num_batched_tokens=16, max_num_seqs=8)
    requests = [engine.submit(prompt, GREEDY) for prompt in prompts * 3]
    doomed = set(rng.sample(range(len(requests)), 20))
    for i in rng.sample(sorted(doomed), len(doomed)):
        for _ in range(rng.randrange(3)):
            engine.loop.turn()
        engine.abort(requests[i])
    engine.run()
    for i, request in enumerate(requests):
        if i not in doomed:
            assert engine.results[request.sequence_ids[0]].token_ids == expected[i % len(prompts)]
    assert engine.counters.finished_requests["length"] >= len(requests) - len(doomed)
    assert sum(engine.counters.finished_requests.values()) == len(requests)
    assert engine.scheduler.block_manager.num_used == 0
