"""What a runner reads of a plan is the same on every rank, and any plan passes the link."""

from __future__ import annotations

import random
import socket
import threading
from typing import Any

import numpy as np

from engine.block_manager import hash_blocks
from engine.config import SchedulerConfig
from engine.parallel.link import Link
from engine.parallel.step_message import StepDecoder, StepEncoder
from engine.plan import StepPlan
from engine.record import RequestRecord
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from tests.support.modulo_constraint import ModuloConstraint

BLOCK_SIZE = 4


def make_request(prompt: list[int], n: int = 1, **params: Any) -> Request:
    prompt_ids = np.array(prompt, dtype=np.int32)
    hashes = hash_blocks(prompt_ids, BLOCK_SIZE)
    constraint = ModuloConstraint(9, 50) if n > 1 else None
    return Request(
        "r", prompt_ids, SamplingParams(**params), hashes, RequestRecord("r"), n, constraint=constraint
    )


def read_by_runners(plan: StepPlan) -> list[Any]:
    """All that runners look at, tokens only where they are known."""
    seen: list[Any] = [plan.step, len(plan.decodes)]
    for entry in plan.scheduled:
        sequence = entry.sequence
        seen.append(
            (
                *entry[1:],
                sequence.sequence_id,
                sequence.index,
                sequence.num_admissions,
                sequence.params,
                sequence.matcher is not None,
                sequence.num_prompt_tokens,
                sequence.num_prefill_tokens,
                sequence.token_ids[: sequence.num_prefill_tokens],
                list(sequence.block_table),
                sequence.request.record.first_token_ns > 0,
            )
        )
    return seen


def test_ranks_read_what_rank_0_reads() -> None:
    """Admissions, prefixes, siblings, growth, preemptions and ends, with two steps in flight."""
    rng = random.Random(4)
    config = SchedulerConfig(
        max_num_seqs=6, max_num_batched_tokens=16, max_model_len=64, block_size=BLOCK_SIZE, num_blocks=20
    )
    scheduler = Scheduler(config, frozenset({7}))
    encoder, decoder = StepEncoder(config.max_num_seqs, BLOCK_SIZE), StepDecoder()
    in_flight: list[StepPlan] = []
    num_preempted = 0
    for step in range(600):
        if rng.random() < 0.3 and scheduler.num_waiting < 4:
            prompt = [1] * rng.choice([0, 8]) + [rng.randrange(50) for _ in range(rng.randint(1, 20))]
            bias = {3: 1.5} if step % 2 else {}
            request = make_request(
                prompt, rng.choice([1, 1, 3]), max_tokens=rng.randint(1, 30), logit_bias=bias
            )
            request.record.first_token_ns = rng.choice([0, 1])
            scheduler.add(request)
        plan = scheduler.schedule()
        if plan is not None:
            assert read_by_runners(decoder.decode(encoder.encode(plan))) == read_by_runners(plan)
            num_preempted += plan.num_preempted
            in_flight.append(plan)
        if in_flight and (plan is None or len(in_flight) == 2):
            done = in_flight.pop(0)
            scheduler.commit(done, [rng.randrange(12) for _ in done.sampled])
    assert num_preempted > 5


def test_a_batch_of_prompts_of_64000_tokens_passes_the_link() -> None:
    config = SchedulerConfig(
        max_num_seqs=8, max_num_batched_tokens=64_000, max_model_len=20_000, block_size=16, num_blocks=5000
    )
    scheduler = Scheduler(config, frozenset())
    prompts = np.random.default_rng(0).integers(0, 150_000, (8, 8000), dtype=np.int32)
    for prompt in prompts:
        hashes = hash_blocks(prompt, 16)
        scheduler.add(Request(f"{prompt[0]}", prompt, SamplingParams(), hashes, RequestRecord("")))
    plan = scheduler.schedule()
    assert plan is not None and plan.num_tokens == 64_000
    ours, theirs = (Link(end) for end in socket.socketpair())
    payload = StepEncoder(8, 16).encode(plan)
    sender = threading.Thread(target=ours.send, args=(9, payload))
    sender.start()
    number, received = theirs.receive()
    sender.join()
    copy = StepDecoder().decode(received)
    assert number == 9 and [chunk.sequence.token_ids for chunk in copy.chunks] == prompts.tolist()


def test_messages_arrive_in_order_however_they_are_cut() -> None:
    rng = random.Random(1)
    ours, theirs = (Link(end) for end in socket.socketpair())
    payloads = [rng.randbytes(rng.choice([0, 1, 15, 5000, 300_000])) for _ in range(60)]

    def send() -> None:
        for number, payload in enumerate(payloads):
            ours.send(number, payload)

    sender = threading.Thread(target=send)
    sender.start()
    received: list[Any] = []
    while len(received) < len(payloads):
        received += theirs.receive_ready() if rng.random() < 0.5 else [theirs.receive()]
    sender.join()
    assert received == list(enumerate(payloads))
