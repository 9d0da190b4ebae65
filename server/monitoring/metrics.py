"""The engine's counters and gauges as Prometheus metrics, read when they are scraped.

Names end as vLLM's do, so that `--metrics-prefix vllm` feeds dashboards made for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.handle import EngineHandle, EngineStats
from engine.record.histogram import Histogram


class EngineCollector(Collector):
    """Every metric carries the label `model_name`. The engine thread does nothing for a scrape."""

    def __init__(
        self, engine: EngineHandle, prefix: str, model_name: str, error_responses: Counter[int]
    ) -> None:
        """`error_responses` are counts by HTTP status: of requests that never reached the engine, mostly."""
        self._engine = engine
        self._prefix = prefix
        self._model_name = model_name
        self._error_responses = error_responses

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def describe(self) -> list[Metric]:
        """Nothing to check at registration: collecting before the engine runs would be wrong."""
        return []

    def _gauges(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        healthy = self._engine.health().healthy
        for name, help_text, value in (
            ("num_requests_running", "Sequences that the engine computes", stats.num_running),
            ("num_requests_waiting", "Sequences that wait to be scheduled", stats.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use by sequences, 0 to 1", stats.kv_usage),
            ("kv_blocks", "KV blocks in the pool", stats.num_blocks),
            ("kv_blocks_used", "KV blocks in use by sequences", stats.num_blocks_used),
            ("engine_healthy", "1 while the engine takes requests and steps", healthy),
        ):
            gauge = GaugeMetricFamily(self._full_name(name), help_text, labels=["model_name"])
            gauge.add_metric([self._model_name], float(value))
            yield gauge
        yield self._waiting_by_reason(stats)

    def _waiting_by_reason(self, stats: EngineStats) -> Metric:
        gauge = GaugeMetricFamily(
            self._full_name("num_requests_waiting_by_reason"),
            "Sequences that wait: for room (capacity) or for their prompt's blocks (deferred)",
            labels=["model_name", "reason"],
        )
        num_deferred = min(stats.num_deferred, stats.num_waiting)  # the two were not read at once
        gauge.add_metric([self._model_name, "capacity"], stats.num_waiting - num_deferred)
        gauge.add_metric([self._model_name, "deferred"], num_deferred)
        return gauge

    def _counters(self) -> Iterator[Metric]:
        counters = self._engine.counters
        for name, help_text, value in (
            (
                "num_preemptions",
                "Sequences that gave their blocks back and were recomputed",
                counters.preemptions,
            ),
            ("prompt_tokens", "Prompt tokens of requests that were scheduled", counters.prompt_tokens),
            (
                "prompt_tokens_cached",
                "Those of them read from the prefix cache",
                counters.cached_prompt_tokens,
            ),
            ("generation_tokens", "Tokens generated", counters.generation_tokens),
            ("prefix_cache_queries", "Tokens looked up in the prefix cache", counters.prefix_cache_queries),
            ("prefix_cache_hits", "Tokens found in the prefix cache", counters.prefix_cache_hits),
            ("engine_steps", "Steps of the engine", counters.steps),
        ):
            counter = CounterMetricFamily(self._full_name(name), help_text, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter
        finished = CounterMetricFamily(
            self._full_name("request_success"),
            "Requests that ended, by how (abort and error are counted too)",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in counters.finished_requests.items():
            finished.add_metric([self._model_name, reason], count)
        yield finished
        errors = CounterMetricFamily(
            self._full_name("http_error_responses"),
            "Responses with an error status, rejected requests among them",
            labels=["model_name", "status"],
        )
        for status, count in sorted(self._error_responses.items()):
            errors.add_metric([self._model_name, str(status)], count)
        yield errors

    def _histograms(self) -> Iterator[Metric]:
        counters = self._engine.counters
        for name, help_text, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token", counters.time_to_first_token),
            ("inter_token_latency_seconds", "Between tokens of a sequence", counters.inter_token_latency),
            ("e2e_request_latency_seconds", "From arrival to the last token", counters.request_latency),
            ("request_queue_time_seconds", "From queued to first scheduled", counters.queue_time),
            ("request_prefill_time_seconds", "From first scheduled to first token", counters.prefill_time),
            ("request_decode_time_seconds", "From first token to the last", counters.decode_time),
            (
                "request_inference_time_seconds",
                "From first scheduled to the last token",
                counters.inference_time,
            ),
            ("iteration_tokens_total", "Tokens computed by a step", counters.step_tokens),
            ("request_prompt_tokens", "Prompt tokens of a request", counters.request_prompt_tokens),
            ("request_generation_tokens", "Tokens a request generated", counters.request_generation_tokens),
            ("request_params_max_tokens", "max_tokens of a request", counters.request_max_tokens),
            ("request_params_n", "n of a request", counters.request_n),
        ):
            family = HistogramMetricFamily(self._full_name(name), help_text, labels=["model_name"])
            family.add_metric([self._model_name], _cumulative(histogram), histogram.sum)
            yield family

    def _full_name(self, name: str) -> str:
        return f"{self._prefix}:{name}"


def metrics_registry(collector: EngineCollector) -> CollectorRegistry:
    """The engine's metrics and the process's own (memory, CPU, descriptors)."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(collector)
    return registry


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    limits = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(limits, accumulate(list(histogram.counts)), strict=True))
