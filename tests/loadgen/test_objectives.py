"""Objectives are judged over all that was sent, request by request."""

from __future__ import annotations

from array import array

import pytest

from loadgen.figures.objectives import PRESETS, Objective, fluidity_index, goodput_figures, wilson
from loadgen.record import RequestResult

MS = 1_000_000


def result(times_ms: list[float], tokens: list[int] | None = None, **more: object) -> RequestResult:
    tokens = tokens or [1] * len(times_ms)
    times = [round(at * MS) for at in times_ms]
    fields = {
        "index": 0,
        "request_id": "r",
        "trace_row": 0,
        "intended_ns": 0,
        "sent_ns": 0,
        "first_token_ns": times[0] if times else None,
        "last_token_ns": times[-1] if times else None,
        "end_ns": times[-1] if times else None,
        "output_tokens": sum(tokens),
        "chunk_ns": array("q", times),
        "chunk_tokens": array("q", tokens),
    }
    return RequestResult(**fields | more)  # type: ignore[arg-type]


def test_each_measure_is_judged_by_its_limit() -> None:
    objective = Objective.parse("ttft=100,tpot=10,itl_max=25,e2e=200")
    assert objective.met(result([100, 110, 120])) == dict.fromkeys(("ttft", "tpot", "itl_max", "e2e"), True)
    assert objective.met(result([101, 102, 130])) == {
        "ttft": False,
        "tpot": False,
        "itl_max": False,
        "e2e": True,
    }


def test_tokens_of_one_chunk_share_its_gap() -> None:
    assert Objective.parse("itl_p99=10").met(result([50, 90], [1, 4])) == {"itl_p99": True}


def test_a_failed_request_has_met_nothing_and_is_counted() -> None:
    failed = result([1, 2], failure="stream_cut")
    figures = goodput_figures([Objective.parse("ttft=1000")], [failed, result([1, 2])], 2.0)
    assert figures is not None
    assert (figures["judged"], figures["good"], figures["attainment"]) == (2, 1, 0.5)
    assert figures["good_requests_per_s"] == 0.5 and figures["good_tokens_per_s"] == 1.0
    assert figures["wasted_tokens"] == 2


def test_one_token_has_no_time_per_token_to_miss() -> None:
    assert Objective.parse("tpot=1").met(result([5])) == {"tpot": True}


def test_classes_have_objectives_of_their_own() -> None:
    objectives = [Objective.parse("chat:ttft=10"), Objective.parse("ttft=100")]
    sent = [result([50], request_class="chat"), result([50], request_class="code"), result([50])]
    figures = goodput_figures(objectives, sent, 1.0)
    assert figures is not None and (figures["judged"], figures["good"]) == (3, 2)
    only_chat = goodput_figures(objectives[:1], sent, 1.0)
    assert only_chat is not None and only_chat["judged"] == 1
    assert goodput_figures([], sent, 1.0) is None


@pytest.mark.parametrize("text", ["ttft", "ttft=x", "speed=3", "ttft=0", "", "nopreset", "ttft=nan"])
def test_wrong_objectives_are_refused_with_the_measures(text: str) -> None:
    with pytest.raises(ValueError, match="itl_p99"):
        Objective.parse(text)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_can_be_named_for_a_class(preset: str) -> None:
    objective = Objective.parse(f"chat:{preset}")
    assert objective.request_class == "chat" and objective.limits_ms


def test_wilson_interval_against_published_values() -> None:
    """81 of 263: Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert wilson(81, 263) == pytest.approx([0.2553, 0.3662], abs=5e-5)
    assert wilson(0, 20) == pytest.approx([0.0, 0.1611], abs=5e-5)
    assert wilson(20, 20)[1] == 1.0


def test_fluidity_lets_early_tokens_pay_for_a_pause() -> None:
    early = [10, 20, 30, 40, 200]  # 100 ms for the first, 50 for each: the fifth is due at 300
    assert fluidity_index(result(early), 100, 50) == 1.0
    late = [10, 20, 30, 40, 410]  # 110 ms behind: three deadlines passed
    assert fluidity_index(result(late), 100, 50) == pytest.approx(4 / 7)
    assert fluidity_index(result([], failure="http_500"), 100, 50) == 0.0
