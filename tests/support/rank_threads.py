"""Tensor-parallel ranks as threads of one process, over gloo and the product's own links and runners."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch.distributed as dist

from engine.config import SchedulerConfig
from engine.parallel.link import Link, LinkClosedError
from engine.parallel.ranks import Rank, Ranks
from engine.parallel.runner import ParallelRunner
from engine.parallel.step_message import StepEncoder
from engine.parallel.worker import run_steps
from engine.runner.model_runner import ModelRunner
from model.decoder import Decoder
from model.parallel import TensorParallel


class RankThreads:
    """`decoders` by rank. `make_runner` may be called again once its runner has been left alone for good."""

    def __init__(self, size: int, make_decoder: Callable[[TensorParallel], Decoder]) -> None:
        store = dist.HashStore()
        with ThreadPoolExecutor(size) as pool:
            groups = list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, size), range(size)))
        self.decoders = [make_decoder(TensorParallel(rank, size, groups[rank])) for rank in range(size)]
        self._ranks: Ranks | None = None

    def make_runner(self, config: SchedulerConfig, eos_token_ids: frozenset[int]) -> ParallelRunner:
        self.stop()
        own, *others = (
            ModelRunner(decoder, decoder.attention, config, eos_token_ids, seed=0)
            for decoder in self.decoders
        )
        ranks = [self._start(rank, runner) for rank, runner in enumerate(others, 1)]
        self._ranks = Ranks(ranks, patience_s=60)
        return ParallelRunner(own, self._ranks, StepEncoder(config.max_num_seqs, config.block_size))

    def stop(self) -> None:
        if self._ranks is not None:
            self._ranks.stop()

    @staticmethod
    def _start(rank: int, runner: ModelRunner) -> Rank:
        ours, theirs = socket.socketpair()

        def run() -> None:
            with suppress(LinkClosedError):
                run_steps(Link(theirs), runner)

        threading.Thread(target=run, name=f"rank-{rank}", daemon=True).start()
        return Rank(rank, Link(ours))


@contextmanager
def rank_threads(size: int, make_decoder: Callable[[TensorParallel], Decoder]) -> Iterator[RankThreads]:
    ranks = RankThreads(size, make_decoder)
    yield ranks
    ranks.stop()
