"""A simulated run in the load generator's own terms, so that whatever reads a live run reads it too."""

from __future__ import annotations

import os
import platform
from array import array
from pathlib import Path
from typing import Any

from loadgen.record import RequestResult, RunWriter
from loadgen.record.writer import write_intent
from loadgen.simulator.fleet import Fleet, Outcome
from loadgen.simulator.profile import Profile
from loadgen.simulator.setting import Setting, simulate
from loadgen.simulator.traffic import Traffic

_LAG_LIMITS = dict.fromkeys(("lag_p50_ms", "lag_p99_ms", "lag_max_ms"), 1.0)  # there is none to limit


def result_of(outcome: Outcome) -> RequestResult:
    """As a client would have measured it."""
    scheduled, record = outcome.scheduled, outcome.record
    result = RequestResult(
        index=scheduled.index,
        request_id=f"simulated-{scheduled.index}",
        trace_row=scheduled.trace_row,
        request_class=scheduled.request_class,
        session=scheduled.session,
        turn=scheduled.turn,
        intended_ns=outcome.due_ns,
        dispatched_ns=outcome.due_ns,
        sent_ns=outcome.due_ns,
        input_tokens=scheduled.input_tokens,
        output_tokens_asked=scheduled.output_tokens,
        worker=outcome.replica,
    )
    if outcome.refused is not None:
        result.failure = outcome.refused
        result.status = 429 if outcome.refused == "http_429" else 400
        result.headers_ns = result.first_byte_ns = result.end_ns = record.tokenized_ns
        return result
    times = array("q", record.token_times_ns[0])
    result.status = 200
    result.headers_ns = record.tokenized_ns
    result.first_byte_ns = result.first_token_ns = result.first_content_ns = times[0]
    result.last_token_ns = result.end_ns = times[-1]
    result.prompt_tokens = scheduled.input_tokens
    result.output_tokens = len(times)
    result.cached_tokens = record.num_cached_tokens
    result.token_method = "simulated"
    result.finish_reason = record.finish_reasons[0]
    result.done_marker = True
    result.chunk_ns = times
    result.chunk_tokens = array("q", [1]) * len(times)
    result.chunk_bytes = array("q", [0]) * len(times)
    return result


def write_run(
    directory: Path, profile: Profile, setting: Setting, traffic: Traffic, objectives: list[str]
) -> Fleet:
    """Simulate, and leave a record as a live run does; the fleet as it is after the last request."""
    write_intent(directory, _environment(profile, setting, traffic, objectives), traffic.requests)
    writer = RunWriter(directory)
    fleet = simulate(
        profile,
        setting,
        traffic.requests,
        traffic.block_size,
        lambda outcome: writer.add(result_of(outcome)),
    )
    wall_s = max(replica.now_ns for replica in fleet.replicas) / 1e9
    writer.end({"cpu_s": 0.0, "wall_s": wall_s, "interrupted": False, "max_stall_ns": 0})
    return fleet


def _environment(
    profile: Profile, setting: Setting, traffic: Traffic, objectives: list[str]
) -> dict[str, Any]:
    """What the record of a run tells of it. The same input gives the same bytes: no time of day is in it."""
    return {
        "started_at": None,
        "argv": [],
        "run_id": "simulated",
        "base_url": "simulated",
        "endpoint": "completions",
        "model": profile.source["model"],
        "model_card": {},
        **traffic.env,
        "seed": traffic.env["load"]["options"]["seed"],
        "nonce": 0,
        "workers": 1,
        "max_inflight": None,
        "retries": 0,
        "objectives": objectives,
        "limits": {**_LAG_LIMITS, "rate_error": 0.001, "gap_distance": 0.01},
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "simulated": {**setting.to_json(), "source": profile.source, "fit": profile.fit},
    }
