"""Requests that take too long, and attempts after a failure."""

from __future__ import annotations

import pytest

from loadgen.mock import MockServer, Script

from .conftest import Replayer

# The machine may starve both sides for a second; what fails three times in a row is wrong.
pytestmark = pytest.mark.flaky(reruns=2)


@pytest.mark.parametrize(
    ("script", "flags", "failure"),
    [
        (Script(ttft_s=60, head_event_s=0.0), ["--ttft-timeout", "0.3"], "ttft_timeout"),
        (Script(ttft_s=0.01, itl_s=0.01, behaviour="stall"), ["--stall-timeout", "0.5"], "stall_timeout"),
        (Script(ttft_s=60), ["--timeout", "0.3"], "timeout"),
    ],
)
def test_each_limit_has_its_kind_of_failure(
    replay: Replayer, script: Script, flags: list[str], failure: str
) -> None:
    with MockServer(script) as server:
        run = replay(server, [(0, 5, 10)], *flags)
    assert run.exit_code == 4 and run.summary["requests"]["failures"] == {failure: 1}


def test_a_stream_that_lives_is_not_given_up(replay: Replayer) -> None:
    with MockServer(Script(ttft_s=0.3, itl_s=0.3)) as server:
        run = replay(server, [(0, 5, 5)], "--ttft-timeout", "30", "--stall-timeout", "30")
    assert run.exit_code == 0


def test_a_second_attempt_counts_and_is_charged_from_the_first(replay: Replayer) -> None:
    script = Script(ttft_s=0.01, itl_s=0.001, behaviour="429", misbehave_every=2, retry_after_s=1)
    with MockServer(script) as server:
        run = replay(server, [(0, 5, 3), (100, 5, 3)], "--retries", "2", "--no-metrics")
    assert run.summary["requests"]["failures"] == {} and run.summary["requests"]["retried_attempts"] == 1
    assert len(server.truths) == 3
    attempts = sorted((r for r in run.results if r.attempt or r.retried), key=lambda r: r.attempt)
    assert [(r.attempt, r.retried, r.failure) for r in attempts] == [(0, True, "http_429"), (1, False, None)]
    assert attempts[0].intended_ns == attempts[1].intended_ns
    waited = attempts[1].since_due(attempts[1].first_token_ns)
    assert waited is not None and waited > 1_000_000_000


def test_without_retries_a_failure_is_final(replay: Replayer) -> None:
    with MockServer(Script(behaviour="429", retry_after_s=0)) as server:
        run = replay(server, [(0, 5, 3)])
    assert run.summary["requests"]["failures"] == {"http_429": 1} and len(server.truths) == 1
