"""The server's part of the configuration: immutable once built, validated with errors that name the flag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from engine.config import ConfigError, flag
from server.parsers.registry import REASONING_FORMATS, TOOL_PARSERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the server listens, whom it answers, and what it does when a request leaves something open."""

    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0 for all", "http")
    port: int = flag(8000, "port to listen on; 0 takes a free one", "http")
    uds: str | None = flag(None, "listen on this Unix socket instead of a port", "http")
    root_path: str = flag("", "path under which a proxy serves Octavo", "http")
    allowed_origins: tuple[str, ...] = flag((), "origins that browsers may call from; * for any", "http")
    max_request_bytes: int = flag(32 * 2**20, "largest request body", "http")
    timeout_keep_alive: int = flag(120, "seconds that an idle connection stays open", "http")
    sse_ping_interval: float = flag(15.0, "seconds between comments on a silent stream; 0 for none", "http")
    stuck_reader_timeout: float = flag(
        60.0, "seconds that a client may leave its stream unread before its request is aborted", "http"
    )
    shutdown_timeout: float = flag(30.0, "seconds that requests in flight may go on after SIGTERM", "http")
    ssl_certfile: str | None = flag(None, "serve HTTPS with this certificate (PEM, with its chain)", "http")
    ssl_keyfile: str | None = flag(
        None, "the certificate's private key (PEM), unless it stands in the same file", "http"
    )
    event_loop: Literal["asyncio", "uvloop"] = flag("asyncio", "event loop", "http", ("asyncio", "uvloop"))
    disable_docs: bool = flag(False, "no /docs and /openapi.json", "http")
    pages: bool = flag(True, "serve a chat page at / and a live page at /dashboard", "http")

    api_key: tuple[str, ...] = flag(
        (), "accepted key, else the one in $OCTAVO_API_KEY; without any all are let in", "access"
    )
    public_metrics: bool = flag(False, "serve /metrics and /version without a key", "access")
    enable_debug_routes: bool = flag(True, "serve /debug/requests and /debug/live, behind the key", "access")

    enable_admin_routes: bool = flag(
        False, "serve /reset_prefix_cache and /abort_request, behind the key", "access"
    )

    served_model_name: tuple[str, ...] = flag((), "name of the model in the API; the first is shown", "api")
    chat_template: str | None = flag(None, "Jinja file or text instead of the model's chat template", "api")
    trust_request_chat_template: bool = flag(
        False, "let requests bring a chat_template; it runs in a sandbox, but may take long", "api"
    )
    tool_call_parser: str | None = flag(
        None, "how the model writes tool calls; lets it make them (tool_choice auto)", "api", (*TOOL_PARSERS,)
    )
    reasoning_parser: str | None = flag(
        None, "how the model marks its reasoning, sent as reasoning_content", "api", (*REASONING_FORMATS,)
    )
    reasoning_alias: bool = flag(False, "send the reasoning also as `reasoning`, vLLM's newer name", "api")
    generation_config: Literal["auto", "none"] = flag(
        "auto",
        "sampling defaults: those that the model's makers give (generation_config.json), or the API's own",
        "api",
        ("auto", "none"),
    )
    default_max_tokens: int | None = flag(
        None, "max_tokens of chat requests that bring none; up to the context limit when absent", "api"
    )
    strict_params: bool = flag(False, "refuse request fields that nobody knows; else they are ignored", "api")
    max_n: int = flag(128, "largest n of a request", "api")
    max_logprobs: int = flag(20, "largest logprobs of a request", "api")
    enable_per_request_metrics: bool = flag(
        False, "tell in each answer to one prompt, with n of 1, how long it took, as `metrics`", "api"
    )

    metrics_prefix: str = flag(
        "octavo", "first part of the metrics' names; vllm suits its dashboards", "record"
    )
    log_level: Literal["debug", "info", "warning", "error"] = flag(
        "info", "log level", "record", ("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        self._require("port", 0 <= self.port <= 65535, "must be in 0..65535")
        self._require("root_path", not self.root_path or self.root_path.startswith("/"), "must begin with /")
        for name in ("max_request_bytes", "max_n", "timeout_keep_alive", "stuck_reader_timeout"):
            self._require(name, getattr(self, name) > 0, "must be above 0")
        for name in ("sse_ping_interval", "shutdown_timeout", "max_logprobs"):
            self._require(name, getattr(self, name) >= 0, "must be 0 or more")
        default_max_tokens = self.default_max_tokens
        self._require(
            "default_max_tokens", default_max_tokens is None or default_max_tokens > 0, "must be above 0"
        )
        for name in ("api_key", "served_model_name", "allowed_origins"):
            self._require(name, all(getattr(self, name)), "must not be empty")
        self._require(
            "ssl_keyfile", self.ssl_keyfile is None or self.ssl_certfile is not None, "needs --ssl-certfile"
        )
        valid_prefix = re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix) is not None
        self._require(
            "metrics_prefix", valid_prefix, "must be letters, digits and _, and not begin with a digit"
        )

    @property
    def reasoning_fields(self) -> tuple[str, ...]:
        """Names under which an answer's reasoning is sent; none without a parser of it."""
        if self.reasoning_parser is None:
            return ()
        return ("reasoning_content", "reasoning") if self.reasoning_alias else ("reasoning_content",)

    @staticmethod
    def _require(name: str, condition: bool, message: str) -> None:
        if not condition:
            raise ConfigError(f"--{name.replace('_', '-')} {message}")
