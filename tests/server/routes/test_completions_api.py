"""POST /v1/completions: prompts, choices, echo, logprobs, ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.byte_text import byte_tokenizer
from tests.support.fake_engine import PROMPT_LOGPROB
from tests.support.sse import joined_text, parse_events

TOKENIZER = byte_tokenizer()
EOS_ID = TOKENIZER.eos_token_ids[0]


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def complete(served: Any, **body: Any) -> dict[str, Any]:
    """The whole answer; the streamed one must agree with it in text and ends."""
    body = {"max_tokens": 100, **body}
    answer = served.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    events = parse_events(served.http.post("/v1/completions", json={**body, "stream": True}).content)
    for choice in whole["choices"]:
        assert joined_text(events, choice["index"]) == choice["text"]
        ends = [
            (c["finish_reason"], c["stop_reason"])
            for e in events
            for c in e["choices"]
            if c["index"] == choice["index"] and c["finish_reason"]
        ]
        assert ends == [(choice["finish_reason"], choice["stop_reason"])]
    return whole


@pytest.mark.parametrize(
    ("prompt", "texts", "prompt_tokens"),
    [
        ("abc", ["abc"], 4),
        (["abc", "d"], ["abc", "d"], 6),
        (ids_of("abc"), ["abc"], 3),
        ([ids_of("abc"), ids_of("d")], ["abc", "d"], 4),
    ],
)
def test_the_four_forms_of_prompt(served: Any, prompt: Any, texts: list[str], prompt_tokens: int) -> None:
    whole = complete(served, prompt=prompt)
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert whole["usage"]["prompt_tokens"] == prompt_tokens
    assert whole["object"] == "text_completion" and whole["id"].startswith("cmpl-")
    assert whole["model"] == "test-model"


@pytest.mark.parametrize(
    ("side", "kept", "text"),
    [(None, 3, "def"), ("left", 3, "def"), ("right", 3, "abc"), (None, 99, "abcdef")],
)
def test_a_prompt_is_cut_only_on_request(served: Any, side: str | None, kept: int, text: str) -> None:
    cut = {"truncate_prompt_tokens": kept, "truncation_side": side}
    whole = complete(served, prompt=ids_of("abcdef"), echo=True, **cut)
    assert whole["usage"]["prompt_tokens"] == len(text)
    assert whole["choices"][0]["text"] == 2 * text, "echo and answer"
    chat = {"messages": [{"role": "user", "content": "abc"}], **cut}
    answer = served.http.post("/v1/chat/completions", json=chat).json()
    assert answer["usage"]["prompt_tokens"] == min(kept, len(ids_of("[user]abc[assistant]")) + 1)


def test_all_that_fits_is_kept_of_a_prompt(served: Any) -> None:
    prompt = ids_of("x" * 600)
    for max_tokens, num_kept in ((None, 511), (12, 500)):
        fields = {"max_tokens": max_tokens, "ignore_eos": True, "truncate_prompt_tokens": -1}
        usage = served.http.post("/v1/completions", json={"prompt": prompt, **fields}).json()["usage"]
        assert (usage["prompt_tokens"], usage["total_tokens"]) == (num_kept, 512)


PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
}


@pytest.mark.parametrize("path", PROMPTS)
def test_a_service_tier_is_told_to_those_that_ask_for_one(served: Any, path: str) -> None:
    for fields in ({}, {"service_tier": "flex"}, {"service_tier": "auto"}):
        body = {**PROMPTS[path], **fields}
        whole = served.http.post(path, json=body).json()
        raw = served.http.post(path, json={**body, "stream": True}).text
        told = bool(fields) or path == "/v1/responses"
        assert whole.get("service_tier") == ("default" if told else None)
        assert ('"service_tier":"default"' in raw) == told


def test_choices_of_prompt_lists_are_numbered_by_prompt(served: Any) -> None:
    whole = complete(served, prompt=["a", "b"], n=3)
    texts = [(c["index"], c["text"]) for c in whole["choices"]]
    assert texts == list(enumerate(["a", "a#1", "a#2", "b", "b#1", "b#2"]))
    assert whole["usage"]["prompt_tokens"] == 4, "a prompt counts once, whatever n is"
    assert whole["usage"]["completion_tokens"] == sum(len(text) + 1 for _, text in texts)


def test_bos_only_where_wanted(served: Any) -> None:
    with_bos = complete(served, prompt="abc", return_token_ids=True)["choices"][0]
    without = complete(served, prompt="abc", return_token_ids=True, add_special_tokens=False)["choices"][0]
    assert with_bos["prompt_token_ids"] == [TOKENIZER.bos_token_id, *without["prompt_token_ids"]]


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
def test_max_tokens_default_is_sixteen(served: Any, given: dict[str, Any]) -> None:
    answer = served.http.post("/v1/completions", json={"prompt": "x" * 50, **given}).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_default_max_tokens_is_clamped_to_the_room(served: Any) -> None:
    answer = served.http.post("/v1/completions", json={"prompt": [65] * 505}).json()
    assert answer["usage"]["completion_tokens"] == 7


def test_eos_as_the_last_allowed_token_is_a_stop(served: Any) -> None:
    choice = complete(served, prompt="abc", max_tokens=4)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", None, "abc")


def test_ignore_eos(served: Any) -> None:
    whole = complete(served, prompt="abc", max_tokens=10, ignore_eos=True)
    assert whole["usage"]["completion_tokens"] == 10
    assert whole["choices"][0]["finish_reason"] == "length"


def test_cut_character_becomes_replacement_mark(served: Any) -> None:
    whole = complete(served, prompt="ab\U0001fae0", max_tokens=4)
    assert whole["choices"][0]["text"] == TOKENIZER.decode(ids_of("ab\U0001fae0")[:4]) == "ab\ufffd"


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        ("two thr", "one ", "two thr"),
        (["three", "two"], "one ", "two"),  # the earliest in the text, not the first in the list
        (["two three four five"], "one two three four", None),  # held back, then released at the end
        (["four and more"], "one two three four", None),
        (["o", "one"], "", "o"),  # equal starts: list order
        (["e t"], "on", "e t"),
        ([], "one two three four", None),
    ],
)
def test_stop_strings(served: Any, stop: Any, text: str, reason: str | None) -> None:
    choice = complete(served, prompt="one two three four", stop=stop)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text, "stop", reason)


def test_stop_string_ends_the_sequence_in_the_engine(served: Any) -> None:
    before = len(served.engine.finished_by_text)
    whole = complete(served, prompt="one two three", stop=["two"], include_stop_str_in_output=True)
    assert whole["choices"][0]["text"] == "one two"
    assert whole["usage"]["completion_tokens"] == len("one two")
    assert len(served.engine.finished_by_text) == before + 2


def test_held_text_is_released_at_max_tokens(served: Any) -> None:
    choice = complete(served, prompt="one two three", stop=["two four"], max_tokens=7)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("one two", "length")


def test_stop_strings_wait_for_min_tokens(served: Any) -> None:
    whole = complete(served, prompt="a.b.c.d.e", stop=["."], min_tokens=5)
    assert whole["choices"][0]["text"] == "a.b.c"
    assert whole["usage"]["completion_tokens"] == 6


def test_stop_token_ids(served: Any) -> None:
    (token_id,) = ids_of("c")
    choice = complete(served, prompt="abcde", stop_token_ids=[token_id])["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", token_id)
    shown = complete(served, prompt="abcde", stop_token_ids=[token_id], include_stop_str_in_output=True)
    assert shown["choices"][0]["text"] == "abc"


def test_eos_listed_as_stop_token_counts_as_one_only_when_eos_is_ignored(served: Any) -> None:
    plain = complete(served, prompt="ab", stop_token_ids=[EOS_ID])["choices"][0]
    ignoring = complete(served, prompt="ab", stop_token_ids=[EOS_ID], ignore_eos=True)["choices"][0]
    assert (plain["stop_reason"], ignoring["stop_reason"]) == (None, EOS_ID)
    assert plain["text"] == ignoring["text"] == "ab"


@pytest.mark.parametrize("prompt", ["ab", ids_of("ab"), ["ab", "cd"]])
def test_echo(served: Any, prompt: Any) -> None:
    whole = complete(served, prompt=prompt, echo=True, n=2)
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts[:2] == ["abab", "abab#1"]
    assert texts[2:] in ([], ["cdcd", "cdcd#1"])


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_echo_with_logprobs_scores_the_prompt(served: Any, max_tokens: int) -> None:
    whole = complete(served, prompt="añb", echo=True, logprobs=1, max_tokens=max_tokens)
    logprobs = whole["choices"][0]["logprobs"]
    num_prompt_tokens = whole["usage"]["prompt_tokens"]
    assert num_prompt_tokens == 5
    assert {len(column) for column in logprobs.values()} == {num_prompt_tokens + max_tokens}
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:5] == [PROMPT_LOGPROB] * 4
    assert logprobs["text_offset"][:5] == [0, 0, 1, 1, 2]
    assert logprobs["text_offset"][5:] == [3, 4, 4][:max_tokens]
    assert whole["usage"]["completion_tokens"] == max_tokens
    assert whole["choices"][0]["finish_reason"] == "length"


def test_no_stop_trim_is_another_name_of_include_stop_str_in_output(served: Any) -> None:
    whole = complete(served, prompt="one two three", stop=["two"], no_stop_trim=True)
    assert whole["choices"][0]["text"] == "one two"


def test_max_tokens_zero_without_echo(served: Any) -> None:
    whole = complete(served, prompt=["ab", "c"], max_tokens=0)
    assert [choice["text"] for choice in whole["choices"]] == ["", ""]
    assert whole["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("count", [0, 3, True])
def test_logprobs_shape(served: Any, count: Any) -> None:
    logprobs = complete(served, prompt="ab\u00f1", logprobs=count)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "bytes:\\xc3", "bytes:\\xb1", "</s>"]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert len(top) == max(int(count), 1)
        assert list(top.values()) == sorted(top.values(), reverse=True)
        assert min(top.values()) >= -9999.0


def test_tokens_named_by_id(served: Any) -> None:
    choice = complete(served, prompt="ab", logprobs=1, return_tokens_as_token_ids=True)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in [*ids_of("ab"), EOS_ID]]


def test_special_tokens_can_be_shown(served: Any) -> None:
    text = TOKENIZER.decode([TOKENIZER.bos_token_id], skip_special_tokens=False)
    prompt = [TOKENIZER.bos_token_id, *ids_of("a")]
    shown = complete(served, prompt=prompt, echo=True, skip_special_tokens=False)
    assert shown["choices"][0]["text"].startswith(text + "a")
    assert text not in complete(served, prompt=prompt, echo=True)["choices"][0]["text"]


def test_parameters_reach_the_engine(served: Any) -> None:
    sent = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "presence_penalty": 1,
        "frequency_penalty": -1, "repetition_penalty": 1.5, "min_tokens": 2,
    }  # fmt: skip
    complete(served, prompt="ab", logit_bias={"5": 1000, "6": -3}, cache_salt="s", **sent)
    request = served.engine.submitted[-1]
    assert {name: getattr(request.params, name) for name in sent} == sent
    assert request.params.logit_bias == {5: 100, 6: -3}
    assert request.cache_salt == b"s"
    assert 0 < request.record.arrived_ns <= request.record.tokenized_ns
    complete(served, prompt="ab", seed=-1, top_k=-1)
    assert served.engine.submitted[-1].params.seed is None


def test_salt_changes_the_block_hashes(served: Any) -> None:
    hashes = []
    for salt in (None, "a", "b"):
        complete(served, prompt="x" * 40, cache_salt=salt)
        hashes.append(tuple(served.engine.submitted[-1].block_hashes))
    assert len(hashes[0]) == 41 // served.engine.block_size
    assert len(set(hashes)) == 3


def test_prompts_are_hashed_whether_prefixes_are_shared_or_not(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine finds what a preempted sequence has left behind by these hashes, too."""
    config = replace(served.engine.engine_config, enable_prefix_caching=False)
    monkeypatch.setattr(served.engine, "engine_config", config)
    complete(served, prompt="x" * 40)
    request = served.engine.submitted[-1]
    assert len(request.block_hashes) == len(request.prompt_token_ids) // config.block_size > 0


def test_cached_tokens_are_reported(serve: Any) -> None:
    def script(request: Any, index: int) -> list[int]:
        request.record.num_cached_tokens = 2
        return [EOS_ID]

    with serve(script) as served:
        usage = complete(served, prompt=["ab", "cd"], n=2)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def test_harmless_extras_are_ignored(served: Any) -> None:
    extras = {
        "user": "me",
        "metadata": {"a": 1},
        "store": False,
        "unheard_of": [1],
        "suffix": None,
        "best_of": 1,
    }
    assert (
        complete(served, prompt="ab", response_format={"type": "text"}, **extras)["choices"][0]["text"]
        == "ab"
    )
