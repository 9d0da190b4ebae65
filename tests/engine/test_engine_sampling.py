"""Sampling parameters through the whole engine: each request gets its own, whatever its batch mates ask."""

from typing import Any

import pytest
import torch

from engine.request import FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from tests.support.engines import Result, SteppedEngine, tiny_engine
from tests.support.tiny_models import make_tiny_model

PROMPT = [5, 9, 11, 200, 33, 9, 7, 41, 77]
MIXED_COMPANY = [
    SamplingParams(temperature=1.0, max_tokens=30),
    SamplingParams(temperature=0.7, seed=1, top_p=0.5, max_tokens=9),
    SamplingParams(temperature=0, repetition_penalty=1.7, max_tokens=40),
    SamplingParams(temperature=1.3, top_k=5, frequency_penalty=1.0, logprobs=3, max_tokens=15),
    SamplingParams(temperature=0, logit_bias={7: 50.0}, min_tokens=3, max_tokens=5),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return make_tiny_model("qwen3")[0]


@pytest.fixture(params=[1, 2], ids=["depth1", "depth2"])
def engine(request: pytest.FixtureRequest, model: Any) -> SteppedEngine:
    return tiny_engine(model, depth=request.param, eos_token_ids=[2])


def one(engine: SteppedEngine, params: SamplingParams, prompt: list[int] = PROMPT) -> Result:
    return engine.generate([prompt], params)[0]


def amid_others(engine: SteppedEngine, params: SamplingParams, before: int) -> Result:
    for other in MIXED_COMPANY[:before]:
        engine.submit(PROMPT[:4], other)
    for _ in range(before):
        engine.loop.turn()
    request = engine.submit(PROMPT, params)
    for other in MIXED_COMPANY[before:]:
        engine.submit(PROMPT[2:], other)
    engine.run()
    return engine.results[request.sequence_ids[0]]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, seed=42, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=-5, top_k=20, top_p=0.9, min_p=0.02, max_tokens=20),
        SamplingParams(temperature=0.9, seed=3, frequency_penalty=0.8, presence_penalty=0.5, max_tokens=20),
        SamplingParams(temperature=0, repetition_penalty=1.5, max_tokens=20),
        SamplingParams(temperature=0, logit_bias={11: 4.0, 5: -100.0}, max_tokens=20),
    ],
    ids=["seeded", "restricted", "penalized", "greedy-penalized", "biased"],
)
def test_what_a_request_draws_does_not_depend_on_its_company(
    engine: SteppedEngine, params: SamplingParams
) -> None:
    alone = one(engine, params).token_ids
    for before in (0, 2, 5):
        assert amid_others(engine, params, before).token_ids == alone


def test_unseeded_requests_differ_and_seeds_matter(engine: SteppedEngine) -> None:
    unseeded = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    texts = {tuple(result.token_ids) for result in engine.generate([PROMPT] * 6, unseeded)}
    assert len(texts) > 3
    seeded = [one(engine, SamplingParams(temperature=1.5, seed=s, max_tokens=12)).token_ids for s in range(4)]
    assert len({tuple(ids) for ids in seeded}) > 2


def test_n_choices_differ_share_the_prompt_and_repeat_with_the_seed(engine: SteppedEngine) -> None:
    params = SamplingParams(temperature=1.2, seed=9, max_tokens=12, ignore_eos=True)
    runs = []
    for _ in range(2):
        request = engine.submit(PROMPT * 4, params, n=8)
        engine.run()
        runs.append([engine.results[i].token_ids for i in request.sequence_ids])
    assert runs[0] == runs[1]
    assert len({tuple(ids) for ids in runs[0]}) >= 5
    assert all(len(ids) == 12 for ids in runs[0])
    computed = engine.counters.step_tokens.sum  # siblings read the prompt's full blocks from the cache
    assert computed < 2 * (len(PROMPT) * 4 + 8 * 12 + 7 * 5)


def test_a_tiny_temperature_is_greedy_in_effect_and_extremes_are_harmless(engine: SteppedEngine) -> None:
    greedy = one(engine, SamplingParams(temperature=0, max_tokens=10)).token_ids
    assert one(engine, SamplingParams(temperature=1e-4, max_tokens=10)).token_ids == greedy
    assert one(engine, SamplingParams(temperature=1, top_p=1e-4, max_tokens=10)).token_ids == greedy
    assert one(engine, SamplingParams(temperature=1, top_k=1, max_tokens=10)).token_ids == greedy
    assert one(engine, SamplingParams(temperature=1, min_p=1.0, max_tokens=10)).token_ids == greedy


def test_bias_bans_and_forces_tokens_even_when_greedy(engine: SteppedEngine) -> None:
    best = one(engine, SamplingParams(temperature=0, max_tokens=8)).token_ids
    banned = SamplingParams(temperature=0, max_tokens=8, logit_bias=dict.fromkeys(best, -100.0))
    assert not set(one(engine, banned).token_ids) & set(best)
    forced = SamplingParams(temperature=1, max_tokens=8, logit_bias={123: 100.0}, ignore_eos=True)
    assert one(engine, forced).token_ids == [123] * 8


