"""How a load is sent, apart from the load itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from loadgen.prompts import TokenRange


@dataclass(frozen=True, slots=True)
class Patience:
    """When a request is given up, in seconds of waiting for it; None: never for that reason."""

    total_s: float = 600.0
    ttft_s: float | None = None  # until the first token
    stall_s: float | None = None  # between two reads of a stream that has begun


@dataclass(frozen=True, slots=True)
class LagLimits:
    """Lag, in milliseconds, above which the load that was sent is not the load that was asked for."""

    p50_ms: float = 0.2
    p99_ms: float = 2.0
    max_ms: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """See the flags of `octavo replay --help`."""

    base_url: str = "http://127.0.0.1:8000"
    model: str | None = None
    api_key: str | None = None
    endpoint: Literal["completions", "chat"] = "completions"
    patience: Patience = field(default_factory=Patience)
    retries: int = 0
    max_inflight: int | None = None
    stop_after_s: float | None = None  # what is not due by then is not sent
    workers: int = 1
    warmup: int = 0
    flush_cache: str | None = None  # path of a POST before the run
    scrape_metrics: bool = True
    seed: int = 0
    nonce: int | None = None
    token_range: TokenRange = field(default_factory=TokenRange)
    temperature: float = 0.0
    ignore_eos: bool = True
    extra_body: dict[str, Any] = field(default_factory=dict)
    objectives: tuple[str, ...] = ()  # as given to --slo
    lag_limits: LagLimits = field(default_factory=LagLimits)
