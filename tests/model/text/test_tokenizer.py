"""Tokenizers of model folders, against transformers on the same files."""

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

from model.config import ModelError
from model.source import ModelSource
from model.text.tokenizer import InvalidTextError, Tokenizer, load_tokenizer
from tests.support.examples import examples
from tests.support.tiny_tokenizers import BOS, EOS, byte_level_backend, sentencepiece_backend

EXAMPLES = examples(60)

BACKENDS = {
    "byte-level": byte_level_backend(),
    "no-bos": byte_level_backend(adds_bos=False),
    "sentencepiece": sentencepiece_backend(),
}


def write_folder(folder: Path, backend: Backend, config: dict[str, object] | None = None) -> ModelSource:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    content = (
        {"bos_token": BOS, "eos_token": {"__type": "AddedToken", "content": EOS}}
        if config is None
        else config
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    return ModelSource("folder", folder, folder.name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSource]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: write_folder(root / name, backend) for name, backend in BACKENDS.items()}


@pytest.fixture(scope="module")
def pairs(folders: dict[str, ModelSource]) -> dict[str, tuple[Tokenizer, PreTrainedTokenizerFast]]:
    return {
        name: (load_tokenizer(source), PreTrainedTokenizerFast.from_pretrained(source.path))
        for name, source in folders.items()
    }


@pytest.mark.parametrize("name", BACKENDS)
@EXAMPLES
@given(text=st.text(max_size=20), special=st.booleans())
def test_encodes_and_decodes_as_transformers(
    pairs: dict[str, tuple[Tokenizer, PreTrainedTokenizerFast]], name: str, text: str, special: bool
) -> None:
    tokenizer, oracle = pairs[name]
    ids = tokenizer.encode(text, add_special_tokens=special)
    assert ids == oracle(text, add_special_tokens=special)["input_ids"]
    for skip in (True, False):
        expected = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


def test_describes_its_vocabulary(folders: dict[str, ModelSource]) -> None:
    tokenizer = load_tokenizer(folders["byte-level"])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.special_ids) == (1, (2,), {0, 1, 2})
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.adds_bos) == (BOS, EOS, True)
    assert tokenizer.id_to_token(1) == BOS and tokenizer.token_to_id(BOS) == 1
    last = tokenizer.vocab_size - 1
    assert (tokenizer.id_to_token(last), tokenizer.token_bytes(last - 1)) == ("é!", b"two words")
    assert tokenizer.id_to_token(last + 1) is None and tokenizer.id_to_token(-1) is None
    assert tokenizer.token_bytes(last + 1) == tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_to_id("no such token") is None


def test_token_bytes_are_raw_bytes() -> None:
    tokenizer = Tokenizer(BACKENDS["sentencepiece"])
    spelled = {
        token: tokenizer.token_bytes(tokenizer.token_to_id(token) or 0) for token in ("<0xE2>", "▁the", BOS)
    }
    assert spelled == {"<0xE2>": b"\xe2", "▁the": b" the", BOS: b"<s>"}
    byte_level = Tokenizer(BACKENDS["byte-level"])
    ids = byte_level.encode("\U0001fae0", add_special_tokens=False)
    assert b"".join(map(byte_level.token_bytes, ids)) == "\U0001fae0".encode() and len(ids) > 1


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece"])
def test_bos_is_never_doubled(
    folders: dict[str, ModelSource], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = load_tokenizer(folders[name])
    plain = tokenizer.encode("ok")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert tokenizer.encode("<s>ok") == [1, *tokenizer.encode_chat("ok")] == plain
    assert len(caplog.records) == 1 and "<s>" in caplog.text
    assert tokenizer.encode_chat("<s>ok") == tokenizer.encode_chat("<s><s>ok") == plain
    assert tokenizer.encode_chat("ok")[0] != 1
    assert tokenizer.encode("ok<s><s>", add_special_tokens=False)[-2:] == [1, 1]


def test_a_tokenizer_that_adds_no_bos_leaves_the_text_alone(folders: dict[str, ModelSource]) -> None:
    tokenizer = load_tokenizer(folders["no-bos"])
    assert not tokenizer.adds_bos
    assert tokenizer.encode("<s><s>ok")[:2] == [1, 1]
    assert tokenizer.encode("ok")[0] != 1


def test_bos_of_the_configuration_is_added_where_the_tokenizer_file_says_nothing(tmp_path: Path) -> None:
    config: dict[str, object] = {"bos_token": BOS, "add_bos_token": True}
    source = write_folder(tmp_path, BACKENDS["no-bos"], config)
    assert load_tokenizer(source).encode("ok")[0] == 1


def test_special_tokens_of_the_configuration_are_special(tmp_path: Path) -> None:
    source = write_folder(tmp_path, BACKENDS["byte-level"], {"eos_token": "<tool_call>"})
    tokenizer = load_tokenizer(source)
    assert tokenizer.eos_token_ids[0] in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("a<tool_call>b")) == "ab"


