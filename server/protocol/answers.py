"""What the server answers, as models for the OpenAPI schema. Answers are built without them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorObject


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class RequestMetrics(BaseModel):
    """With --enable-per-request-metrics, for one prompt and n of 1."""

    time_to_first_token_ms: float | None
    queue_time_ms: float | None
    generation_time_ms: float | None
    mean_itl_ms: float | None
    tokens_per_second: float | None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionAnswer(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: Literal["default"] | None = None
    metrics: RequestMetrics | None = None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatAnswer(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: Literal["default"] | None = None
    metrics: RequestMetrics | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class ResponsesAnswer(BaseModel):
    """The fields that say how it went; what was asked for is repeated beside them."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    default_sampling_params: dict[str, float]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class TokensAnswer(BaseModel):
    """For a list of prompts, lists of what is said of one."""

    count: int | list[int]
    max_model_len: int
    tokens: list[int] | list[list[int]]
    token_strs: list[str] | list[list[str] | None] | None


class TextAnswer(BaseModel):
    prompt: str


class HealthAnswer(BaseModel):
    status: Literal["ok", "unavailable"]
    reason: str


class VersionAnswer(BaseModel):
    version: str
    model: str
    git: str | None


class LoadAnswer(BaseModel):
    server_load: int
    running: int
    waiting: int
    kv_usage: float


class RequestSummary(BaseModel):
    request_id: str
    arrived_ns: int


class ForgottenAnswer(BaseModel):
    blocks_forgotten: int


class AbortedAnswer(BaseModel):
    aborted: list[str]
