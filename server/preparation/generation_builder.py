"""From prompts in tokens to a `Generation`: sampling parameters, lengths, block hashes, choices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.block_manager import hash_blocks
from engine.record import RequestRecord
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.text import open_text
from model.text.detokenizer import IncrementalDetokenizer
from server.delivery.choice import Choice
from server.delivery.generation import Generation, Prompt, WantedGrammar
from server.delivery.parsed_choice import ParsedChoice
from server.errors import APIError, invalid
from server.preparation.message_reading import MessageReading
from server.protocol.common import ALL_THAT_FIT, GenerationBody
from server.state import ServerState

MAX_PROMPT_LOGPROBS = 4_000_000
"""Of all prompts of a request. Each takes a hundred bytes and more until the answer is written."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many tokens a request asked for. `wanted` None: none given; `default` None: all the room left."""

    wanted: int | None
    default: int | None
    param: str = "max_tokens"
    prompt_param: str = "prompt"


class GenerationBuilder:
    """Makes one engine request for each prompt of a body."""

    def __init__(
        self,
        body: GenerationBody,
        state: ServerState,
        arrived_ns: int,
        response_id: str,
        n: int,
        limits: Limits,
        grammar: WantedGrammar | None,
        reading: MessageReading | None = None,
    ) -> None:
        self.body = body
        self.state = state
        self.arrived_ns = arrived_ns
        self.response_id = response_id
        self.n = n
        self.limits = limits
        self.reading = reading
        self.grammar = grammar
        self.prompts: list[Prompt] = []
        self._num_prompt_logprobs = 0

    def add(
        self,
        token_ids: list[int],
        logprobs: int | None,
        *,
        echoed: str | list[int] | None,
    ) -> None:
        """`echoed` is the prompt as the client sent it, if it is to be returned."""
        kept_ids = self._truncated(token_ids)
        if echoed is not None and len(kept_ids) < len(token_ids):
            echoed = kept_ids
        token_ids = kept_ids
        wanted = (self.body.prompt_logprobs, logprobs if echoed is not None else None)
        prompt_logprobs = max((count for count in wanted if count is not None), default=None)
        if prompt_logprobs is not None:
            self._count_prompt_logprobs(len(token_ids) * (prompt_logprobs + 1))
        params = self._params(len(token_ids), logprobs, prompt_logprobs)
        request = self._request(np.array(token_ids, dtype=np.int32), params)
        text, offsets = "", []
        if echoed is not None:
            text = echoed if isinstance(echoed, str) else self._decode(token_ids)
            offsets = self._text_offsets(token_ids) if logprobs is not None else []
        self.prompts.append(Prompt(request, text, offsets))

    def build(
        self, kind: Literal["completion", "chat"], model: str, *, logprobs: bool, echo: bool
    ) -> Generation:
        tokenized_ns = time.monotonic_ns()
        for prompt in self.prompts:
            prompt.request.record.tokenized_ns = tokenized_ns
        return_token_ids = bool(self.body.return_token_ids)
        return Generation(
            kind=kind,
            response_id=self.response_id,
            created=int(time.time()),
            model=model,
            system_fingerprint=self.state.system_fingerprint,
            prompts=self.prompts,
            choices=self._choices(keep_tokens=logprobs or return_token_ids),
            logprobs=logprobs,
            prompt_logprobs=self.body.prompt_logprobs,
            echo=echo,
            return_token_ids=return_token_ids,
            tokens_as_ids=bool(self.body.return_tokens_as_token_ids),
            include_usage=self.body.include_usage,
            continuous_usage=self.body.continuous_usage,
            is_parsed=self.reading is not None,
            reasoning_fields=self.state.config.reasoning_fields if kind == "chat" else (),
            grammar=self.grammar,
            service_tier=None if self.body.service_tier is None else "default",
            tells_timing=self.state.config.enable_per_request_metrics,
        )

    def _choices(self, *, keep_tokens: bool) -> list[Choice]:
        tokenizer, eos_token_ids = self.state.text.tokenizer, self.state.engine.eos_token_ids
        if self.body.ignore_eos and self.grammar is None:  # a complete answer ends all the same
            eos_token_ids = frozenset()
        choices: list[Choice] = []
        for prompt in self.prompts:
            params, prompt_ids = prompt.request.params, prompt.token_ids
            for sequence_id in prompt.request.sequence_ids:
                text = open_text(tokenizer, prompt_ids, params)
                basics = (len(choices), sequence_id, params, eos_token_ids, text)
                if self.reading is None:
                    choices.append(Choice(*basics, keep_tokens=keep_tokens))
                else:
                    parser, tells_calls = self.reading.open_parser(), self.reading.tells_calls
                    choices.append(
                        ParsedChoice(*basics, parser, tells_calls=tells_calls, keep_tokens=keep_tokens)
                    )
        return choices

    def _truncated(self, token_ids: list[int]) -> list[int]:
        """The prompt, cut if the client asked for that."""
        num_kept = self.body.truncate_prompt_tokens
        if num_kept is None:
            return token_ids
        if num_kept == ALL_THAT_FIT:
            reserved = 1 if self.limits.wanted is None else self.limits.wanted
            num_kept = max(1, self.state.engine.max_model_len - reserved)
        return token_ids[:num_kept] if self.body.truncation_side == "right" else token_ids[-num_kept:]

    def _count_prompt_logprobs(self, num_more: int) -> None:
        self._num_prompt_logprobs += num_more
        if self._num_prompt_logprobs > MAX_PROMPT_LOGPROBS:
            param = "logprobs" if self.body.prompt_logprobs is None else "prompt_logprobs"
            message = (
                f"the prompts' log-probabilities are more than {MAX_PROMPT_LOGPROBS}; ask for fewer at a time"
            )
            raise invalid(param, message)

    def _params(
        self, num_prompt_tokens: int, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        limits = self.limits
        room = self.state.engine.max_model_len - num_prompt_tokens
        if room < (0 if limits.wanted == 0 else 1):  # max_tokens 0 only reads the prompt
            raise self._too_long(limits.prompt_param, num_prompt_tokens)
        if limits.wanted is not None and limits.wanted > room:
            raise self._too_long(limits.param, num_prompt_tokens)
        default = room if limits.default is None else min(limits.default, room)
        params = self.body.sampling_params(
            self.state.text.sampling_defaults,
            max_tokens=default if limits.wanted is None else limits.wanted,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        params.check_vocabulary(self.state.engine.model_config.vocab_size)
        return params

    def _too_long(self, param: str, num_prompt_tokens: int) -> APIError:
        wanted = self.limits.wanted
        asked = "" if wanted is None else f" and {self.limits.param} asks for {min(wanted, 10**18)} more"
        message = (
            f"the context holds {self.state.engine.max_model_len} tokens;"
            f" the prompt has {num_prompt_tokens}{asked}"
        )
        return invalid(param, message, "context_length_exceeded")

    def _request(self, token_ids: np.ndarray, params: SamplingParams) -> Request:
        block_size = self.state.engine.engine_config.block_size
        assert block_size is not None, "the engine's configuration is not resolved"
        salt = (self.body.cache_salt or "").encode()
        request_id = f"{self.response_id}-{len(self.prompts)}" if self.prompts else self.response_id
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=params,
            block_hashes=hash_blocks(token_ids, block_size, salt),
            record=RequestRecord(request_id, arrived_ns=self.arrived_ns),
            n=self.n,
            priority=self.body.priority or 0,
            cache_salt=salt,
        )

    def _decode(self, token_ids: Sequence[int]) -> str:
        skips = self.body.skip_special_tokens is not False
        return self.state.text.tokenizer.decode(token_ids, skip_special_tokens=skips)

    def _text_offsets(self, token_ids: Sequence[int]) -> list[int]:
        skips = self.body.skip_special_tokens is not False
        detokenizer = IncrementalDetokenizer(self.state.text.tokenizer, (), skip_special_tokens=skips)
        offsets, length = [], 0
        for token_id in token_ids:
            offsets.append(length)
            length += len(detokenizer.push(token_id))
        return offsets
