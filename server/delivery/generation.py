"""One HTTP request for text, validated and tokenized: all that delivering its answer needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from engine.record import RequestRecord
from engine.request import Request, TokenLogprobs
from model.grammar.source import GrammarSource
from server.delivery.choice import Choice

WrittenT = TypeVar("WrittenT")

TIMING_NAMES = (  # vLLM's
    "time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms", "tokens_per_second",
)  # fmt: skip


class WantedGrammar(NamedTuple):
    """A grammar that is still to be compiled."""

    param: str  # the field of the body that asks for it
    source: GrammarSource


@dataclass(slots=True)
class Prompt:
    """One prompt and the engine request that continues it `request.n` times."""

    request: Request
    text: str = ""  # what echo returns
    text_offsets: Sequence[int] = ()  # characters of `text` before each token; only for echo with logprobs
    logprobs: list[TokenLogprobs | None] | None = None  # arrive with the first choice's first token
    _written: dict[str, Any] = field(default_factory=dict)

    @property
    def token_ids(self) -> list[int]:
        token_ids: list[int] = self.request.prompt_token_ids.tolist()
        return token_ids

    def written_once(self, name: str, write: Callable[[], WrittenT]) -> WrittenT:
        """A long part of the answer that is the same for all choices: `write` is called the first time."""
        if name not in self._written:
            self._written[name] = write()
        written: WrittenT = self._written[name]
        return written

    def usage(self, num_generated: int) -> dict[str, Any]:
        num_tokens = len(self.request.prompt_token_ids)
        return usage_object(num_tokens, num_generated, self.request.record.num_cached_tokens)


@dataclass(slots=True)
class Generation:
    """`choices` are in index order: prompt i's continuation j is choice `i * n + j`."""

    kind: Literal["completion", "chat"]
    response_id: str
    created: int  # Unix seconds
    model: str
    system_fingerprint: str
    prompts: list[Prompt]
    choices: list[Choice]
    logprobs: bool = False
    prompt_logprobs: int | None = None  # how many to list for each prompt token, beside its own
    echo: bool = False
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    is_parsed: bool = False  # the choices are `ParsedChoice`s
    reasoning_fields: tuple[str, ...] = ()  # under which reasoning is sent; none without a reasoning parser
    grammar: WantedGrammar | None = None  # what the answer has to match, still to be compiled
    service_tier: str | None = None  # the one that is answered to those that ask for any
    tells_timing: bool = False

    def prompt_of(self, choice: Choice) -> Prompt:
        return self.prompts[choice.index // self.prompts[0].request.n]

    def head(self, object_name: str) -> dict[str, Any]:
        """What an answer and each of its chunks begin with."""
        fields = {
            "id": self.response_id, "object": object_name, "created": self.created, "model": self.model
        }  # fmt: skip
        return fields if self.service_tier is None else {**fields, "service_tier": self.service_tier}

    def summary(self) -> dict[str, Any]:
        """What is told of the whole answer once all choices have ended."""
        fields: dict[str, Any] = {"usage": self.usage(), "system_fingerprint": self.system_fingerprint}
        if self.tells_timing and len(self.choices) == 1:
            fields["metrics"] = _timing_object(self.prompts[0].request.record, self.choices[0])
        return fields

    def usage(self) -> dict[str, Any]:
        """Prompts count once, however large n is; every generated token counts."""
        requests = [prompt.request for prompt in self.prompts]
        usage = usage_object(
            sum(len(request.prompt_token_ids) for request in requests),
            sum(choice.num_tokens for choice in self.choices),
            sum(request.record.num_cached_tokens for request in requests),
        )
        if self.reasoning_fields:
            num_reasoning = sum(choice.num_reasoning_tokens for choice in self.choices)
            usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
        return usage


def usage_object(num_prompt_tokens: int, num_generated: int, num_cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt_tokens + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def _timing_object(record: RequestRecord, choice: Choice) -> dict[str, float | None]:
    """Of a request with one continuation, which has ended; null for what never happened.

    The time to the first token begins when the request arrived, not when it was scheduled.
    """
    num_tokens, first_ns, last_ns = choice.num_tokens, record.first_token_ns, choice.ended_ns
    if not num_tokens:
        return dict.fromkeys(TIMING_NAMES)
    generation_ns = last_ns - first_ns
    return {
        "time_to_first_token_ms": (first_ns - record.arrived_ns) / 1e6,
        "queue_time_ms": (record.first_scheduled_ns - record.queued_ns) / 1e6,
        "generation_time_ms": generation_ns / 1e6,
        "mean_itl_ms": generation_ns / (num_tokens - 1) / 1e6 if num_tokens > 1 else None,
        "tokens_per_second": num_tokens / (last_ns - record.first_scheduled_ns) * 1e9,
    }
