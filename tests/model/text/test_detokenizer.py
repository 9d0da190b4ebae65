"""The text of pushed tokens is what decoding all of them at once gives."""

import string
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from model.embedded import embedded_gguf_path
from model.source import ModelSource
from model.text.detokenizer import IncrementalDetokenizer
from model.text.tokenizer import Tokenizer, load_tokenizer
from tests.support.examples import examples
from tests.support.tiny_tokenizers import byte_level_backend, sentencepiece_backend

EXAMPLES = examples(100)

TEXTS = [
    "dábel ďas žluť",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "\U0001fae0 \U0001f979 \u9f9c \U0001f600 \u65e5",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 done",
    " leading and trailing  ",
    "The dog, the dog. The dog!\n\n\tEnd",
    "",
]

METASPACE_DECODER = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
BACKENDS = {
    "byte-level": byte_level_backend(),
    "sentencepiece": sentencepiece_backend(),
    "metaspace": sentencepiece_backend(decoder=METASPACE_DECODER),
}
TOKENIZERS = {name: Tokenizer(backend, bos_token_id=1) for name, backend in BACKENDS.items()}
SENTENCEPIECE_LIKE = ["sentencepiece", "metaspace"]


@pytest.fixture(scope="module")
def embedded() -> Tokenizer:
    return load_tokenizer(ModelSource("gguf", embedded_gguf_path(), "embedded"))