def test_special_tokens_map_fills_in_for_the_configuration(tmp_path: Path) -> None:
    source = write_folder(tmp_path, BACKENDS["byte-level"], {})
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}))
    tokenizer = load_tokenizer(source)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = load_tokenizer(write_folder(tmp_path, backend))
    text = "the lazy dog " * 10
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["\ud83d", "ok \udc00", "\ud83d\ud83d end"])
def test_lone_surrogates_are_refused_as_invalid_text(text: str) -> None:
    tokenizer = Tokenizer(BACKENDS["byte-level"], bos_token_id=1)
    for encode in (tokenizer.encode, tokenizer.encode_chat):
        with pytest.raises(InvalidTextError, match="lone surrogate at character"):
            encode(text)
    assert tokenizer.encode("fine")


def test_decode_refuses_negative_ids_and_skips_unknown_ones() -> None:
    tokenizer = Tokenizer(BACKENDS["byte-level"])
    with pytest.raises(ValueError, match="token ids"):
        tokenizer.decode([-1])
    assert tokenizer.decode([tokenizer.vocab_size + 5, *tokenizer.encode("ok")]) == "ok"


def test_threads_encode_what_one_thread_does() -> None:
    tokenizer = Tokenizer(BACKENDS["byte-level"], bos_token_id=1)
    texts = [f"the dog {i} žluť " * (i + 1) for i in range(8)]
    expected = [tokenizer.encode(text) for text in texts]
    results: list[list[int]] = [[] for _ in texts]

    def encode(i: int) -> None:
        for _ in range(20):
            results[i] = tokenizer.encode(texts[i])

    threads = [threading.Thread(target=encode, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither tokenizer.json nor tokenizer.model"),
        ({"tokenizer.model": "x"}, "tokenizer.model: truncated or damaged"),
        ({"tokenizer.json": "{"}, "tokenizer.json: "),
        (
            {"tokenizer.json": BACKENDS["no-bos"].to_str(), "tokenizer_config.json": "{"},
            "tokenizer_config.json: ",
        ),
        (
            {"tokenizer.json": BACKENDS["no-bos"].to_str(), "tokenizer_config.json": "[1]"},
            "not a JSON object",
        ),
    ],
)
def test_folders_without_a_readable_tokenizer_are_refused(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError) as error:
        load_tokenizer(ModelSource("folder", tmp_path, "broken"))
    assert message in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder(), decoders.Strip(" ", 0, 1)])
def test_decoders_that_look_beyond_one_token_are_refused(tmp_path: Path, decoder: decoders.Decoder) -> None:
    source = write_folder(tmp_path, sentencepiece_backend(decoder=decoder))
    with pytest.raises(ModelError, match="unsupported decoder"):
        load_tokenizer(source)


def test_needs_no_torch() -> None:
    code = (
        "import model.text.chat_template_files, model.text.detokenizer, model.text.stop_strings, sys;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
