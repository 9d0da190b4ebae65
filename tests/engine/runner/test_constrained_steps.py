"""Constrained sequences in every runner and depth: no token that is not allowed, and no other difference."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.request import FinishReason, Request
from engine.sampling_params import SamplingParams
from tests.support.engines import Result, SteppedEngine, tiny_engine
from tests.support.graph_engines import graph_engine
from tests.support.modulo_constraint import EOS, ModuloConstraint
from tests.support.tiny_models import make_tiny_model

VOCAB = 320
PROMPT = [5, 9, 11, 200, 33, 9, 7, 41, 77]


@pytest.fixture(scope="module")
def model() -> Any:
    return make_tiny_model("qwen3")[0]


@pytest.fixture(params=[1, 2], ids=["depth1", "depth2"])
def engine(request: pytest.FixtureRequest, model: Any) -> SteppedEngine:
    return tiny_engine(model, depth=request.param, eos_token_ids=[EOS])


def one(engine: SteppedEngine, params: SamplingParams, constraint: ModuloConstraint) -> Result:
    request = engine.submit(PROMPT, params, constraint=constraint)
    engine.run()
    return engine.results[request.sequence_ids[0]]


def is_allowed(constraint: ModuloConstraint, output: list[int]) -> bool:
    return all(token in constraint.allowed(output[:i]) for i, token in enumerate(output))


def mixed_load(engine: SteppedEngine, seed: int) -> list[tuple[Request, ModuloConstraint | None]]:
    """Constrained and free requests, of all kinds, that arrive while others run; some are aborted."""
    rng = random.Random(seed)
    requests: list[tuple[Request, ModuloConstraint | None]] = []
    for i in range(24):
        constraint = ModuloConstraint(rng.randrange(1, 20), VOCAB) if rng.random() < 0.6 else None
        params = SamplingParams(
            temperature=rng.choice([0, 0.9]),
            seed=i,
            top_p=rng.choice([1.0, 0.8]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            logprobs=rng.choice([None, 2]),
            min_tokens=rng.choice([0, 3]),
            max_tokens=rng.randrange(3, 24),
        )
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.choice([1, 3, 4, 9, 30]))]
        requests.append(
            (engine.submit(prompt, params, rng.choice([1, 1, 2]), constraint=constraint), constraint)
        )
        for _ in range(rng.randrange(3)):
            engine.loop.turn()
        if i % 7 == 6:
            engine.abort(requests.pop(-3)[0])
    engine.run()
    return requests


def outputs(
    engine: SteppedEngine, requests: list[tuple[Request, ModuloConstraint | None]]
) -> list[list[int]]:
    return [engine.results[i].token_ids for request, _ in requests for i in request.sequence_ids]


@pytest.mark.parametrize("num_blocks", [240, 24], ids=["roomy", "tight"])
def test_depth_and_graphs_and_preemption_change_no_token(model: Any, num_blocks: int) -> None:
    reference = graph_engine(model, graphs=False, num_blocks=240, depth=1)
    load = mixed_load(reference, seed=1)
    expected = outputs(reference, load)
    for request, constraint in load:
        for sequence_id in request.sequence_ids:
            result = reference.results[sequence_id]
            assert constraint is None or is_allowed(constraint, result.token_ids)
            ends = result.token_ids[-1] == EOS and len(result.token_ids) >= request.params.min_tokens
            assert result.finish_reason is (FinishReason.STOP if ends else FinishReason.LENGTH)
    for graphs, depth in [(False, 2), (True, 1), (True, 2)]:
        other = graph_engine(model, graphs=graphs, num_blocks=num_blocks, depth=depth)
        assert outputs(other, mixed_load(other, seed=1)) == expected
        assert (other.counters.preemptions > 0) == (num_blocks == 24)


def test_greedy_takes_the_best_of_the_allowed_tokens(engine: SteppedEngine, model: Any) -> None:
    constraint = ModuloConstraint(12, VOCAB, modulus=40)
    result = one(engine, SamplingParams(temperature=0, max_tokens=50), constraint)
    output: list[int] = []
    while not output or output[-1] != EOS:
        with torch.inference_mode():
            logits = model(torch.tensor([PROMPT + output])).logits[0, -1]
        output.append(max(constraint.allowed(output), key=lambda token: float(logits[token])))
    assert result.token_ids == output
    assert result.finish_reason is FinishReason.STOP


def test_a_complete_output_ends_whatever_else_is_asked(engine: SteppedEngine) -> None:
    """Neither min_tokens, ignore_eos nor a bias goes beyond it; as long as it can go on, they do hold."""
    for params in [
        SamplingParams(seed=1, min_tokens=30, max_tokens=40),
        SamplingParams(seed=1, ignore_eos=True, max_tokens=40),
        SamplingParams(seed=1, min_tokens=30, max_tokens=40, stop_token_ids=(7,)),
    ]:
        result = one(engine, params, ModuloConstraint(10, VOCAB))
        assert len(result.token_ids) == 11 and result.token_ids[-1] == EOS, params
        assert result.finish_reason is FinishReason.STOP
    early = one(engine, SamplingParams(seed=1, logit_bias={EOS: 100.0}), ModuloConstraint(10, VOCAB))
    assert len(early.token_ids) == 6, "it may end after 5 tokens, and not before"
    late = one(engine, SamplingParams(seed=1, logit_bias={EOS: -100.0}), ModuloConstraint(10, VOCAB))
    assert len(late.token_ids) == 11
    assert late.finish_reason is FinishReason.STOP


def test_logprobs_are_those_of_the_raw_logits(engine: SteppedEngine) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=8, logprobs=2)
    result = one(engine, params, ModuloConstraint(20, VOCAB, modulus=30))
    scoring = SamplingParams(max_tokens=1, prompt_logprobs=2, temperature=0)
    [scored] = engine.generate([PROMPT + result.token_ids], scoring)
    assert scored.prompt_logprobs is not None
    for got, want in zip(result.logprobs, scored.prompt_logprobs[len(PROMPT) :], strict=True):
        assert want is not None
        assert got.top_token_ids == want.top_token_ids
        assert got.logprob == pytest.approx(want.logprob, abs=1e-4)


def test_a_constraint_that_cannot_be_followed_ends_its_sequence_alone(engine: SteppedEngine) -> None:
    params = SamplingParams(temperature=0.9, seed=7, max_tokens=15, ignore_eos=True)
    [alone] = engine.generate([PROMPT], params)
    free = engine.submit(PROMPT, params)
    stuck = engine.submit(PROMPT[:4], params, n=2, constraint=ModuloConstraint(40, VOCAB, stuck_at=4))
    engine.run()
    assert engine.results[free.sequence_ids[0]].token_ids == alone.token_ids
    for sequence_id in stuck.sequence_ids:
        assert engine.results[sequence_id].finish_reason is FinishReason.ERROR
        assert len(engine.results[sequence_id].token_ids) == 4
    assert engine.scheduler.block_manager.num_used == 0
