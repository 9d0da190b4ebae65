"""Tokenizers from GGUF metadata, against independent implementations of the same rules."""

import json
import re
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Tokenizer

from model.config import ModelError
from model.embedded import embedded_gguf_path
from model.source import ModelSource
from model.text.gguf_tokenizer import read_gguf_tokenizer
from model.text.tokenizer import Tokenizer, load_tokenizer
from model.weights.gguf_header import read_gguf_header
from tests.support.examples import examples
from tests.support.tiny_tokenizers import byte_level_backend, sentencepiece_vocabulary

EXAMPLES = examples(80)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

SPACES = ["", " ", "  ", "   ", "\n", "\n ", "\n   ", " \n", "\t", "\t\t", "\r\n", "\n\n"]
DIGITS = ["2", "10", "2026", "3.14", "7th", "x5", "5x"]


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    return load_tokenizer(ModelSource("gguf", embedded_gguf_path(), "embedded"))


def test_embedded_model_encodes_its_default_chat(embedded: Tokenizer) -> None:
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = embedded.encode_chat(text)
    assert (len(ids), ids[:3], ids[-4:]) == (37, [1, 9690, 198], [1, 520, 9531, 198])
    assert embedded.encode(text) == ids  # adds no BOS
    assert embedded.decode(ids, skip_special_tokens=False) == text


def test_embedded_model_has_the_special_tokens_of_its_metadata(embedded: Tokenizer) -> None:
    assert (embedded.vocab_size, embedded.bos_token_id, embedded.eos_token_ids) == (49152, 1, (2, 0))
    assert embedded.special_ids == set(range(17))
    assert (embedded.bos_token, embedded.eos_token) == ("<|im_start|>", "<|im_end|>")


class GptBpe:
    """Byte-level BPE after splitting off every digit, in plain Python, for ASCII text."""

    WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        self.ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(metadata["tokenizer.ggml.merges"])}

    def encode(self, text: str) -> list[int]:
        words = [word for piece in re.split(r"(\d)", text) for word in self.WORDS.findall(piece)]
        return [self.ids[token] for word in words for token in self.merge(word)]

    def merge(self, word: str) -> list[str]:
        # Printable ASCII spells itself, control characters and the space are moved up by 256.
        tokens = [c if c > " " else chr(ord(c) + 256) for c in word]
        while pairs := [pair for pair in pairwise(tokens) if pair in self.ranks]:
            best = min(pairs, key=self.ranks.__getitem__)
            i = next(i for i in range(len(tokens)) if tuple(tokens[i : i + 2]) == best)
            tokens[i : i + 2] = ["".join(best)]
        return tokens


@pytest.fixture(scope="module")
def reference() -> GptBpe:
    return GptBpe(read_gguf_header(embedded_gguf_path()).metadata)


def test_embedded_model_splits_whitespace_before_digits(embedded: Tokenizer, reference: GptBpe) -> None:
    for before, space, digits, after in product(["", "x", "."], SPACES, DIGITS, ["", ".", " a"]):
        text = before + space + digits + after
        ids = embedded.encode(text)
        assert ids == reference.encode(text), text
        assert embedded.decode(ids) == text
        tokens = [embedded.token_bytes(i) for i in ids]
        assert all(len(token) == 1 for token in tokens if re.search(rb"\d", token)), text


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("\n   2.", [472, 34, 30]),
        ("x  5", [104, 256, 37]),
        ("2026", [34, 32, 34, 38]),
        (" 10", [216, 33, 32]),
        ("\t3.14", [197, 35, 30, 33, 36]),
        ("a\r\n7", [81, 2738, 39]),
    ],
)
def test_embedded_model_golden_ids(embedded: Tokenizer, text: str, ids: list[int]) -> None:
    assert embedded.encode(text) == ids


@EXAMPLES
@given(text=st.text(" \n\t\r0123456789abctheing.,'_(){}=", max_size=30))
def test_embedded_model_encodes_ascii_as_the_reference(
    embedded: Tokenizer, reference: GptBpe, text: str
) -> None:
    assert embedded.encode(text) == reference.encode(text)


@EXAMPLES
@given(text=st.text(max_size=30))
def test_embedded_model_gives_any_text_back(embedded: Tokenizer, text: str) -> None:
    # The vocabulary lacks a few bytes (of control characters and unassigned planes); those are dropped.
    known = {data for data in embedded.table.raw if len(data) == 1}
    text = "".join(c for c in text if all(bytes([byte]) in known for byte in c.encode()))
    assert embedded.decode(embedded.encode(text), skip_special_tokens=False) == text


