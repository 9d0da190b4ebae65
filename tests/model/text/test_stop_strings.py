"""Stop strings are found as in the whole text, however it is cut into pushes, and never sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.text.stop_strings import StopStringMatcher
from tests.support.examples import examples

EXAMPLES = examples(100)

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)
CHUNKS = st.lists(st.text("abc", max_size=4), max_size=8)


def run(matcher: StopStringMatcher, chunks: list[str]) -> tuple[list[str], str | None]:
    """What is sent for each chunk until a stop string is found, then what the end of the text brings."""
    sent = []
    for chunk in chunks:
        text, found = matcher.push(chunk)
        sent.append(text)
        if found is not None:
            return sent, found
    text, found = matcher.flush()
    return [*sent, text], found


def earliest_start(text: str, stops: list[str]) -> int | None:
    return min((start for stop in stops if (start := text.find(stop)) >= 0), default=None)


@EXAMPLES
@given(chunks=CHUNKS, stops=STOPS)
def test_text_ends_where_the_earliest_stop_string_starts(chunks: list[str], stops: list[str]) -> None:
    text = "".join(chunks)
    sent, found = run(StopStringMatcher(stops), chunks)
    start = earliest_start(text, stops)
    assert "".join(sent) == text[:start]
    assert (found is None) == (start is None)
    assert found is None or (found in stops and text.startswith(found, start))


@EXAMPLES
@given(chunks=CHUNKS, stops=STOPS)
def test_the_stop_string_itself_follows_if_asked_for(chunks: list[str], stops: list[str]) -> None:
    text = "".join(chunks)
    sent, found = run(StopStringMatcher(stops, include_in_output=True), chunks)
    start = earliest_start(text, stops)
    assert "".join(sent) == (text if start is None or found is None else text[: start + len(found)])


@EXAMPLES
@given(text=st.text("abc", max_size=12), stops=STOPS)
def test_of_stop_strings_with_one_start_the_first_listed_is_reported(text: str, stops: list[str]) -> None:
    _, found = run(StopStringMatcher(stops), [text])
    matches = [(text.find(stop), i) for i, stop in enumerate(stops) if stop in text]
    assert found == (stops[min(matches)[1]] if matches else None)


@EXAMPLES
@given(chunks=CHUNKS, stops=STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop_string(chunks: list[str], stops: list[str]) -> None:
    matcher, text, sent = StopStringMatcher(stops), "", ""
    for chunk in chunks:
        text += chunk
        delta, found = matcher.push(chunk)
        sent += delta
        if found is not None:
            return
        held = text[len(sent) :]
        assert text.startswith(sent)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@EXAMPLES
@given(gated=CHUNKS, searched=CHUNKS, stops=STOPS)
def test_matches_count_only_if_they_end_after_the_gate(
    gated: list[str], searched: list[str], stops: list[str]
) -> None:
    matcher, sent, found = StopStringMatcher(stops), "", None
    for chunk in gated:
        sent += matcher.push(chunk, search=False)[0]
    before, text = len("".join(gated)), "".join(gated + searched)
    starts = [start for stop in stops if (start := text.find(stop, max(0, before - len(stop) + 1))) >= 0]
    rest, found = run(matcher, searched)
    expected = min(starts, default=None)
    assert sent + "".join(rest) == text[:expected]
    assert (found is None) == (expected is None)


@pytest.mark.parametrize(
    ("stops", "chunks", "sent", "found"),
    [
        (["two thr"], ["one tw", "o", " three"], ["one ", "", ""], "two thr"),
        (["TROIS and then more"], ["UN DEUX TROIS"], ["UN DEUX ", "TROIS"], None),
        (["\n"], ["line", ".\n", "next"], ["line", "."], "\n"),
        (["abcd", "bc"], ["abc", "d"], ["", ""], "abcd"),  # the earlier start may still come
        (["abcd", "bc"], ["abc", "x"], ["", "a"], "bc"),
        (["abcd", "bc"], ["abc"], ["", "a"], "bc"),
        (["\n\n", "\n"], ["a\n"], ["a"], "\n"),  # no need to wait: the text ends here either way
        ([], ["a", "b"], ["a", "b", ""], None),
    ],
)
def test_cases(stops: list[str], chunks: list[str], sent: list[str], found: str | None) -> None:
    assert run(StopStringMatcher(stops), chunks) == (sent, found)


def test_many_long_stop_strings_that_nearly_match_are_followed() -> None:
    """In time that grows with the text alone: looking at all that is held anew would take minutes here."""
    run_of_a = "a" * 3000
    stops = [f"{run_of_a}b{i}" for i in range(63)] + [f"{run_of_a}x{run_of_a}c"]
    matcher = StopStringMatcher(stops)
    assert matcher.push(run_of_a + "x") == ("", None)
    assert all(matcher.push("a") == ("", None) for _ in run_of_a)
    assert matcher.push("c") == ("", stops[-1])


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStringMatcher(["a", ""])
