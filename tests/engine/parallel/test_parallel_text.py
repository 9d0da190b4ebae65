"""Any number of ranks gives what one rank gives: tokens, ends and log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.request import Request
from engine.sampling_params import SamplingParams
from kernels.attention.torch_backend import TorchAttention
from model.config_reader import read_model_config
from model.decoder import Decoder, attention_shape
from model.loading import load_model
from model.parallel import TensorParallel
from model.source import ModelSource
from tests.support.decoders import CPU, build_decoder
from tests.support.engines import Result, SteppedEngine
from tests.support.modulo_constraint import ModuloConstraint
from tests.support.rank_threads import rank_threads
from tests.support.tiny_models import make_tiny_model

NUM_BLOCKS = 24  # of 4 tokens: too few for all that runs, so that some of it is preempted
PREFIX = list(range(40, 61))
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def submit_everything(engine: SteppedEngine) -> list[Request]:
    """More than the pool holds: long and short prompts, four choices, and every kind of sampling;
    one follows a constraint."""

    def submit(prompt: list[int], n: int = 1, **params: Any) -> Request:
        return engine.submit(prompt, SamplingParams(**{"max_tokens": 14, **params}), n)

    return [
        submit([*PREFIX, 7, 9], **GREEDY, logprobs=3),
        submit([5, 200, 31], **GREEDY),
        submit(PREFIX[:5], n=4, temperature=0.9, seed=11),
        submit([9] * 17, **GREEDY, repetition_penalty=1.3, frequency_penalty=0.5),
        submit([100, 101, 102], temperature=1.2, top_k=20, top_p=0.9, min_p=0.01, seed=3),
        submit(list(range(60, 100)), **GREEDY, prompt_logprobs=2),
        engine.submit(
            [8, 8, 9],
            SamplingParams(temperature=0.8, seed=1, max_tokens=20),
            constraint=ModuloConstraint(9, 320),
        ),
        submit([77], temperature=0.7, seed=5, logit_bias={33: 4.0, 55: 4.0}, min_tokens=6, logprobs=0),
    ]


def run_all(engine: SteppedEngine) -> list[Result]:
    first = submit_everything(engine)
    for _ in range(9):
        engine.loop.turn()
    # Later ones find the prefix in the cache; one leaves.
    later = [engine.submit([*PREFIX, 8], SamplingParams(**GREEDY, max_tokens=9)) for _ in range(3)]
    engine.abort(later[1])
    engine.run()
    return [engine.results[i] for request in first + later for i in request.sequence_ids]


def assert_alike(results: list[Result], expected: list[Result]) -> None:
    for result, want in zip(results, expected, strict=True):
        assert result.token_ids == want.token_ids
        assert result.finish_reason == want.finish_reason
        scores = [*result.logprobs, *filter(None, result.prompt_logprobs or [])]
        wanted = [*want.logprobs, *filter(None, want.prompt_logprobs or [])]
        for score, want_score in zip(scores, wanted, strict=True):
            assert score.top_token_ids == want_score.top_token_ids
            assert score.logprob == pytest.approx(want_score.logprob, abs=1e-4)


@pytest.mark.parametrize(
    ("architecture", "overrides", "size"),
    [
        ("qwen3", {}, 2),
        ("qwen2", {}, 4),  # two KV heads for four ranks
        ("llama", {}, 2),
        ("smollm", {"num_key_value_heads": 3, "vocab_size": 321}, 4),  # nothing divides
    ],
)
def test_tiny_models(architecture: str, overrides: dict[str, int], size: int) -> None:
    hf_model, _ = make_tiny_model(architecture, **overrides)
    alone = build_decoder(hf_model, num_blocks=NUM_BLOCKS)
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 16}
    expected_engine = SteppedEngine(alone, NUM_BLOCKS, eos_token_ids=[2], **limits)
    expected = run_all(expected_engine)
    assert expected_engine.counters.preemptions > 0 and expected_engine.counters.prefix_cache_hits > 0
    with rank_threads(size, lambda tp: build_decoder(hf_model, num_blocks=NUM_BLOCKS, tp=tp)) as ranks:
        for depth in (1, 2):
            engine = SteppedEngine(
                ranks.decoders[0],
                NUM_BLOCKS,
                depth=depth,
                eos_token_ids=[2],
                make_runner=ranks.make_runner,
                **limits,
            )
            assert_alike(run_all(engine), expected)


@pytest.mark.parametrize("size", [2, 4])
def test_the_embedded_model(size: int, embedded_source: ModelSource, embedded_model: Decoder) -> None:
    """Nine query and three KV heads, which neither two nor four ranks divide."""
    config = read_model_config(embedded_source)
    num_blocks = 40

    def load(tp: TensorParallel) -> Decoder:
        shape = attention_shape(config, block_size=16, dtype=torch.float32, device=CPU, tp=tp)
        attention = TorchAttention(shape)
        attention.allocate(num_blocks)
        return load_model(
            embedded_source, config, dtype=torch.float32, device=CPU, attention=attention, tp=tp
        )

    prompts = [[504, 3575, 282, 4649, 314], list(range(1000, 1040)), [9690] * 3]
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    limits: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32}
    expected = SteppedEngine(embedded_model, num_blocks, **limits).generate(prompts, params)
    with rank_threads(size, load) as ranks:
        engine = SteppedEngine(ranks.decoders[0], num_blocks, make_runner=ranks.make_runner, **limits)
        assert_alike(engine.generate(prompts, params), expected)
