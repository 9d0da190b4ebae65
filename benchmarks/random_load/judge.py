"""Whether answers under load are those of the same requests alone.

Kernels add in another order at another batch size, so in bf16 the two best tokens may change places where
they are as good as equal. From there on the texts differ. Such an answer is therefore read back: its prompt
and its tokens are computed alone, as one prompt, and at every position the token chosen has to be the best
one, or to be behind it by less than a bound on the log-probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.random_load.client import COMPLETIONS, Answer, ChoiceResult, Client
from benchmarks.random_load.mix import RandomRequest


@dataclass(frozen=True, slots=True)
class Reference:
    """A known prompt's greedy answer, asked alone, longer than any request wants it."""

    token_ids: list[int]
    logprobs: list[float]

    def expected(self, body: dict[str, Any]) -> list[int]:
        """What a request with this limit and these stop ids gets of it."""
        token_ids = self.token_ids[: body["max_tokens"]]
        stops = set(body.get("stop_token_ids", ()))
        end = next((i for i, token_id in enumerate(token_ids, 1) if token_id in stops), None)
        return token_ids[:end]


async def ask_alone(client: Client, prompts: Sequence[list[int]], max_tokens: int) -> list[Reference]:
    """One after the other, without a cached prefix. Raises RuntimeError for one that fails."""
    references = []
    for prompt in prompts:
        await client.call("POST", "/reset_prefix_cache")
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        answer = await client.complete({**body, "logprobs": 0})
        if answer.failure:
            raise RuntimeError(f"a request alone: {answer.failure}")
        references.append(Reference(answer.choices[0].token_ids, answer.choices[0].logprobs))
    return references


def malformed(request: RandomRequest, answer: Answer) -> str | None:
    """What is wrong with an answer whatever its tokens are."""
    body = request.body
    if answer.status != request.expected_status:
        return f"status {answer.status}, not {request.expected_status}: {answer.failure}"
    if answer.status != 200:
        return None
    if answer.failure:
        return answer.failure
    if sorted(answer.choices) != list(range(body.get("n", 1))):
        return f"choices {sorted(answer.choices)}"
    for choice in answer.choices.values():
        problem = _malformed_choice(body, choice)
        if problem:
            return problem
    counts = len(body["prompt"]), sum(len(choice.token_ids) for choice in answer.choices.values())
    usage = answer.usage.get("prompt_tokens"), answer.usage.get("completion_tokens")
    return None if counts == usage else f"usage {usage}, not {counts}"


def _malformed_choice(body: dict[str, Any], choice: ChoiceResult) -> str | None:
    token_ids, stops = choice.token_ids, body.get("stop_token_ids", ())
    if not token_ids or any(token_id in stops for token_id in token_ids[:-1]):
        return "no token, or one behind a stop id"
    reason = "stop" if token_ids[-1] in stops else "length"
    if choice.finish_reason != reason:
        return f"finish_reason {choice.finish_reason}, not {reason}"
    if reason == "length" and len(token_ids) != body["max_tokens"]:
        return f"{len(token_ids)} tokens, not {body['max_tokens']}"
    if "logprobs" in body and len(choice.logprobs) != len(token_ids):
        return f"{len(choice.logprobs)} log-probabilities of {len(token_ids)} tokens"
    return None


def largest_difference(reference: Reference, choice: ChoiceResult) -> float:
    """Between the log-probabilities of an equal answer's tokens and those of the same tokens alone."""
    pairs = zip(reference.logprobs, choice.logprobs, strict=False)
    return max((abs(a - b) for a, b in pairs), default=0.0)


async def largest_gap(client: Client, prompt: list[int], token_ids: list[int]) -> float:
    """How far the worst of these tokens is behind the best one, all computed as one prompt.

    The log-probabilities of a prompt come from computing all of it: no cached prefix is used.
    """
    body = {"prompt": prompt + token_ids, "max_tokens": 1, "prompt_logprobs": 1, "ignore_eos": True}
    answer = orjson.loads(await client.call("POST", COMPLETIONS, body))
    entries = answer["choices"][0]["prompt_logprobs"][len(prompt) :]
    gaps = [
        max(listed["logprob"] for listed in entry.values()) - entry[str(token_id)]["logprob"]
        for entry, token_id in zip(entries, token_ids, strict=True)
    ]
    return max(gaps)


def without_prefixes(sequences: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Different sequences that are not the beginning of another one."""
    ordered = sorted(set(map(tuple, sequences)))  # what begins with a sequence comes right behind it
    followers = [*ordered[1:], None]
    return [
        sequence
        for sequence, follower in zip(ordered, followers, strict=False)
        if follower is None or follower[: len(sequence)] != sequence
    ]
