"""What rank 0 spends on telling another rank of a step: bytes, and microseconds of CPU to make and send them.

    python -m benchmarks.tensor_parallel.messages [--rows 256]

Steps of decodes alone, and steps in which one sequence ends and a prompt of 1,000 tokens comes. Needs no GPU.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from contextlib import suppress

import numpy as np

from benchmarks.random_request import random_request
from engine.config import SchedulerConfig
from engine.parallel.link import Link, LinkClosedError
from engine.parallel.step_message import StepEncoder
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

_BLOCK_SIZE = 128
_PROMPT_TOKENS = 1000
_TOKEN_IDS = range(30_000)
_STEPS = 300


def measure(num_rows: int, arrivals: bool) -> tuple[float, float]:
    """Medians: bytes of a step's message, and microseconds for it."""
    config = SchedulerConfig(
        max_num_seqs=num_rows,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        block_size=_BLOCK_SIZE,
        num_blocks=num_rows * 16,
    )
    scheduler, encoder = Scheduler(config, frozenset()), StepEncoder(num_rows, _BLOCK_SIZE)
    rng = np.random.default_rng(0)
    ours, theirs = (Link(end) for end in socket.socketpair())
    threading.Thread(target=_read_all, args=(theirs,), daemon=True).start()
    figures = []
    for step in range(2 * num_rows + _STEPS):
        if step < num_rows or arrivals:
            params = SamplingParams(max_tokens=num_rows if arrivals else 7000, ignore_eos=True)
            scheduler.add(random_request(rng, _PROMPT_TOKENS, params, _BLOCK_SIZE, token_ids=_TOKEN_IDS))
        plan = scheduler.schedule()
        assert plan is not None
        began_ns = time.thread_time_ns()
        payload = encoder.encode(plan)
        ours.send(step, payload)
        figures.append((len(payload), (time.thread_time_ns() - began_ns) / 1e3))
        scheduler.commit(plan, np.zeros(len(plan.sampled), np.int64))
    ours.close()
    num_bytes, us = np.median(figures[-_STEPS:], axis=0)
    return float(num_bytes), float(us)


def _read_all(link: Link) -> None:
    with suppress(LinkClosedError):
        while True:
            link.receive()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="sequences that decode (default: 256)")
    rows = parser.parse_args().rows
    for case, arrivals in (("decodes alone", False), ("one comes and one ends", True)):
        num_bytes, us = measure(rows, arrivals)
        print(f"{rows} rows, {case}: {num_bytes:,.0f} bytes, {us:.0f} us")
