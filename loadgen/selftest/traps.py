"""Three ordinary cases in which generators in use report wrong numbers; docs/measuring.md has the sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from loadgen.mock import Script
from loadgen.run.launch import run_load
from loadgen.run.loads import synthetic_load
from loadgen.run.options import LagLimits, RunOptions
from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.synthetic import SyntheticLoad
from loadgen.selftest.mock_process import mock_process

CHATS = RunOptions(endpoint="chat", lag_limits=LagLimits(1e6, 1e6, 1e6))
TEN_AT_A_TIME = 10


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    detail: str


def check_all() -> Iterator[Check]:
    yield role_only_chunk()
    yield tokens_per_chunk()
    yield capped_overload()


def role_only_chunk() -> Check:
    """The first event of a chat names the role and holds no token: TTFT must not be taken from it."""
    script = Script(head_event_s=0.0, ttft_s=0.3, itl_s=0.005)
    latency = _run(script, CHATS, rate="20", requests=20, tokens=5)["latency_ms"]
    ttft, first_byte = latency["ttft_from_sent"]["p50"], latency["first_byte_from_sent"]["p50"]
    detail = f"TTFT {ttft:.1f} ms of 300 ms, first byte at {first_byte:.1f} ms"
    return Check("a role-only event is no token", ttft >= 295 and first_byte < ttft - 50, detail)


def tokens_per_chunk() -> Check:
    """Four tokens come in each chunk, 40 ms apart: the latency of a token is 10 ms, not 40."""
    latency = _run(Script(tokens_per_chunk=4), CHATS, rate="20", requests=20, tokens=64)["latency_ms"]
    token, chunk = latency["inter_token"], latency["inter_chunk"]
    ok = token["n"] == 20 * 60 and chunk["n"] == 20 * 15
    ok = ok and abs(chunk["mean"] - 4 * token["mean"]) < 0.01 * chunk["mean"]
    detail = f"inter-token {token['mean']:.2f} ms of 10 ms, inter-chunk {chunk['mean']:.2f} ms of 40 ms"
    return Check("a gap between chunks is shared by their tokens", ok, detail)


def capped_overload() -> Check:
    """40 req/s against a cap of 10 in flight, which serves fewer: the wait belongs to the requests, and the
    load that was asked for was not sent."""
    capped = replace(CHATS, max_inflight=TEN_AT_A_TIME, lag_limits=LagLimits(100, 100, 100))
    summary = _run(Script(ttft_s=0.05, itl_s=0.01), capped, rate="40", requests=80, tokens=64)
    due, sent = (summary["latency_ms"][name]["p99"] for name in ("ttft_from_due", "ttft_from_sent"))
    causes = summary["verdict"]["causes"]
    ok = not summary["verdict"]["valid"] and any("--max-inflight" in cause for cause in causes)
    detail = f"TTFT p99 {due:.0f} ms from due time, {sent:.0f} ms from send, {summary['verdict']['status']}"
    return Check("a cap does not hide overload", ok and due > 1000 + sent, detail)


def _run(script: Script, options: RunOptions, *, rate: str, requests: int, tokens: int) -> dict[str, Any]:
    load = SyntheticLoad(
        process="constant", rate=rate, requests=requests, input_tokens="16", output_tokens=str(tokens)
    )
    with mock_process(script) as mock:
        options = replace(options, base_url=mock.base_url, scrape_metrics=False)
        return run_load(synthetic_load(load, ScheduleOptions()), options, None).summary
