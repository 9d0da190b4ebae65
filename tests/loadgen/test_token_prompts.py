"""Prompts: exact lengths, shared prefixes as recorded, the same tokens everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen.prompts import PromptBuilder, TokenRange, sibling_shifts
from loadgen.schedule import ScheduledRequest
from loadgen.schedule.from_trace import build_schedule
from loadgen.schedule.options import ScheduleOptions
from loadgen.traces import Trace, TraceRow, read_trace

SAMPLES = Path(__file__).parents[2] / "loadgen" / "traces" / "samples"
TRACES = ["azure_conv_120s.csv", "mooncake_conversation_300s_short.jsonl"]


def token_ids(builder: PromptBuilder, request: ScheduledRequest) -> list[int]:
    return list(json.loads(b"[" + b",".join(builder.fragments(request)) + b"]"))


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


@pytest.mark.parametrize("name", TRACES)
def test_every_prompt_has_its_exact_length_within_the_range(name: str) -> None:
    trace = read_trace(SAMPLES / name)
    builder = PromptBuilder(trace, TokenRange(), nonce=5)
    for request in build_schedule(trace, ScheduleOptions()).requests:
        ids = token_ids(builder, request)
        assert len(ids) == request.input_tokens
        assert min(ids) >= 1000 and max(ids) < 30000


def test_prompts_share_exactly_the_blocks_of_the_trace() -> None:
    trace = read_trace(SAMPLES / TRACES[1])
    requests = build_schedule(trace, ScheduleOptions()).requests[:60]
    builder = PromptBuilder(trace, TokenRange())
    prompts = [token_ids(builder, request) for request in requests]
    for i, first in enumerate(requests):
        for j, second in enumerate(requests[:i]):
            assert first.hash_ids is not None and second.hash_ids is not None
            same_ids = common_prefix(first.hash_ids, second.hash_ids)
            shared = min(same_ids * 512, first.input_tokens, second.input_tokens)
            assert common_prefix(prompts[i], prompts[j]) == shared


def test_requests_without_hash_ids_share_nothing() -> None:
    trace = read_trace(SAMPLES / TRACES[0])
    builder = PromptBuilder(trace, TokenRange(), nonce=1)
    firsts = [token_ids(builder, r)[0] for r in build_schedule(trace, ScheduleOptions(rate_scale=1)).requests]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("change", [{"seed": 1}, {"nonce": 1}])
def test_seed_and_nonce_change_every_prompt(change: dict[str, int]) -> None:
    trace = read_trace(SAMPLES / TRACES[0])
    requests = build_schedule(trace, ScheduleOptions()).requests[:50]
    before, after = (PromptBuilder(trace, TokenRange(), **keys) for keys in ({}, change))
    assert all(token_ids(before, r)[:16] != token_ids(after, r)[:16] for r in requests)


def test_copies_of_the_trace_share_within_themselves_only() -> None:
    rows = [TraceRow(at, 1024, 4, (0, at + 1)) for at in range(20)]
    trace = Trace("test", "t", rows, 20, block_size=512)
    requests = build_schedule(trace, ScheduleOptions(rate_scale=2)).requests
    builder = PromptBuilder(trace, TokenRange())
    heads = {(r.copy, tuple(token_ids(builder, r)[:512])) for r in requests}
    assert len(requests) == 40 and len(heads) == 2
    assert len({head for _, head in heads}) == 2


def test_siblings_differ_in_their_first_token_even_if_their_ids_agree_modulo_the_range() -> None:
    rows = [TraceRow(0, 1024, 4, (7, block_id)) for block_id in (100, 150, 200, 101)]  # 50 apart
    shifts = sibling_shifts(rows, 50)
    slots = [(block_id + shifts.get(block_id, 0)) % 50 for block_id in (100, 150, 200, 101)]
    assert len(set(slots)) == 4 and 100 not in shifts
    builder = PromptBuilder(Trace("test", "t", rows, 4, block_size=512), TokenRange(10, 60))
    assert len({int(builder.tokens(0, block_id, 512)[0]) for block_id in (100, 150, 200, 101)}) == 4


def test_a_vocabulary_with_fewer_tokens_than_siblings_still_works() -> None:
    rows = [TraceRow(0, 20, 4, (7, block_id)) for block_id in range(100, 110)]
    builder = PromptBuilder(Trace("test", "t", rows, 10, block_size=16), TokenRange.of_vocabulary(5))
    assert set(builder.tokens(0, 105, 16).tolist()) <= set(range(5))


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_tokens_are_the_same_in_every_process(hash_seed: str) -> None:
    """Pinned (worked out in plain integers): the same trace gives the same bytes in every version."""
    code = (
        "from loadgen.prompts import *; from loadgen.traces import Trace;"
        "print(PromptBuilder(Trace('t', 't', [], 0), TokenRange(), seed=1).tokens(0, 12345, 6).tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(out) == [16623, 6951, 29556, 20268, 7375, 4907]


def test_bad_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="5:5"):
        TokenRange(5, 5)
