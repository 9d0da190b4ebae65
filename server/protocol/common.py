"""Fields that both generation endpoints take, and how they become `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from engine.sampling_params import SamplingParams
from server.errors import invalid

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 16_384  # of all together
MAX_LOGIT_BIAS = 100.0
UNSET_SEED = -1
ALL_THAT_FIT = -1  # of `truncate_prompt_tokens`


class RequestBody(BaseModel):
    """Strict types, finite numbers; unknown fields are kept aside in `model_extra` and otherwise ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    model: str | None = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GenerationBody(RequestBody):
    """null stands for "absent" everywhere, as clients send it so."""

    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_as_list)] = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = Field(
        default=None, validation_alias=AliasChoices("include_stop_str_in_output", "no_stop_trim")
    )
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    service_tier: Any = None
    request_id: str | None = Field(default=None, validation_alias=AliasChoices("request_id", "rid"))
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    @property
    def prepares_quickly(self) -> bool:
        """Whether a thread would cost more than it takes off the event loop."""
        return False  # text has to be tokenized

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    def check_common(self) -> None:
        """What neither a type nor `SamplingParams` says. Raises `APIError`."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options is only allowed with stream: true")
        if self.stop is not None and len(self.stop) > MAX_STOP_STRINGS:
            raise invalid("stop", f"stop may hold at most {MAX_STOP_STRINGS} strings")
        if sum(map(len, self.stop or ())) > MAX_STOP_CHARACTERS:
            raise invalid("stop", f"stop may hold at most {MAX_STOP_CHARACTERS} characters")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("prompt_logprobs", "prompt_logprobs is not allowed with stream: true")
        kept = self.truncate_prompt_tokens
        if kept is not None and kept < 1 and kept != ALL_THAT_FIT:
            raise invalid("truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or at least 1")
        if self.truncation_side not in (None, "left", "right"):
            raise invalid("truncation_side", "truncation_side must be left or right")
        if self.cache_salt == "":
            raise invalid("cache_salt", "cache_salt must not be empty")

    def sampling_params(
        self,
        defaults: Mapping[str, float],
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """`defaults` stand in for fields that the client left out. Raises `ParameterError`."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "min_tokens", "include_stop_str_in_output", "ignore_eos",
            "skip_special_tokens",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SamplingParams(
            **{**defaults, **given},
            seed=None if self.seed == UNSET_SEED else self.seed,
            logit_bias=self._logit_bias(),
            max_tokens=max_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _logit_bias(self) -> dict[int, float]:
        """Token ids arrive as JSON keys; biases are clamped to +-100, the range that OpenAI documents."""
        biases = {}
        for key, bias in (self.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 20):
                raise invalid("logit_bias", f"logit_bias: {key[:20]!r} is not a token id")
            biases[int(key)] = min(max(bias, -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS)
        return biases