def test_penalties_break_a_loop(engine: SteppedEngine) -> None:
    # Biased to one token, so only the penalty can make it stop repeating.
    loop = {"temperature": 0, "max_tokens": 12, "logit_bias": {50: 15.0}, "ignore_eos": True}
    plain = one(engine, SamplingParams(**loop)).token_ids
    assert plain.count(50) >= 6
    penalized = one(engine, SamplingParams(**loop, frequency_penalty=2.0)).token_ids
    assert penalized.count(50) < plain.count(50)


def test_min_tokens_holds_off_every_end(engine: SteppedEngine) -> None:
    biased = {"temperature": 0, "logit_bias": {2: 100.0, 60: 99.0}, "stop_token_ids": (60,)}
    result = one(engine, SamplingParams(**biased, max_tokens=20, min_tokens=7))
    assert len(result.token_ids) == 8
    assert result.token_ids[-1] == 2
    assert result.finish_reason is FinishReason.STOP
    assert not {2, 60} & set(result.token_ids[:-1])


def test_stop_ids_stop_in_spite_of_ignore_eos(engine: SteppedEngine) -> None:
    params = SamplingParams(
        temperature=0, logit_bias={60: 99.0}, stop_token_ids=(60,), ignore_eos=True, max_tokens=9
    )
    result = one(engine, params)
    assert result.token_ids == [60]
    assert result.finish_reason is FinishReason.STOP


def test_an_eos_as_last_allowed_token_is_a_stop(engine: SteppedEngine) -> None:
    result = one(engine, SamplingParams(temperature=0, logit_bias={2: 100.0}, max_tokens=1))
    assert result.finish_reason is FinishReason.STOP


def hf_logprobs(model: Any, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logprobs: torch.Tensor = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    return logprobs


def assert_scores(entry: TokenLogprobs, expected: torch.Tensor, token_id: int, num_top: int) -> None:
    assert entry.logprob == pytest.approx(expected[token_id].item(), abs=1e-4)
    top = expected.topk(num_top) if num_top else None
    assert entry.top_token_ids == (top.indices.tolist() if top else [])
    assert entry.top_logprobs == pytest.approx(top.values.tolist() if top else [], abs=1e-4)


@pytest.mark.parametrize("num_top", [0, 4])
def test_logprobs_are_of_the_raw_logits_and_change_nothing(
    engine: SteppedEngine, model: Any, num_top: int
) -> None:
    options = {"temperature": 0.7, "seed": 4, "top_k": 3, "repetition_penalty": 1.3, "max_tokens": 14}
    plain = one(engine, SamplingParams(**options))
    result = amid_others(engine, SamplingParams(**options, logprobs=num_top), 3)
    assert result.token_ids == plain.token_ids
    assert len(result.logprobs) == len(result.token_ids)
    expected = hf_logprobs(model, PROMPT + result.token_ids)
    for i, (entry, token_id) in enumerate(zip(result.logprobs, result.token_ids, strict=True)):
        assert_scores(entry, expected[len(PROMPT) - 1 + i], token_id, num_top)


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("length", [1, 9, 150])  # 150 takes several chunks of 64
def test_prompt_logprobs_score_every_prompt_token(
    engine: SteppedEngine, model: Any, max_tokens: int, length: int
) -> None:
    prompt = [(7 * i * i + 3) % 320 for i in range(length)]
    engine.generate([prompt], SamplingParams(temperature=0, max_tokens=1))  # fills the prefix cache
    params = SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=2, ignore_eos=True)
    result = amid_others(engine, params, 2) if length == len(PROMPT) else one(engine, params, prompt)
    prompt = PROMPT if length == len(PROMPT) else prompt
    assert len(result.token_ids) == max_tokens
    assert result.finish_reason is FinishReason.LENGTH
    scores = result.prompt_logprobs
    assert scores is not None
    assert len(scores) == len(prompt)
    assert scores[0] is None
    expected = hf_logprobs(model, prompt)
    for position, entry in enumerate(scores[1:], start=1):
        assert entry is not None
        assert_scores(entry, expected[position - 1], prompt[position], 2)


def test_preemption_changes_neither_draws_nor_penalties(model: Any) -> None:
    params = [
        SamplingParams(temperature=0.9, seed=i, max_tokens=40, ignore_eos=True, frequency_penalty=0.5)
        for i in range(6)
    ]
    roomy, tight = tiny_engine(model, depth=2), tiny_engine(model, depth=2, num_blocks=30)
    outputs = []
    for engine in (roomy, tight):
        requests = [engine.submit(PROMPT * 2, p) for p in params]
        engine.run()
        outputs.append([engine.results[r.sequence_ids[0]].token_ids for r in requests])
    assert outputs[0] == outputs[1]
    assert roomy.counters.preemptions == 0
    assert tight.counters.preemptions > 0
