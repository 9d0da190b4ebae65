"""All figures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.figures.load import invalid_causes, load_figures
from loadgen.figures.objectives import Objective, goodput_figures
from loadgen.figures.percentiles import confidence_intervals, percentiles, percentiles_with_failures
from loadgen.figures.server import server_figures
from loadgen.figures.steady import steady_state, tokens_per_s
from loadgen.record import RequestResult, Run
from loadgen.record.files import SUMMARY_SCHEMA

TOO_MANY_HITS = 0.01  # a hit rate so far above that of an unlimited cache means that the cache was warm


def summarize(run: Run, objectives: Sequence[Objective] | None = None) -> dict[str, Any]:
    """The figures by section; units are in the names. `objectives` replaces those of the run.

    Latencies are of successful requests; failures are counted beside them, by kind.
    """
    env = run.env
    if objectives is None:
        objectives = [Objective.parse(text) for text in env["objectives"]]
    results = [result for result in run.results if not result.retried]
    sent = [result for result in results if result.sent_ns is not None]
    good = [result for result in results if result.ok]
    load = load_figures(env, sent, run.ends)
    requests, client = _request_figures(run, results, sent, good), _client_figures(run, sent)
    causes = invalid_causes(env, load)
    unsent = requests["unsent"]
    if client["interrupted"] and unsent:
        causes.insert(0, f"interrupted: {unsent} of {requests['scheduled']} requests were not sent")
    latency = latency_figures(good)
    return {
        "schema": SUMMARY_SCHEMA,
        "verdict": {
            "status": "LOAD_INVALID" if causes else "LOAD_VALID",
            "valid": not causes,
            "causes": causes,
        },
        "load": load,
        "requests": requests,
        "latency_ms": latency,
        "latency_95_ms": _intervals(good),
        "latency_with_failures_ms": _with_failures(sent),
        "goodput": goodput_figures(objectives, sent, load["span_s"]),
        "steady": _steady_figures(results, good),
        "classes": _class_figures(sent),
        "tokens": _token_figures(env, good, load["span_s"]),
        "server": server_figures(run.scrapes, latency["ttft_from_sent"]["mean"]),
        "client": client,
        "run": env,
    }


def latency_figures(good: Sequence[RequestResult]) -> dict[str, Any]:
    """Percentiles of every latency. Those from the due time hold what a user waits for; those from the send
    leave out what the client itself delayed."""
    gaps = [gap for result in good for gap in result.token_gaps_ns()]
    per_token = np.repeat([gap for gap, _ in gaps], [tokens for _, tokens in gaps] or 0)
    return {
        "ttft_from_due": percentiles(result.since_due(result.first_token_ns) for result in good),
        "ttft_from_sent": percentiles(result.since_sent(result.first_token_ns) for result in good),
        "first_content_from_due": percentiles(result.since_due(result.first_content_ns) for result in good),
        "headers_from_sent": percentiles(result.since_sent(result.headers_ns) for result in good),
        "first_byte_from_sent": percentiles(result.since_sent(result.first_byte_ns) for result in good),
        "inter_token": percentiles(per_token),
        "inter_chunk": percentiles(gap for result in good for gap in result.chunk_gaps_ns()),
        "tpot": percentiles(result.time_per_output_token_ns() for result in good),
        "e2e_from_due": percentiles(result.since_due(result.end_ns) for result in good),
        "e2e_from_sent": percentiles(result.since_sent(result.end_ns) for result in good),
    }


def _intervals(good: Sequence[RequestResult]) -> dict[str, Any]:
    """In order of due time, as neighbours are alike."""
    ordered = sorted(good, key=lambda result: result.intended_ns)
    return {
        "ttft_from_due": confidence_intervals(r.since_due(r.first_token_ns) for r in ordered),
        "tpot": confidence_intervals(r.time_per_output_token_ns() for r in ordered),
        "e2e_from_due": confidence_intervals(r.since_due(r.end_ns) for r in ordered),
    }


def _with_failures(sent: Sequence[RequestResult]) -> dict[str, Any]:
    return {
        "ttft_from_due": percentiles_with_failures(
            r.since_due(r.first_token_ns) if r.ok else None for r in sent
        ),
        "e2e_from_due": percentiles_with_failures(r.since_due(r.end_ns) if r.ok else None for r in sent),
    }


def _steady_figures(results: Sequence[RequestResult], good: Sequence[RequestResult]) -> dict[str, Any] | None:
    window = steady_state(good)
    if window is None:
        return None
    low, high = window["from_s"], window["to_s"]
    within = [result for result in good if low * 1e9 <= result.intended_ns < high * 1e9]
    latency = latency_figures(within)
    return {
        **window,
        "output_tokens_per_s": tokens_per_s(results, low, high),
        "latency_ms": {
            name: latency[name] for name in ("ttft_from_due", "inter_token", "tpot", "e2e_from_due")
        },
    }


def _class_figures(sent: Sequence[RequestResult]) -> dict[str, Any]:
    """Latencies of each class, where there are several."""
    classes: dict[str, list[RequestResult]] = {}
    for result in sent:
        classes.setdefault(result.request_class, []).append(result)
    if len(classes) < 2:
        return {}
    figures = {}
    for name, results in sorted(classes.items()):
        latency = latency_figures([result for result in results if result.ok])
        shown = {key: latency[key] for key in ("ttft_from_due", "tpot", "e2e_from_due")}
        figures[name] = {"sent": len(results), "succeeded": sum(r.ok for r in results), "latency_ms": shown}
    return figures


def _request_figures(
    run: Run, results: list[RequestResult], sent: list[RequestResult], good: list[RequestResult]
) -> dict[str, Any]:
    return {
        "scheduled": run.env["scheduled"],
        "sent": len(sent),
        "succeeded": len(good),
        "unsent": run.env["scheduled"] - len(results),
        "failures": dict(Counter(result.failure for result in results if result.failure).most_common()),
        "failure_examples": {r.failure: r.detail for r in reversed(results) if r.failure},
        "retried_attempts": len(run.results) - len(results),
        "finish_reasons": dict(Counter(str(result.finish_reason) for result in good).most_common()),
        "without_done_marker": sum(not result.done_marker for result in good),
        "reconnected": sum(result.reconnected for result in results),
    }


def _token_figures(env: dict[str, Any], good: list[RequestResult], span_s: float) -> dict[str, Any]:
    output = sum(result.output_tokens for result in good)
    counted = [result for result in good if result.prompt_tokens is not None]
    cached = [result for result in counted if result.cached_tokens is not None]
    prompt = sum(result.prompt_tokens or 0 for result in cached)
    hit_rate = sum(result.cached_tokens or 0 for result in cached) / prompt if prompt else None
    ideal = env.get("ideal_cache_hit_rate")
    errors = [abs((r.prompt_tokens or 0) / r.input_tokens - 1) for r in counted if r.input_tokens]
    asked = sum(result.output_tokens_asked for result in good)
    return {
        "input": sum(result.input_tokens for result in good),
        "output": output,
        "output_per_s": output / span_s if span_s else None,
        "output_share_of_asked": output / asked if asked else None,
        "methods": dict(Counter(result.token_method for result in good)),
        "short_outputs": sum(result.output_tokens < result.output_tokens_asked for result in good),
        "long_outputs": sum(result.output_tokens > result.output_tokens_asked for result in good),
        "one_chunk_outputs": sum(result.time_per_output_token_ns() is None for result in good),
        "burst_tokens": sum(tokens - 1 for r in good for tokens in r.chunk_tokens if tokens > 1),
        "prompt_length_errors": sum(result.prompt_tokens != result.input_tokens for result in counted),
        "prompt_length_error": percentiles(errors, scale=1),
        "prompt_lengths_reported": len(counted),
        "cached": sum(result.cached_tokens or 0 for result in cached) if cached else None,
        "cache_hit_rate": hit_rate,
        "ideal_cache_hit_rate": ideal,
        "warm_cache": hit_rate is not None and hit_rate > (ideal or 0.0) + TOO_MANY_HITS,
    }


def _client_figures(run: Run, sent: list[RequestResult]) -> dict[str, Any]:
    workers = run.env.get("workers", 1)
    if len(run.ends) < workers:
        return {"cpu_us_per_request": None, "cpu_cores": None, "interrupted": True, "killed": True}
    cpu_s, wall_s = sum(end["cpu_s"] for end in run.ends), max(end["wall_s"] for end in run.ends)
    return {
        "cpu_us_per_request": cpu_s * 1e6 / len(sent) if sent else None,
        "cpu_cores": cpu_s / wall_s if wall_s else None,
        "interrupted": any(end["interrupted"] for end in run.ends),
        "killed": False,
    }
