"""Greedy text of the embedded model in fp32 equals transformers', alone and 32 at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine import LLM, SamplingParams
from tests.support.hf_oracle import greedy_picks, hf_model_from_embedded

SUBJECTS = [
    "the capital of Japan",
    "2 + 2",
    "a cat",
    "gravity",
    "the colour of the sky",
    "photosynthesis",
    "a prime number",
    "the Roman Empire",
    "how bread is made",
    "ďábel a žluťoučký kůň",
]
FORMS = [
    "What is {}?",
    "Write one sentence about {}.",
    "<|im_start|>user\nTell me about {}.<|im_end|>\n<|im_start|>assistant\n",
    "def answer():\n    # about {}\n",
    "1. {}\n2.",
]
PROMPTS = [form.format(subject) for form in FORMS for subject in SUBJECTS]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM(dtype="float32", max_num_seqs=32, kv_cache_bytes=128 * 2**20)
    yield llm
    llm.close()


def test_greedy_text_of_fifty_prompts(llm: LLM) -> None:
    together = llm.generate(PROMPTS, greedy(6), use_tqdm=False)
    alone = [llm.generate([prompt], greedy(2), use_tqdm=False)[0] for prompt in PROMPTS]
    assert [one["token_ids"] for one in alone] == [one["token_ids"][:2] for one in together]
    model = hf_model_from_embedded()
    for prompt, generation in zip(PROMPTS, together, strict=True):
        output = generation["token_ids"]
        assert output == greedy_picks(model, llm.tokenizer.encode(prompt), output), prompt
        if generation["finish_reason"] == "stop":
            assert output[-1] in model.generation_config.eos_token_id
