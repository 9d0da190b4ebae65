"""The embedded model against transformers on the same weights: logits in fp32, and greedy text."""

from __future__ import annotations

import pytest
import torch

from model.decoder import Decoder
from model.source import ModelSource
from model.text.chat_template_files import load_chat_template
from model.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.decoders import Stepper
from tests.support.hf_oracle import greedy_picks, hf_model_from_embedded

NUM_BLOCKS = 128  # of the fixture's pool
# Prompts whose best token leads by a wide margin at every step, so that any right engine gives these texts.
ANSWERS = {
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is 2+2?": "The answer to this classic math problem is 4.",
}


def chat_ids(source: ModelSource, tokenizer: Tokenizer, question: str) -> list[int]:
    template = load_chat_template(source, tokenizer)
    return tokenizer.encode_chat(template.render([{"role": "user", "content": question}]))


def greedy(decoder: Decoder, prompt: list[int], max_tokens: int) -> list[int]:
    stepper, output, fed = Stepper(decoder, NUM_BLOCKS), [], prompt
    while len(output) < max_tokens and not (output and output[-1] in decoder.config.eos_token_ids):
        output.append(int(stepper.step({0: fed})[0][-1].argmax()))
        fed = output[-1:]
    return output


def test_size_and_ends(embedded_model: Decoder) -> None:
    assert sum(parameter.numel() for parameter in embedded_model.parameters()) == 134_515_008
    assert embedded_model.config.eos_token_ids == (2, 0)  # <|im_end|>, <|endoftext|>


def test_logits_equal_transformers(embedded_model: Decoder, embedded_source: ModelSource) -> None:
    tokenizer = load_tokenizer(embedded_source)
    ids = chat_ids(embedded_source, tokenizer, "Count from 1 to 10.") + tokenizer.encode("1, 2, 3, 4")
    with torch.inference_mode():
        expected = hf_model_from_embedded()(torch.tensor([ids])).logits[0]
    stepper = Stepper(embedded_model, NUM_BLOCKS)
    chunks = (ids[:20], ids[20:-2], ids[-2:-1], ids[-1:])
    actual = torch.cat([stepper.step({0: chunk})[0] for chunk in chunks])
    error = (actual - expected).abs().max() / expected.abs().max()
    assert error < 1e-4, f"relative error {error:.2e}"
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("question", ANSWERS)
def test_greedy_answers(question: str, embedded_model: Decoder, embedded_source: ModelSource) -> None:
    tokenizer = load_tokenizer(embedded_source)
    prompt = chat_ids(embedded_source, tokenizer, question)
    output = greedy(embedded_model, prompt, max_tokens=24)
    assert output == greedy_picks(hf_model_from_embedded(), prompt, output)
    assert output[-1] in embedded_model.config.eos_token_ids
    assert tokenizer.decode(output) == ANSWERS[question]