def byte_level_metadata(pre: str | None) -> dict[str, Any]:
    model = json.loads(byte_level_backend().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {key: value for key, value in metadata.items() if value is not None}


def read(metadata: dict[str, Any]) -> Tokenizer:
    parts = read_gguf_tokenizer(metadata, "model.gguf")
    return Tokenizer(parts.backend, bos_token_id=parts.bos_token_id, eos_token_ids=parts.eos_token_ids)


@EXAMPLES
@given(text=st.text(max_size=30))
def test_qwen2_encodes_as_transformers(text: str) -> None:
    metadata = byte_level_metadata("qwen2")
    vocabulary = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    oracle = Qwen2Tokenizer(vocab=vocabulary, merges=merges, unk_token="<unk>", eos_token="</s>")
    assert read(metadata).encode(text) == oracle(text)["input_ids"]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("llama-bpe", "I|'LL| pay| |123|45| €!\n\n| | OK|,ok"),
        ("qwen2", "I|'LL| pay| |1|2|3|4|5| €!\n\n| | OK|,ok"),
        ("tekken", "I|'LL| pay| |1|2|3|4|5| €!\n\n| | OK|,ok"),
        ("smollm", "I|'|LL| pay| |1|2|3|4|5| €!|\n\n | OK|,|ok"),
        ("gpt-2", "I|'|LL| pay| 12345| €!|\n\n | OK|,|ok"),
    ],
)
def test_text_is_split_as_each_scheme_says(pre: str, words: str) -> None:
    backend = read_gguf_tokenizer(byte_level_metadata(pre), "model.gguf").backend
    text = words.replace("|", "")
    spans = [span for _, span in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert "|".join(text[start:end] for start, end in spans) == words


def test_llama3_takes_whole_vocabulary_words_before_merging() -> None:
    metadata = byte_level_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"].append("zq")  # no merge makes it
    metadata["tokenizer.ggml.token_type"].append(NORMAL)
    tokenizer = read(metadata)
    assert tokenizer.encode("zq") == [1, tokenizer.token_to_id("zq")]
    metadata["tokenizer.ggml.add_bos_token"] = False
    assert read(metadata).encode("zq") == [tokenizer.token_to_id("zq")]


def sentencepiece_metadata() -> dict[str, Any]:
    tokens = [*sentencepiece_vocabulary(), "<think>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
        + [NORMAL] * (len(tokens) - 260)
        + [USER_DEFINED],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def sentencepiece_encode(text: str, tokens: list[str]) -> list[int]:
    """Merge the two neighbours that make the best piece, until none do; lower ids score better here."""
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while merged := [(ids[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in ids]:
        _, i = min(merged)
        pieces[i : i + 2] = ["".join(pieces[i : i + 2])]
    spelled = [[p] if p in ids else [f"<0x{byte:02X}>" for byte in p.encode()] for p in pieces]
    return [ids[token] for piece in spelled for token in piece]


@EXAMPLES
@given(text=st.text(st.one_of(st.sampled_from("  theabcdogé"), st.characters(codec="utf-8")), max_size=30))
def test_sentencepiece_encodes_by_score_with_byte_fallback(text: str) -> None:
    metadata = sentencepiece_metadata()
    tokenizer = read(metadata)
    ids = sentencepiece_encode(text, metadata["tokenizer.ggml.tokens"])
    assert tokenizer.encode(text) == [1, *ids]
    assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_sentencepiece_special_and_user_defined_tokens() -> None:
    tokenizer = read(sentencepiece_metadata())
    think = tokenizer.token_to_id("<think>")
    assert think is not None and think not in tokenizer.special_ids
    assert tokenizer.special_ids == {0, 1, 2}
    ids = tokenizer.encode("ab<think></s>")
    assert ids == [1, tokenizer.token_to_id("▁ab"), think, 2]
    assert tokenizer.decode(ids) == "ab<think>"


def test_every_token_that_ends_a_turn_is_an_eos() -> None:
    metadata = byte_level_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"] += ["<|eot_id|>", "<|im_end|>", "<|eom_id|>"]
    metadata["tokenizer.ggml.token_type"] += [CONTROL, NORMAL, CONTROL]
    metadata["tokenizer.ggml.eom_token_id"] = len(metadata["tokenizer.ggml.tokens"]) - 1
    tokenizer = read(metadata)
    # The one in the middle looks like one, but the file calls it ordinary text.
    assert tokenizer.eos_token_ids == (2, tokenizer.vocab_size - 1, tokenizer.vocab_size - 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model 'bert' is not supported"),
        ({"tokenizer.ggml.model": None}, "holds no tokenizer"),
        ({"tokenizer.ggml.pre": "falcon"}, "tokenizer.ggml.pre 'falcon' is not supported"),
        ({"tokenizer.ggml.merges": None}, "holds no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["zz"]}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "lists a token twice"),
        (
            {"tokenizer.ggml.bos_token_id": 10**6},
            "tokenizer.ggml.bos_token_id 1000000 is not in the vocabulary",
        ),
    ],
)
def test_what_cannot_be_read_is_named(change: dict[str, Any], message: str) -> None:
    metadata = {
        key: value for key, value in {**byte_level_metadata("qwen2"), **change}.items() if value is not None
    }
    with pytest.raises(ModelError, match=re.escape(message)) as error:
        read_gguf_tokenizer(metadata, "model.gguf")
    assert str(error.value).startswith("model.gguf: ") and "\n" not in str(error.value)


def test_a_sentencepiece_vocabulary_needs_scores() -> None:
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(ModelError, match="scores"):
        read_gguf_tokenizer(metadata, "model.gguf")
