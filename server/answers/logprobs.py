"""Log-probabilities in the two shapes of the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    """The completions shape: four lists of equal length, over prompt tokens (echo) and generated ones."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self.as_ids = as_ids
        self.tokens: list[str] = []
        self.token_logprobs: list[float | None] = []
        self.top_logprobs: list[dict[str, float] | None] = []
        self.text_offset: list[int] = []

    def add_prompt(self, prompt: Prompt, logprobs: Sequence[TokenLogprobs | None]) -> None:
        count = prompt.request.params.logprobs  # more were computed if `prompt_logprobs` asked for more
        for token_id, entry, offset in zip(prompt.token_ids, logprobs, prompt.text_offsets, strict=True):
            if entry is not None:
                entry = TokenLogprobs(entry.logprob, entry.top_token_ids[:count], entry.top_logprobs[:count])
            self._add(token_id, entry, offset)

    def add_generated(self, tokens: Sequence[GeneratedToken], first_offset: int) -> None:
        """`first_offset`: characters of the returned text that come before the generated ones."""
        for token in tokens:
            self._add(token.token_id, token.logprobs, first_offset + token.text_offset)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }

    def _add(self, token_id: int, entry: TokenLogprobs | None, offset: int) -> None:
        self.tokens.append(self._name(token_id))
        self.text_offset.append(offset)
        if entry is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        self.token_logprobs.append(finite(entry.logprob))
        top: dict[str, float] = {}
        for top_id, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True):
            top.setdefault(self._name(top_id), finite(logprob))
        # Two ids may decode to one text: the chosen token's value wins.
        top[self.tokens[-1]] = finite(entry.logprob)
        self.top_logprobs.append(top)

    def _name(self, token_id: int) -> str:
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
    if with_prompt and prompt.logprobs is not None:
        logprobs.add_prompt(prompt, prompt.logprobs)
    logprobs.add_generated(tokens, first_offset=len(prompt.text) if generation.echo else 0)
    return logprobs.as_dict()


def prompt_logprobs(prompt: Prompt, count: int, tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
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
