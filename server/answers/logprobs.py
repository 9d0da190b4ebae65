"""Log-probabilities in the two shapes of the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from engine.request import TokenLogprobs
from model.text.tokenizer import Tokenizer
from server.delivery.choice import Choice, GeneratedToken
from server.delivery.generation import Generation, Prompt

LOWEST_LOGPROB = -9999.0
"""What the API documents for "practically impossible"; JSON has no -inf."""


def chat_logprobs(
    generation: Generation, choice: Choice, tokens: Sequence[GeneratedToken], tokenizer: Tokenizer
) -> dict[str, Any]:
    """`bytes` are what each token adds to the text: its own bytes, none for a special token that is skipped.

    Joining them gives the UTF-8 of the text.
    """
    hidden_ids = tokenizer.special_ids if choice.params.skip_special_tokens else frozenset()

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token_id)
        token = f"token_id:{token_id}" if generation.tokens_as_ids else raw.decode("utf-8", "replace")
        shown = b"" if token_id in hidden_ids else raw
        return {"token": token, "logprob": finite(logprob), "bytes": list(shown)}

    content = []
    for token in tokens:
        logprobs = token.logprobs
        assert logprobs is not None
        top = [entry(*pair) for pair in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)]
        content.append({**entry(token.token_id, logprobs.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The completions shape: four lists of equal length."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self.as_ids = as_ids
        self.lists: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
        }  # fmt: skip
        self._names: dict[int, str] = {}

    def add(self, token_id: int, logprobs: TokenLogprobs | None, text_offset: int) -> None:
        """`text_offset`: characters of the returned text before this token."""
        name = self._name(token_id)
        logprob, top = None, None
        if logprobs is not None:
            logprob, top = finite(logprobs.logprob), self._top(logprobs)
            top[name] = logprob  # two ids may decode to one text: the chosen token's value wins
        for values, value in zip(self.lists.values(), (name, logprob, top, text_offset), strict=True):
            values.append(value)

    def _top(self, logprobs: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True):
            top.setdefault(self._name(token_id), finite(logprob))
        return top

    def _name(self, token_id: int) -> str:
        name = self._names.get(token_id)
        if name is None:
            name = self._names[token_id] = self._new_name(token_id)
        return name

    def _new_name(self, token_id: int) -> str:
        """A token that is no whole text is written as `bytes:` with escapes, as OpenAI does."""
        if self.as_ids:
            return f"token_id:{token_id}"
        raw = self.tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def completion_logprobs(
    generation: Generation,
    choice: Choice,
    tokens: list[GeneratedToken],
    tokenizer: Tokenizer,
    *,
    with_prompt: bool,
) -> dict[str, Any]:
    """Completions logprobs of some tokens of a choice, after those of its prompt if that is echoed now."""
    prompt = generation.prompt_of(choice)
    logprobs = CompletionLogprobs(tokenizer, as_ids=generation.tokens_as_ids)
    first_offset = len(prompt.text) if generation.echo else 0
    for token in tokens:
        logprobs.add(token.token_id, token.logprobs, first_offset + token.text_offset)
    if not with_prompt or prompt.logprobs is None:
        return logprobs.lists
    before = prompt.written_once("logprobs", lambda: _items_of_prompt(generation, prompt, tokenizer))
    return {
        name: orjson.Fragment(b"[" + b",".join(filter(None, (before[name], items))) + b"]")
        for name, items in _items(logprobs).items()
    }


def _items_of_prompt(generation: Generation, prompt: Prompt, tokenizer: Tokenizer) -> dict[str, bytes]:
    assert prompt.logprobs is not None
    logprobs = CompletionLogprobs(tokenizer, as_ids=generation.tokens_as_ids)
    count = prompt.request.params.logprobs  # more were computed if `prompt_logprobs` asked for more
    for token_id, entry, offset in zip(prompt.token_ids, prompt.logprobs, prompt.text_offsets, strict=True):
        if entry is not None:
            entry = TokenLogprobs(entry.logprob, entry.top_token_ids[:count], entry.top_logprobs[:count])
        logprobs.add(token_id, entry, offset)
    return _items(logprobs)


def _items(logprobs: CompletionLogprobs) -> dict[str, bytes]:
    """What stands between the brackets of each list."""
    return {name: orjson.dumps(values)[1:-1] for name, values in logprobs.lists.items()}


def prompt_logprobs(prompt: Prompt, count: int, tokenizer: Tokenizer) -> orjson.Fragment:
    """`prompt_logprobs` of each choice."""
    table = prompt.written_once("prompt_logprobs", lambda: orjson.dumps(_table(prompt, count, tokenizer)))
    return orjson.Fragment(table)


def _table(prompt: Prompt, count: int, tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """For each prompt token, by token id: the `count` most likely ones and the token itself; first None.

    `rank` is 1 for the most likely, and null where it is beyond those that were looked at.
    """
    assert prompt.logprobs is not None
    table: list[dict[str, Any] | None] = []
    for token_id, entry in zip(prompt.token_ids, prompt.logprobs, strict=True):
        if entry is None:
            table.append(None)
            continue
        ranks = {top_id: rank for rank, top_id in enumerate(entry.top_token_ids, 1)}
        top = list(zip(entry.top_token_ids, entry.top_logprobs, strict=True))[:count]
        values = {**dict(top), token_id: entry.logprob}
        table.append(
            {
                str(listed_id): {
                    "logprob": finite(logprob),
                    "rank": ranks.get(listed_id),
                    "decoded_token": tokenizer.token_bytes(listed_id).decode("utf-8", "replace"),
                }
                for listed_id, logprob in values.items()
            }
        )
    return table


def finite(logprob: float) -> float:
    return logprob if logprob >= LOWEST_LOGPROB else LOWEST_LOGPROB  # NaN fails the test too
