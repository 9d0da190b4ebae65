"""Reported cases of logprobs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.api import CHAT, answer, complete, tokenize
from tests.support.hf_oracle import hf_model_from_embedded
from tests.support.process import ServerProcess

PASSAGE = "The capital of France is"
CONTINUATIONS = [" Paris, of course.", " made of green cheese."]


def test_g1_restricted_sampling_keeps_logprobs_finite(roomy: ServerProcess) -> None:
    restricted: dict[str, Any] = {"temperature": 1, "top_k": 1, "max_tokens": 8, "logit_bias": {"50": -100}}
    named_by_id = {"logprobs": 5, "return_tokens_as_token_ids": True}
    logprobs = complete(roomy, "Few", **named_by_id, **restricted)["choices"][0]["logprobs"]
    for chosen, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert min(top.values()) >= -9999.0 and math.isfinite(chosen)
        assert len(top) >= 5
    body = {"messages": [{"role": "user", "content": "Few"}], "logprobs": True, "top_logprobs": 5}
    content = answer(roomy, CHAT, {**body, **restricted})["choices"][0]["logprobs"]["content"]
    assert all(entry["logprob"] >= -9999.0 and len(entry["top_logprobs"]) == 5 for entry in content)


def test_g3_echo_scores_the_prompt_as_transformers_does(embedded: ServerProcess) -> None:
    sums = []
    for continuation in CONTINUATIONS:
        prompt = PASSAGE + continuation
        ids = tokenize(embedded, prompt=prompt)
        num_passage_tokens = len(tokenize(embedded, prompt=PASSAGE))
        whole = complete(embedded, prompt, echo=True, logprobs=1, max_tokens=1)
        scores = whole["choices"][0]["logprobs"]["token_logprobs"]
        assert whole["choices"][0]["text"].startswith(prompt)
        assert len(scores) == len(ids) + 1 and scores[0] is None
        with torch.inference_mode():
            logprobs = hf_model_from_embedded()(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [logprobs[i, token_id].item() for i, token_id in enumerate(ids[1:])]
        assert scores[1 : len(ids)] == pytest.approx(expected, abs=0.01)
        sums.append(sum(scores[num_passage_tokens : len(ids)]))
    assert sums[0] > sums[1], "a multiple-choice question is answered right"


def test_echo_scores_the_prompt_for_every_choice(roomy: ServerProcess) -> None:
    options: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 2, "n": 3, "temperature": 1}
    choices = complete(roomy, "Few words", **options)["choices"]
    num_prompt_tokens = len(tokenize(roomy, prompt="Few words"))
    scores = [choice["logprobs"]["token_logprobs"] for choice in choices]
    assert [len(row) for row in scores] == [num_prompt_tokens + 2] * 3
    assert scores[0][:num_prompt_tokens] == scores[1][:num_prompt_tokens] == scores[2][:num_prompt_tokens]
