from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from engine.handle import EngineStats
from engine.record import RequestRecord

MS = 1_000_000
NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_success",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens_cached",
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "num_requests_waiting_by_reason",
]


def scrape(served: Any, path: str = "/metrics") -> dict[str, Any]:
    response = served.http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {family.name: family for family in parse_text(response.text)}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    samples = [sample for family in families.values() for sample in family.samples if sample.name == name]
    matching = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    assert len(matching) == 1, (name, labels)
    return float(matching[0])


@pytest.mark.parametrize("prefix", ["octavo", "vllm"])
def test_all_names_are_there_under_the_prefix(serve: Any, prefix: str) -> None:
    with serve(metrics_prefix=prefix) as served:
        families = scrape(served)
    assert {f"{prefix}:{name}" for name in NAMES} <= families.keys()
    assert {sample.labels["model_name"] for sample in families[f"{prefix}:prompt_tokens"].samples} == {
        "test-model"
    }


def test_a_trailing_slash_is_the_same_and_no_redirect(served: Any) -> None:
    assert scrape(served, "/metrics/").keys() == scrape(served).keys()


def test_openmetrics_is_served_to_those_that_ask(served: Any) -> None:
    response = served.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert "octavo:prompt_tokens" in {family.name for family in parse_openmetrics(response.text)}


def test_counters_are_read_at_scrape(serve: Any) -> None:
    with serve() as served:
        counters = served.engine.counters
        for gap_ms, reason in ((1, "stop"), (2, "abort")):
            times = [100 * MS, (100 + gap_ms) * MS]
            counters.on_finished(
                RequestRecord(
                    "r",
                    arrived_ns=50 * MS,
                    queued_ns=60 * MS,
                    first_scheduled_ns=70 * MS,
                    first_token_ns=times[0],
                    finished_ns=times[1],
                    token_times_ns=[times],
                    finish_reasons=[reason],
                )
            )
        counters.on_step(40, 2)
        families = scrape(served)
    assert value(families, "octavo:request_success_total", finished_reason="abort") == 1
    assert value(families, "octavo:generation_tokens_total") == 2
    bucket = "octavo:inter_token_latency_seconds_bucket"
    counts = [value(families, bucket, le=le) for le in ("0.0005", "0.001", "0.0015", "0.002", "10.0", "+Inf")]
    assert counts == [0, 1, 1, 2, 2, 2]
    assert value(families, "octavo:inter_token_latency_seconds_sum") == pytest.approx(0.003)
    assert value(families, "octavo:time_to_first_token_seconds_sum") == pytest.approx(0.1)


def test_gauges_follow_the_engine_down_to_zero(serve: Any) -> None:
    with serve() as served:
        served.engine.paused.set()
        with served.http.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}):
            families = scrape(served)
            assert (
                value(families, "octavo:num_requests_running")
                + value(families, "octavo:num_requests_waiting")
                == 1
            )
        served.engine.paused.clear()
        served.http.post("/v1/completions", json={"prompt": "hi"})
        families = scrape(served)
        assert (
            value(families, "octavo:num_requests_running")
            == value(families, "octavo:num_requests_waiting")
            == 0
        )
        assert value(families, "octavo:engine_healthy") == 1


def test_those_waiting_are_told_apart(serve: Any, monkeypatch: Any) -> None:
    with serve() as served:
        stats = EngineStats(0, 5, 0.0, 100, 0, num_deferred=2)
        monkeypatch.setattr(served.engine, "stats", lambda: stats)
        families = scrape(served)
    name = "octavo:num_requests_waiting_by_reason"
    assert [value(families, name, reason=reason) for reason in ("capacity", "deferred")] == [3, 2]


def test_refused_requests_are_counted_by_status(serve: Any) -> None:
    with serve(api_key=("secret",), public_metrics=True) as served:
        served.http.get("/v1/models")
        headers = {"authorization": "Bearer secret"}
        served.http.post("/v1/completions", json={"prompt": ""}, headers=headers)
        served.http.post("/v1/completions", json={"prompt": ""}, headers=headers)
        families = scrape(served)
    assert value(families, "octavo:http_error_responses_total", status="401") == 1
    assert value(families, "octavo:http_error_responses_total", status="400") == 2
