"""Reported cases of chunked prefill and of who runs when."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import openai
import torch

from engine.record.step_log import StepEntry, read_step_log
from tests.support.api import (
    COMPLETIONS,
    at_once,
    complete,
    joined_token_ids,
    stream,
    stream_complete,
    token_ids,
)
from tests.support.process import ServerProcess, wait_until
from tests.support.raw_http import open_request


def random_prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 259) for _ in range(length)]


def hf_greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def test_c1_the_chunk_size_changes_nothing(
    tight: ServerProcess, guarded: ServerProcess, roomy: ServerProcess, case_model: tuple[Path, Any]
) -> None:
    """Chunks of 64, 256 and 512 tokens, on a prompt longer than any of them."""
    prompt = random_prompt(900, seed=1)
    expected = hf_greedy(case_model[1], prompt, 16)
    for server in (tight, guarded, roomy):
        assert token_ids(server, prompt, max_tokens=16, ignore_eos=True) == expected


def test_c4_chunks_of_a_prompt_send_nothing(tight: ServerProcess) -> None:
    events = stream_complete(tight, random_prompt(600, seed=2), max_tokens=4, logprobs=1, ignore_eos=True)
    counts = [len(event["choices"][0]["logprobs"]["tokens"]) for event in events]
    assert min(counts) >= 1 and sum(counts) == 4
    assert joined_token_ids(events[:1]), "the first event has the first token"


def sequence_with_prompt_of(entries: list[StepEntry], length: int) -> int:
    """The id of the only sequence whose prompt has this length."""
    (sequence_id,) = {
        sequence_id
        for entry in entries
        for sequence_id, num_tokens, prefill in zip(
            entry.sequence_ids, entry.num_tokens, entry.is_prefill, strict=True
        )
        if prefill and num_tokens == length
    }
    return sequence_id


def test_q1_a_long_prompt_does_not_stop_a_running_decode(tight: ServerProcess, step_log: Path) -> None:
    """Told from the step log: each step with a chunk of the prompt has a token for the decode too."""
    short, long = random_prompt(23, seed=3), random_prompt(567, seed=4)
    body = {"prompt": short, "max_tokens": 340, "ignore_eos": True, "stream": True}
    decoding = open_request(tight.base_url, COMPLETIONS, body)
    assert decoding.recv(100)
    complete(tight, long, max_tokens=1)
    decoding.close()
    tight.wait_until_idle(10)
    num_steps = tight.metric("engine_steps_total")
    wait_until(lambda: len(read_step_log(step_log)[1]) == num_steps, 10)
    entries = read_step_log(step_log)[1]
    decoder, prompt = (sequence_with_prompt_of(entries, len(ids)) for ids in (short, long))
    chunks = [entry for entry in entries if prompt in entry.sequence_ids]
    assert len(chunks) >= 567 // 64
    for entry in chunks:
        assert entry.num_scheduled <= 64
        assert decoder in entry.sequence_ids, "it goes on decoding while the prompt is computed"
        row = entry.sequence_ids.index(decoder)
        assert (entry.is_prefill[row], entry.num_scheduled_tokens[row]) == (False, 1)


def test_n1_first_chunks_come_in_index_order_under_load(roomy: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{roomy.base_url}/v1", api_key="unused", timeout=120)

    def call() -> list[str | None]:
        seen: list[int] = []
        with client.chat.completions.stream(
            model="", messages=[{"role": "user", "content": "hi"}], n=4, max_tokens=20
        ) as events:
            for event in events:
                if event.type == "chunk":
                    seen += [choice.index for choice in event.chunk.choices if choice.index not in seen]
            final = events.current_completion_snapshot
        assert seen == [0, 1, 2, 3]
        return [choice.message.content for choice in final.choices]

    for contents in at_once([call] * 10):
        assert len(contents) == 4


def test_n3_eight_choices_each_once(roomy: ServerProcess) -> None:
    options: dict[str, Any] = {"temperature": 1, "n": 8, "max_tokens": 32, "seed": 5}
    whole = complete(roomy, "The best city is", **options)
    assert [choice["index"] for choice in whole["choices"]] == list(range(8))
    assert len({tuple(choice["token_ids"]) for choice in whole["choices"]}) >= 3
    events = stream(roomy, COMPLETIONS, {"prompt": "The best city is", "return_token_ids": True, **options})
    streamed = [joined_token_ids(events, index) for index in range(8)]
    assert streamed == [choice["token_ids"] for choice in whole["choices"]]
