from __future__ import annotations

import pytest

from engine.record import EngineCounters, RequestRecord
from engine.record.counters import finish_reason

MS = 1_000_000


def finished_record() -> RequestRecord:
    return RequestRecord(
        "r",
        arrived_ns=100 * MS,
        tokenized_ns=102 * MS,
        queued_ns=103 * MS,
        first_scheduled_ns=110 * MS,
        first_token_ns=150 * MS,
        finished_ns=190 * MS,
        token_times_ns=[[150 * MS, 155 * MS, 190 * MS], [150 * MS]],
        finish_reasons=["length", "stop"],
        num_prompt_tokens=7,
        max_tokens=3,
    )


def test_a_finished_request_is_folded_in_once() -> None:
    counters = EngineCounters()
    counters.on_finished(finished_record())
    sums_ms = {
        "time_to_first_token": 50,
        "inter_token_latency": 40,  # gaps of 5 and 35
        "queue_time": 7,
        "prefill_time": 40,
        "decode_time": 40,
        "inference_time": 80,
        "request_latency": 90,
    }
    for name, sum_ms in sums_ms.items():
        assert getattr(counters, name).sum == pytest.approx(sum_ms / 1000), name
    assert counters.inter_token_latency.count == 2
    assert counters.request_prompt_tokens.sum == 7
    assert counters.request_generation_tokens.sum == 4
    assert counters.request_n.sum == 2
    assert counters.request_max_tokens.sum == 3
    assert counters.finished_requests == {"stop": 0, "length": 1, "abort": 0, "error": 0}


def test_an_abort_in_the_queue_counts_as_finished_but_not_in_phases_it_never_reached() -> None:
    counters = EngineCounters()
    counters.on_finished(
        RequestRecord(
            "r", arrived_ns=1, queued_ns=2, finished_ns=9, token_times_ns=[[]], finish_reasons=["abort"]
        )
    )
    assert counters.finished_requests["abort"] == 1
    assert counters.request_latency.count == 1
    for histogram in (counters.time_to_first_token, counters.queue_time, counters.decode_time):
        assert histogram.count == 0


def test_steps_and_admissions_add_up() -> None:
    counters = EngineCounters()
    counters.on_admitted(100, 64)
    counters.on_admitted(10, 0, prefix_cache_queried=False)
    counters.on_step(46, 2)
    counters.on_step(2, 1, num_preempted=1)
    assert (counters.prompt_tokens, counters.cached_prompt_tokens) == (110, 64)
    assert (counters.prefix_cache_queries, counters.prefix_cache_hits) == (100, 64)
    assert (counters.steps, counters.generation_tokens, counters.preemptions) == (2, 3, 1)
    assert counters.step_tokens.sum == 48


@pytest.mark.parametrize(
    ("reasons", "word"),
    [
        (["stop"], "stop"),
        (["stop", "length"], "length"),
        (["error", "abort"], "error"),
        ([None], "abort"),
        ([], "abort"),
    ],
)
def test_the_gravest_reason_names_the_request(reasons: list[str | None], word: str) -> None:
    assert finish_reason(RequestRecord("r", finish_reasons=reasons)) == word
