"""The openai Python client against the real process and the embedded model."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.process import ServerProcess

JAPAN = [{"role": "user", "content": "What is the capital of Japan?"}]
JAPAN_ANSWER = "The capital of Japan is Tokyo."


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    return client.completions.create(model="", prompt=prompt, temperature=0, **options)


def streamed_completion(client: openai.OpenAI, prompt: Any, **options: Any) -> tuple[dict[int, str], Any]:
    """Texts by index, and the usage."""
    texts: dict[int, str] = {}
    usage = None
    for chunk in complete(client, prompt, stream=True, stream_options={"include_usage": True}, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts, usage


def tokenize(server: ServerProcess, text: str) -> list[int]:
    import httpx

    ids: list[int] = httpx.post(f"{server.base_url}/tokenize", json={"prompt": text}).json()["tokens"]
    return ids


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="", messages=JAPAN, temperature=0, max_tokens=30)
    assert whole.choices[0].message.content == JAPAN_ANSWER
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.prompt_tokens == 37
    with client.chat.completions.stream(
        model="", messages=JAPAN, temperature=0, max_tokens=30, stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == JAPAN_ANSWER
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == whole.usage.completion_tokens == 8


def test_an_answer_tells_how_long_it_took(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "",
        "messages": JAPAN,
        "max_tokens": 4,
        "extra_body": {"ignore_eos": True},
    }
    begin = time.monotonic()
    whole = client.chat.completions.create(**options).metrics
    *_, last = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    elapsed_ms = (time.monotonic() - begin) * 1000
    for metrics in (whole, last.metrics):
        first, rest = metrics["time_to_first_token_ms"], metrics["generation_time_ms"]
        assert 0 <= metrics["queue_time_ms"] < first < first + rest < elapsed_ms
        assert metrics["mean_itl_ms"] == pytest.approx(rest / 3)
        assert 4000 / elapsed_ms < metrics["tokens_per_second"] < 4000 / rest
    assert "metrics" not in client.chat.completions.create(**options, n=2).to_dict()


def test_all_four_prompt_forms_agree(client: openai.OpenAI, server: ServerProcess) -> None:
    texts = ["One two three", "The sky is"]
    ids = [tokenize(server, text) for text in texts]
    forms = [texts[0], ids[0], texts, ids]
    answers = [complete(client, form, max_tokens=8) for form in forms]
    first, second = (choice.text for choice in answers[2].choices)
    assert [answer.choices[0].text for answer in answers] == [first] * 4
    assert [choice.text for choice in answers[3].choices] == [first, second]
    assert [choice.index for choice in answers[2].choices] == [0, 1]
    assert answers[2].usage.prompt_tokens == len(ids[0]) + len(ids[1])
    streamed, usage = streamed_completion(client, texts, max_tokens=8)
    assert streamed == {0: first, 1: second}
    assert usage == answers[2].usage.model_copy(update={"prompt_tokens_details": usage.prompt_tokens_details})


def test_n_completions_are_numbered_and_repeat_with_a_seed(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "", "n": 4, "temperature": 1.2, "seed": 11, "max_tokens": 8}
    answer = client.completions.create(prompt="The best city is", **options)
    texts = [choice.text for choice in answer.choices]
    streamed = [""] * 4
    for chunk in client.completions.create(prompt="The best city is", stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) >= 3
    assert streamed == texts


def test_n_chats_are_numbered_and_repeat_with_a_seed(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "", "n": 4, "temperature": 1.2, "seed": 11, "max_tokens": 8}
    answer = client.chat.completions.create(messages=JAPAN, **options)
    texts = [choice.message.content for choice in answer.choices]
    streamed = [""] * 4
    first_seen = []
    for chunk in client.chat.completions.create(messages=JAPAN, stream=True, **options):
        for choice in chunk.choices:
            if choice.delta.role is not None:
                first_seen.append(choice.index)
            streamed[choice.index] += choice.delta.content or ""
    assert first_seen == [0, 1, 2, 3]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert streamed == texts


def test_a_stop_string_over_chunk_borders(client: openai.OpenAI) -> None:
    prompt = "1, 2, 3, 4, 5, 6,"
    full = complete(client, prompt, max_tokens=16).choices[0].text
    stop = full[6:11]  # begins and ends inside tokens as well
    whole = complete(client, prompt, max_tokens=16, stop=[stop])
    assert whole.choices[0].text == full[: full.index(stop)]
    assert whole.choices[0].finish_reason == "stop"
    assert streamed_completion(client, prompt, max_tokens=16, stop=[stop])[0][0] == whole.choices[0].text


def test_an_emoji_cut_by_max_tokens_ends_as_decode_gives_it(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    emoji = "🫠"  # no single token
    ids = tokenize(server, emoji)
    assert len(ids) > 1
    # The bias makes the model spell the character's first token and no more.
    options = {"max_tokens": 1, "logit_bias": {str(ids[0]): 100}}
    assert complete(client, "Look: ", **options).choices[0].text == "\ufffd"
    assert streamed_completion(client, "Look: ", **options)[0][0] == "\ufffd"


def test_a_stream_equals_the_whole_for_many_prompts(client: openai.OpenAI) -> None:
    prompts = ["Žluťoučký kůň", "print('", "日本の", "A B C\n", "😀😃", "Q: Why?\nA:"]
    options: dict[str, Any] = {"max_tokens": 12, "stop": ["\n\n", "."]}
    whole = complete(client, prompts, **options)
    streamed, _ = streamed_completion(client, prompts, **options)
    assert [streamed.get(i, "") for i in range(len(prompts))] == [choice.text for choice in whole.choices]


def test_64_clients_at_once_get_what_one_gets(client: openai.OpenAI, server: ServerProcess) -> None:
    prompts = [f"Number {i % 8}:" for i in range(64)]
    alone = {prompt: complete(client, prompt, max_tokens=4).choices[0].text for prompt in prompts[:8]}
    with ThreadPoolExecutor(64) as pool:
        streams = [pool.submit(streamed_completion, client, prompt, max_tokens=4) for prompt in prompts]
        texts = [stream.result()[0][0] for stream in streams]
    assert texts == [alone[prompt] for prompt in prompts]
    server.wait_until_idle(2)


def test_disconnects_in_both_modes_free_everything_within_a_second(server: ServerProcess) -> None:
    import httpx

    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}
    url = f"{server.base_url}/v1/completions"
    aborted = server.metric("request_success_total", finished_reason="abort")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, timeout=1)
    server.wait_until_idle(1)
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=30) as response:
        next(response.iter_lines())
    server.wait_until_idle(1)
    assert server.metric("request_success_total", finished_reason="abort") == aborted + 2
    generated = server.metric("generation_tokens_total")
    assert (
        httpx.post(url, json={**body, "max_tokens": 5}, timeout=30).json()["usage"]["completion_tokens"] == 5
    )
    assert server.metric("generation_tokens_total") == generated + 5


def test_a_shared_prefix_is_read_from_the_cache(client: openai.OpenAI, server: ServerProcess) -> None:
    prefix = [(i * 37) % 40_000 + 100 for i in range(1000)]
    complete(client, [*prefix, 5], max_tokens=1)
    computed = server.metric("iteration_tokens_total_sum")
    second = complete(client, [*prefix, 6, 7], max_tokens=1)
    assert second.usage.prompt_tokens_details.cached_tokens == 992
    assert server.metric("iteration_tokens_total_sum") - computed == 10


def test_usage_and_logprobs_count_the_same_tokens(client: openai.OpenAI) -> None:
    answer = complete(client, "A list of animals:", max_tokens=15, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == answer.usage.completion_tokens == 15
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert chosen == max(top.values())  # greedy
