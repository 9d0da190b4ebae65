"""Starts the other ranks and makes a runner together with them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import torch

from engine.config import SchedulerConfig
from engine.parallel.processes import start_processes
from engine.parallel.ranks import RankError, Ranks, Stage
from engine.parallel.runner import ParallelRunner
from engine.parallel.step_message import StepEncoder
from engine.parallel.world import Rendezvous, join, leave, open_rendezvous, rank_device
from engine.runner.build import Progress, RunnerSetup, build_runner
from model.config import ModelError
from model.parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class RankSetup:
    """The first message to a rank."""

    rank: int
    device: torch.device
    rendezvous: Rendezvous
    runner: RunnerSetup


def build_parallel_runner(
    setup: RunnerSetup, device: torch.device, tell: Progress
) -> tuple[ParallelRunner, SchedulerConfig]:
    """Rank 0's runner and the limits that all ranks share. Raises `ConfigError` or `ModelError`."""
    size = setup.config.tensor_parallel_size
    TensorParallel(0, size).heads(
        setup.model_config.num_heads, setup.model_config.num_kv_heads
    )  # or an error
    devices = [rank_device(rank, device, size) for rank in range(size)]
    rendezvous, store = open_rendezvous(size, setup.config.all_reduce)
    tell("starting the other ranks", 0, 0)
    ranks = Ranks(start_processes(size), patience_s=2 * setup.config.stall_timeout)
    try:
        ranks.set_up(
            [pickle.dumps(RankSetup(rank, devices[rank], rendezvous, setup)) for rank in range(1, size)]
        )
        ranks.wait_for(Stage.IMPORTED)
        tp = join(rendezvous, 0, devices[0], store)
        runner, limits = build_runner(setup, devices[0], tell, tp, lambda: ranks.wait_for(Stage.LOADED))
        ranks.wait_for(Stage.READY)
    except BaseException as error:
        cause = ranks.explain(error) if isinstance(error, Exception) else error
        ranks.stop()
        leave()
        if isinstance(cause, RankError):
            raise ModelError(f"--tensor-parallel-size {size}: {cause}") from None
        raise
    return ParallelRunner(runner, ranks, StepEncoder(limits.max_num_seqs, limits.block_size)), limits
