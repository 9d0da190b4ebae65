"""Tokens to text, logprobs and ends, against the tokenizer's own decoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.request import NO_TOKEN, FinishReason
from engine.sampling_params import SamplingParams
from engine.text import open_text
from server.delivery.choice import Choice
from tests.support.byte_text import byte_tokenizer
from tests.support.examples import examples

TOKENIZER = byte_tokenizer()
EOS = frozenset(TOKENIZER.eos_token_ids)
TEXT = st.text("ab \u00e9\U0001fae0\u9f9c", max_size=30)
STOPS = st.lists(st.text("ab \u00e9\U0001fae0", min_size=1, max_size=4), max_size=3)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def feed(
    text: str, params: SamplingParams, end: tuple[int, FinishReason], sizes: list[int]
) -> tuple[Choice, list[str]]:
    """Push the tokens of `text` and an end, taking the text out after each of the given numbers of tokens."""
    choice = Choice(0, 0, params, EOS, open_text(TOKENIZER, (), params), keep_tokens=True)
    pieces = []
    for position, token_id in enumerate(ids_of(text)):
        choice.push(token_id, None, None)
        if choice.finish_reason is not None:
            break
        if position in sizes:
            pieces.append(choice.take_text())
    else:
        choice.push(*end, None)
    return choice, [*pieces, choice.take_text()]


@examples(100)
@given(TEXT, STOPS, st.booleans(), st.lists(st.integers(0, 60), max_size=8))
def test_pieces_join_to_the_cut_text(text: str, stops: list[str], include: bool, sizes: list[int]) -> None:
    params = SamplingParams(max_tokens=None, stop=tuple(stops), include_stop_str_in_output=include)
    end = (next(iter(EOS)), FinishReason.STOP)
    choice, pieces = feed(text, params, end, sizes)
    joined = "".join(pieces)
    whole_choice, (whole,) = feed(text, params, end, [])
    assert joined == whole, "where the text is taken out makes no difference"
    assert choice.stop_reason == whole_choice.stop_reason
    assert choice.finish_reason is FinishReason.STOP
    if choice.stop_reason is None:
        assert not any(stop in text for stop in stops)
        assert joined == text if not include else joined.startswith(text)
    else:
        assert isinstance(choice.stop_reason, str)
        cut = joined.removesuffix(choice.stop_reason) if include else joined
        assert text.startswith(cut + choice.stop_reason)
        assert not any(stop in cut for stop in stops), "an earlier match was missed"
        if include:
            assert joined.endswith(choice.stop_reason)


@examples(60)
@given(TEXT, st.integers(0, 40))
def test_cut_anywhere_it_is_what_decode_gives(text: str, num_tokens: int) -> None:
    ids = ids_of(text)[:num_tokens]
    params = SamplingParams(max_tokens=len(ids))
    choice = Choice(0, 0, params, EOS, open_text(TOKENIZER, (), params), keep_tokens=True)
    for position, token_id in enumerate(ids):
        choice.push(token_id, FinishReason.LENGTH if position == len(ids) - 1 else None, None)
    if not ids:
        choice.push(NO_TOKEN, FinishReason.LENGTH, None)
    assert choice.take_text() == TOKENIZER.decode(ids)
    assert choice.num_tokens == len(ids)
    assert [token.token_id for token in choice.take_tokens()] == ids
    assert choice.finish_reason is FinishReason.LENGTH


@examples(40)
@given(TEXT.filter(bool))
def test_offsets_count_the_characters_before_a_token(text: str) -> None:
    choice, _ = feed(text, SamplingParams(max_tokens=None), (NO_TOKEN, FinishReason.LENGTH), [])
    for number, token in enumerate(choice.take_tokens()):
        before = bytes(b for i in ids_of(text)[:number] for b in TOKENIZER.token_bytes(i))
        assert token.text_offset == len(before.decode(errors="ignore"))


def test_a_stop_string_in_the_last_token_beats_the_length_limit() -> None:
    params = SamplingParams(max_tokens=3, stop=("c",))
    choice = Choice(0, 0, params, EOS, open_text(TOKENIZER, (), params), keep_tokens=False)
    *first, last = ids_of("abc")
    for token_id in first:
        choice.push(token_id, None, None)
    choice.push(last, FinishReason.LENGTH, None)
    assert (choice.finish_reason, choice.stop_reason, choice.take_text()) == (FinishReason.STOP, "c", "ab")


def test_the_replacement_mark_of_a_cut_character_can_be_a_stop_string() -> None:
    params = SamplingParams(max_tokens=2, stop=("\ufffd",))
    choice = Choice(0, 0, params, EOS, open_text(TOKENIZER, (), params), keep_tokens=False)
    for token_id, reason in zip(ids_of("\U0001fae0")[:2], (None, FinishReason.LENGTH), strict=True):
        choice.push(token_id, reason, None)
    assert (choice.stop_reason, choice.take_text()) == ("\ufffd", "")