def stream(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return "".join(detokenizer.push(token_id) for token_id in output) + detokenizer.flush()


def decode_after(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> str:
    both = tokenizer.decode(prompt + output, skip_special_tokens=skip)
    return both[len(tokenizer.decode(prompt, skip_special_tokens=skip)) :]


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """The tokens that stand for single bytes."""
    return [tokenizer.table.raw.index(bytes([byte])) for byte in data]


@lru_cache
def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, also past the vocabulary; bytes of characters, also with silent tokens between them."""
    incomplete = [i for i, text in enumerate(tokenizer.table.texts) if text is None]
    silent = st.sampled_from([*sorted(tokenizer.special_ids), tokenizer.vocab_size + 2])
    emoji = byte_ids(tokenizer, "\U0001fae0".encode())
    torn = st.builds(lambda cut, token_id: [*emoji[:cut], token_id, *emoji[cut:]], st.integers(1, 3), silent)
    single = st.one_of(st.sampled_from(incomplete), st.integers(0, tokenizer.vocab_size + 2), silent)
    pieces = st.lists(st.one_of(torn, single.map(lambda token_id: [token_id])), max_size=8)
    return pieces.map(lambda drawn: [token_id for piece in drawn for token_id in piece])


def check_any_byte_level_ids(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(ids_of(tokenizer))
    prompt_length = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:prompt_length], ids[prompt_length:]
    skip = data.draw(st.booleans())
    assert stream(tokenizer, prompt, output, skip) == decode_after(tokenizer, prompt, output, skip)


@EXAMPLES
@given(data=st.data())
def test_any_byte_level_ids_stream_as_they_decode(data: st.DataObject) -> None:
    check_any_byte_level_ids(TOKENIZERS["byte-level"], data)


@EXAMPLES
@given(data=st.data())
def test_any_ids_of_the_embedded_model_stream_as_they_decode(
    embedded: Tokenizer, data: st.DataObject
) -> None:
    check_any_byte_level_ids(embedded, data)


@pytest.mark.parametrize("name", TOKENIZERS)
@EXAMPLES
@given(text=st.text(max_size=20), prompt=st.text(max_size=5), skip=st.booleans())
def test_any_text_streams_as_it_decodes(name: str, text: str, prompt: str, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    prompt_ids, output = tokenizer.encode(prompt), tokenizer.encode(text, add_special_tokens=False)
    assert stream(tokenizer, prompt_ids, output, skip) == decode_after(tokenizer, prompt_ids, output, skip)


@pytest.mark.parametrize("text", TEXTS)
def test_embedded_model_streams_texts_without_replacement_marks(embedded: Tokenizer, text: str) -> None:
    assert stream(embedded, embedded.encode("user"), embedded.encode(text)) == text


@lru_cache
def ids_without_half_characters(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Byte tokens come as whole characters or, between other tokens, as runs that hold no character."""
    byte_id = {byte: tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    byte_ids = set(byte_id.values())
    # Spelled in bytes, the mark of a space is a space to `decode` with a Metaspace decoder, and itself here.
    characters = st.characters(codec="utf-8", exclude_characters="\u2581")
    whole = characters.map(lambda character: [byte_id[byte] for byte in character.encode()])
    broken = st.lists(st.integers(0x80, 0xBF), min_size=1, max_size=4).map(
        lambda run: [tokenizer.token_to_id("a"), *(byte_id[byte] for byte in run), tokenizer.token_to_id("b")]
    )
    other = st.sampled_from([i for i in range(tokenizer.vocab_size + 2) if i not in byte_ids])
    pieces = st.lists(st.one_of(whole, broken, other.map(lambda i: [i])), max_size=8)
    return pieces.map(lambda drawn: [token_id for piece in drawn for token_id in piece])


@pytest.mark.parametrize("name", SENTENCEPIECE_LIKE)
@EXAMPLES
@given(data=st.data())
def test_sentencepiece_ids_without_half_characters(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(ids_without_half_characters(tokenizer))
    # Prompt and output meet at a token that is no byte.
    prompt = data.draw(st.sampled_from([[], [1], [tokenizer.token_to_id("▁")], tokenizer.encode("the dog")]))
    skip = data.draw(st.booleans())
    assert stream(tokenizer, prompt, ids, skip) == decode_after(tokenizer, prompt, ids, skip)


def one_mark_for_each_bad_byte(data: bytes) -> str:
    """U+FFFD for every byte that is not part of a valid character, found by trying each length."""
    text = ""
    while data:
        for length in range(1, 5):
            try:
                text, data = text + data[:length].decode(), data[length:]
                break
            except UnicodeDecodeError:
                continue
        else:
            text, data = text + "\ufffd", data[1:]
    return text


@EXAMPLES
@given(run=st.binary(max_size=12))
def test_valid_characters_stay_beside_invalid_byte_tokens(run: bytes) -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in run]
    prompt = [tokenizer.token_to_id("a")]
    assert all(isinstance(i, int) for i in ids)
    assert stream(tokenizer, prompt, ids) == one_mark_for_each_bad_byte(run)
    assert stream(tokenizer, prompt, [*ids, prompt[0]]) == one_mark_for_each_bad_byte(run) + "a"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_first_token_keeps_its_space_after_a_prompt(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    prompt = tokenizer.encode("Who?")
    output = tokenizer.encode("x the dog", add_special_tokens=False)
    output = output[output.index(tokenizer.encode("x", add_special_tokens=False)[-1]) + 1 :]
    assert stream(tokenizer, prompt, output) == " the dog"


@pytest.mark.parametrize("name", SENTENCEPIECE_LIKE)
def test_a_text_begins_without_the_space_that_the_tokenizer_put_there(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("the dog")
    assert stream(tokenizer, [], ids) == stream(tokenizer, ids[:1], ids[1:]) == "the dog"
    detokenizer = IncrementalDetokenizer(tokenizer)
    texts = [detokenizer.push(token_id) for token_id in ids]
    assert "".join(texts) + detokenizer.flush() + detokenizer.push(ids[-1]) == "the dog dog"


def test_characters_come_with_their_last_byte_and_held_bytes_with_the_flush() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a\U0001fae0", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    assert deltas[0] == "a" and deltas[-1] == "\U0001fae0" and not any(deltas[1:-1])
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.push(token_id) for token_id in ids[:-1]) == "a"
    assert [detokenizer.flush(), detokenizer.flush()] == ["\ufffd", ""]
    assert detokenizer.push(ids[0]) == "a"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_left_out_or_literal_and_added_tokens_always_literal(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = [tokenizer.token_to_id("a"), 1, tokenizer.token_to_id("b"), 2]
    if name == "byte-level":
        ids += [tokenizer.token_to_id("<tool_call>"), tokenizer.token_to_id("two words")]
    added = "<tool_call>two words" if name == "byte-level" else ""
    assert stream(tokenizer, [], ids) == "ab" + added
    assert stream(tokenizer, [], ids, skip=False) == "a<s>b</s>" + added


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_prompt_that_ends_inside_a_character_does_not_leak(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    emoji = byte_ids(tokenizer, "a\U0001fae0".encode())
    b = tokenizer.token_to_id("b")
    assert b is not None
    for cut in range(2, 5):
        completed, broken = [*emoji[cut:], b], [b]
        assert stream(tokenizer, emoji[:cut], completed) == "b"  # the character counts as the prompt's
        assert stream(tokenizer, emoji[:cut], broken) == decode_after(tokenizer, emoji[:cut], broken) == "b"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_bytes_of_all_tokens_are_the_text(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = "".join(string.ascii_letters) + " žluťoučký \U0001fae0\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode()
    assert joined == (" " + text if name in SENTENCEPIECE_LIKE else text)
