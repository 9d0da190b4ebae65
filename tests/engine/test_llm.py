"""The offline face: texts equal transformers', stop strings cut, every prompt form works."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams, StructuredOutputsParams
from engine.config import ConfigError
from engine.handle import PromptTooLongError
from engine.sampling_params import ParameterError
from model.config import ModelError
from model.grammar.source import GrammarError, GrammarSource
from tests.support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def hf_and_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, LLM]]:
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    hf_model = save_tiny_model(folder, "qwen3", with_tokenizer=True)
    llm = LLM(str(folder), dtype="float32", max_num_seqs=3, max_queue=4, kv_cache_bytes=2**20)
    yield hf_model, llm
    llm.close()


PROMPTS = ["Hello", "One two three", "ďábel 🌍", "x", "The end of a line\n", "0123456789" * 5, "a b", "q"]


def test_texts_equal_those_of_transformers(hf_and_llm: tuple[Any, LLM]) -> None:
    hf_model, llm = hf_and_llm
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    by_ids = llm.generate(
        [llm.tokenizer.encode(prompt) for prompt in PROMPTS],
        [SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)] * len(PROMPTS),
        use_tqdm=False,
    )
    assert outputs == by_ids
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = torch.tensor([llm.tokenizer.encode(prompt)])
        with torch.inference_mode():
            expected = hf_model.generate(
                ids, do_sample=False, max_new_tokens=16, min_new_tokens=16, eos_token_id=None, pad_token_id=0
            )
        assert output["token_ids"] == expected[0, ids.shape[1] :].tolist()
        assert output["text"] == llm.tokenizer.decode(output["token_ids"])
        assert output["finish_reason"] == "length"


@pytest.mark.parametrize("limits", [{"max_model_len": 2}, {"max_model_len": 16}, {"num_kv_blocks": 1}])
def test_an_engine_of_the_smallest_context_starts(tmp_path: Path, limits: dict[str, int]) -> None:
    save_tiny_model(tmp_path, "qwen3", with_tokenizer=True)
    with closing(
        LLM(str(tmp_path), dtype="float32", block_size=16, max_num_batched_tokens=4, **limits)
    ) as llm:
        (output,) = llm.generate([[5]], SamplingParams(max_tokens=1))
    assert len(output["token_ids"]) == 1


def test_a_stop_string_cuts_the_text_and_ends_the_generation(hf_and_llm: tuple[Any, LLM]) -> None:
    _, llm = hf_and_llm
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    full = llm.generate(["Hello"], SamplingParams(**options))[0]["text"]
    stop = full[5:8]
    (cut,) = llm.generate(["Hello"], SamplingParams(**options, stop=(stop,)))
    assert cut["text"] == full[: full.index(stop)]
    assert cut["finish_reason"] == "stop"
    assert len(cut["token_ids"]) < 40
    (kept,) = llm.generate(
        ["Hello"], SamplingParams(**options, stop=(stop,), include_stop_str_in_output=True)
    )
    assert kept["text"] == full[: full.index(stop)] + stop


SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": [1, 20, 300]}},
    "required": ["size"],
    "additionalProperties": False,
}
STRUCTURED: list[tuple[dict[str, Any], Callable[[str], object]]] = [
    ({"json": SCHEMA}, lambda text: json.loads(text)["size"] in (1, 20, 300)),
    ({"json": json.dumps(SCHEMA)}, lambda text: json.loads(text)["size"] in (1, 20, 300)),
    ({"regex": "[ab]{3}-[0-9]"}, re.compile("[ab]{3}-[0-9]").fullmatch),
    ({"choice": ["žluť", "red"]}, lambda text: text in ("žluť", "red")),
    ({"grammar": 'root ::= "x" [0-9] "y"'}, re.compile("x[0-9]y").fullmatch),
]


def test_structured_outputs_beside_free_ones(hf_and_llm: tuple[Any, LLM]) -> None:
    """Each prompt may want another; the random model writes noise wherever it may."""
    _, llm = hf_and_llm
    params = [
        SamplingParams(
            max_tokens=100, seed=i, ignore_eos=True, structured_outputs=StructuredOutputsParams(**wanted)
        )
        for i, (wanted, _) in enumerate(STRUCTURED)
    ]
    free = SamplingParams(max_tokens=5, seed=1, ignore_eos=True)
    *outputs, beside = llm.generate(["Now:"] * (len(params) + 1), [*params, free], use_tqdm=False)
    for (wanted, is_right), output in zip(STRUCTURED, outputs, strict=True):
        assert output["finish_reason"] == "stop" and is_right(output["text"]), (wanted, output)
    assert beside == llm.generate(["Now:"], free, use_tqdm=False)[0]


def test_any_object_is_a_schema_too() -> None:
    assert StructuredOutputsParams(json_object=True).source() == GrammarSource.any_json_object()


def test_structured_outputs_that_cannot_be_had(hf_and_llm: tuple[Any, LLM]) -> None:
    _, llm = hf_and_llm
    for wanted in ({}, {"regex": "a", "choice": ["b"]}):
        with pytest.raises(GrammarError, match="one of"):
            StructuredOutputsParams(**wanted)  # type: ignore[arg-type]
    for wanted in ({"regex": "("}, {"json": "{"}, {"json": {"uniqueItems": True}}, {"grammar": "?"}):
        with pytest.raises(GrammarError):
            llm.generate(["x"], SamplingParams(structured_outputs=StructuredOutputsParams(**wanted)))
    assert llm.generate(["x"], SamplingParams(max_tokens=3, ignore_eos=True))[0]["finish_reason"] == "length"


def test_bad_input_is_named_and_the_next_call_works(hf_and_llm: tuple[Any, LLM]) -> None:
    _, llm = hf_and_llm
    with pytest.raises(PromptTooLongError, match="600"):
        llm.generate([[5] * 600])
    with pytest.raises(ParameterError, match="stop_token_ids"):
        llm.generate(["x"], SamplingParams(stop_token_ids=(10**6,)))
    assert len(llm.generate(["x"], SamplingParams(max_tokens=3, ignore_eos=True))[0]["token_ids"]) == 3


def test_a_model_that_cannot_be_served_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or folder"):
        LLM(str(tmp_path / "nowhere.gguf"))
    save_tiny_model(tmp_path, "qwen2", with_tokenizer=True)
    with pytest.raises(ConfigError, match="--max-model-len"):
        LLM(str(tmp_path), max_model_len=10**6)
    with pytest.raises(ConfigError, match="KV pool"):
        LLM(str(tmp_path), max_model_len=512, num_kv_blocks=2)
