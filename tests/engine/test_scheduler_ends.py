"""When a sequence ends, and what becomes of the token that was under way."""

from __future__ import annotations

import numpy as np
import pytest

from engine.config import SchedulerConfig
from engine.handle import PromptTooLongError
from engine.record import RequestRecord
from engine.request import NO_TOKEN, FinishReason, Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from tests.support.simulated_engine import EOS_TOKEN_IDS


def drive(
    params: SamplingParams, answers: list[int], prompt_length: int = 5
) -> list[tuple[int, FinishReason | None]]:
    """What one sequence publishes, at depth 2, when the model answers this."""
    config = SchedulerConfig(
        max_num_seqs=1, max_num_batched_tokens=64, max_model_len=16, block_size=4, num_blocks=4
    )
    scheduler = Scheduler(config, EOS_TOKEN_IDS)
    scheduler.add(
        Request(
            "r",
            np.full(prompt_length, 3, np.int32),
            params,
            [b"h"] * (prompt_length // 4),
            RequestRecord("r"),
        )
    )
    published, model = [], iter(answers)
    in_flight = scheduler.schedule()
    while in_flight is not None:
        ahead = scheduler.schedule()
        tokens = [next(model) for _ in in_flight.sampled]
        published += [(token, reason) for _, token, reason in scheduler.commit(in_flight, tokens)]
        scheduler.check()
        in_flight = ahead
    assert not scheduler.has_work and scheduler.block_manager.num_used == 0
    return published


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def test_eos_ends_and_the_overshoot_is_dropped() -> None:
    assert drive(SamplingParams(max_tokens=9), [4, 5, 0, 6, 7]) == [(4, None), (5, None), (0, STOP)]


def test_eos_as_the_last_allowed_token_is_a_stop() -> None:
    assert drive(SamplingParams(max_tokens=2), [4, 0]) == [(4, None), (0, STOP)]
    assert drive(SamplingParams(max_tokens=2, ignore_eos=True), [4, 0]) == [(4, None), (0, LENGTH)]


def test_ignore_eos_does_not_disable_stop_token_ids() -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(6,))
    assert drive(params, [0, 4, 6, 7]) == [(0, None), (4, None), (6, STOP)]


def test_min_tokens_outlasts_eos_and_stop_ids() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=3, stop_token_ids=(6,))
    assert drive(params, [0, 6, 0, 7]) == [(0, None), (6, None), (0, STOP)]


def test_no_max_tokens_goes_to_the_context_limit() -> None:
    published = drive(SamplingParams(max_tokens=None), [4] * 20)
    assert len(published) == 16 - 5 and published[-1] == (4, LENGTH)


@pytest.mark.parametrize("prompt_length", [5, 16])
def test_without_wanted_tokens_only_the_prompt_runs(prompt_length: int) -> None:
    assert drive(SamplingParams(max_tokens=0), [], prompt_length) == [(NO_TOKEN, LENGTH)]


def test_a_prompt_that_leaves_no_room_for_a_wanted_token_is_refused() -> None:
    with pytest.raises(PromptTooLongError, match="16 tokens"):
        drive(SamplingParams(max_tokens=5), [], 16)
