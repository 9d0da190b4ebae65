"""`tokenizer.model` alone, against SentencePiece itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from model.config import ModelError
from model.source import ModelSource
from model.text.sentencepiece_file import read_sentencepiece
from model.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.examples import examples
from tests.support.tiny_tokenizers import CORPUS

NUM_PIECES = 340
LIKE_LLAMA_2 = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
    "vocab_size": NUM_PIECES,
}


def train(folder: Path, **options: Any) -> Path:
    prefix = folder / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20), model_prefix=str(prefix), minloglevel=3,
        **{**LIKE_LLAMA_2, **options},
    )  # fmt: skip
    return prefix.with_suffix(".model")


def load(folder: Path, **config: Any) -> Tokenizer:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(ModelSource("folder", folder, "m"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("llama2")).parent


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load(folder)


def test_what_the_file_says(folder: Path, oracle: Any, tokenizer: Tokenizer) -> None:
    metadata = read_sentencepiece(folder / "tokenizer.model")
    assert metadata["tokenizer.ggml.tokens"] == [oracle.id_to_piece(i) for i in range(NUM_PIECES)]
    assert metadata["tokenizer.ggml.scores"] == [oracle.get_score(i) for i in range(NUM_PIECES)]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (oracle.bos_id(), (oracle.eos_id(),))
    assert tokenizer.special_ids == {oracle.unk_id(), oracle.bos_id(), oracle.eos_id()}


@examples(150)
@given(text=st.lists(st.sampled_from([*"".join(CORPUS), *CORPUS, "  ", "é", "☃", "the "])).map("".join))
def test_text_becomes_the_ids_of_sentencepiece_and_text_again(
    oracle: Any, tokenizer: Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == [oracle.bos_id(), *oracle.encode(text)]
    assert tokenizer.decode(ids) == text


def test_the_files_beside_it_add_tokens(folder: Path, oracle: Any) -> None:
    added = {str(NUM_PIECES): {"content": "<|im_start|>"}, str(NUM_PIECES + 1): {"content": "<|im_end|>"}}
    tokenizer = load(folder, added_tokens_decoder=added, eos_token="<|im_end|>", add_bos_token=False)
    assert tokenizer.eos_token_ids[0] == NUM_PIECES + 1
    assert tokenizer.encode("<|im_start|>the") == [NUM_PIECES, *oracle.encode("the")]
    with pytest.raises(ModelError, match="no token has the id 340"):
        load(folder, added_tokens_decoder={str(NUM_PIECES + 5): {"content": "<far>"}})


@pytest.mark.parametrize("legacy", [True, False])
def test_a_space_after_a_special_token_is_what_legacy_means(
    legacy: bool, folder: Path, oracle: Any, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_start|>": NUM_PIECES}))
    tokenizer = load(tmp_path, legacy=legacy)
    assert tokenizer.encode("the dog") == [oracle.bos_id(), *oracle.encode("the dog")]
    start, first, *_ = tokenizer.encode_chat("<|im_start|>the dog")
    assert start == NUM_PIECES
    assert oracle.id_to_piece(first).startswith("▁") == legacy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "unigram"}, "not of the kind BPE"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normalizes text"),
        ({"remove_extra_whitespaces": True}, "removes spaces"),
    ],
)
def test_other_kinds_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read_sentencepiece(train(tmp_path, **options))


def test_a_damaged_file_is_refused(folder: Path, tmp_path: Path) -> None:
    content = (folder / "tokenizer.model").read_bytes()
    with_a_piece_without_text = content + b"\x0a\x00"
    for damaged in [*(content[:length] for length in range(1, len(content), 97)), with_a_piece_without_text]:
        (tmp_path / "tokenizer.model").write_bytes(damaged)
        with pytest.raises(ModelError, match=r"tokenizer\.model"):
            load_tokenizer(ModelSource("folder", tmp_path, "m"))
