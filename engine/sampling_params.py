"""How one request wants its tokens drawn and when it wants them to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.structured_outputs import StructuredOutputsParams

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy; it keeps 1/temperature finite in fp32."""


class ParameterError(ValueError):
    """A parameter outside its range. `param` names it as the HTTP API spells it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters, validated on construction (raises `ParameterError`).

    top_k 0 or -1, top_p 1, min_p 0 and a repetition_penalty of 1 mean "off". A `seed` of None draws one at
    submission. Stop strings are matched on text by whoever detokenizes (`model.text.stop_strings`); the
    engine itself ends a sequence on EOS, `stop_token_ids`, `max_tokens` and the context limit.
    `max_tokens` None means "as far as the context reaches"; 0 only evaluates the prompt.
    `logprobs` None: none; 0: the chosen token's; N: the N most likely as well.
    `structured_outputs` is for `LLM`; a server compiles what its requests ask for (`Request.constraint`).
    `prompt_logprobs`: the same for the prompt's own tokens (disables prefix-cache reads for the request).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        # Each test is written so that NaN fails it.
        self._require("temperature", 0 <= self.temperature <= 2, "must be between 0 and 2")
        self._require("top_p", 0 < self.top_p <= 1, "must be above 0 and at most 1")
        self._require("top_k", -1 <= self.top_k < 2**31, "must be -1 or 0 (off) or a positive int32")
        self._require("min_p", 0 <= self.min_p <= 1, "must be between 0 and 1")
        # OpenAI has none; far beyond these, fp32 logits overflow.
        in_range = 1e-3 <= self.repetition_penalty <= 1e3
        self._require("repetition_penalty", in_range, "must be between 0.001 and 1000")
        self._require("frequency_penalty", -2 <= self.frequency_penalty <= 2, "must be between -2 and 2")
        self._require("presence_penalty", -2 <= self.presence_penalty <= 2, "must be between -2 and 2")
        self._require("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "must be 0 or more")
        self._require("min_tokens", self.min_tokens >= 0, "must be 0 or more")
        self._require(
            "min_tokens",
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "must not be above max_tokens",
        )
        self._require("stop", all(self.stop), "must not hold an empty string")
        self._require("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "must fit a signed int64")
        self._require("logprobs", self.logprobs is None or self.logprobs >= 0, "must be 0 or more")
        self._require(
            "prompt_logprobs", self.prompt_logprobs is None or self.prompt_logprobs >= 0, "must be 0 or more"
        )
        self._require(
            "logit_bias",
            all(-1e9 < bias < 1e9 for bias in self.logit_bias.values()),
            "must hold finite numbers",
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def restricts_choice(self) -> bool:
        """Whether some tokens are left out because others are more likely."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def has_penalties(self) -> bool:
        """Whether sampling has to know which tokens the sequence already holds."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `ParameterError` for a token id that the model does not have."""
        for param, token_ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in token_ids:
                in_range = 0 <= token_id < vocab_size
                self._require(param, in_range, f"token id {token_id} is not in 0..{vocab_size - 1}")

    @staticmethod
    def _require(param: str, condition: bool, message: str) -> None:
        if not condition:
            raise ParameterError(param, f"{param} {message}")
