"""Starts the other ranks and makes a runner together with them."""

from __future__ import annotations

import logging
import pickle
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from engine.config import SchedulerConfig
from engine.parallel.processes import start_processes
from engine.parallel.ranks import RankError, Ranks, Stage
from engine.parallel.runner import ParallelRunner
from engine.parallel.step_message import StepEncoder
from engine.parallel.world import Rendezvous, join, leave, open_rendezvous, rank_devices
from engine.runner.build import Progress, RunnerSetup, build_runner
from model.config import ModelError
from model.parallel import TensorParallel

logger = logging.getLogger(__name__)

_JOIN_S = 120.0  # from the last rank's imports: sockets, NCCL's communicator, peer memory
_COMPUTE_S = 900.0  # from the last rank's weights: kernels compile, graphs are captured


@dataclass(frozen=True, slots=True)
class RankSetup:
    """The first message to a rank."""

    rank: int
    device: torch.device
    rendezvous: Rendezvous
    runner: RunnerSetup
    log_level: int  # rank 0's


def _for_a_shared_device(setup: RunnerSetup, ranks_per_device: int) -> RunnerSetup:
    """Sums over the host cannot be captured, and each rank may take its part of the memory alone."""
    logger.warning(
        "%d ranks share a GPU: their sums go through the host's memory, without CUDA graphs; "
        "slow, and meant for tests",
        ranks_per_device,
    )
    share = setup.config.gpu_memory_utilization / ranks_per_device
    return replace(setup, config=replace(setup.config, enforce_eager=True, gpu_memory_utilization=share))


def build_parallel_runner(
    setup: RunnerSetup, device: torch.device, tell: Progress
) -> tuple[ParallelRunner, SchedulerConfig]:
    """Rank 0's runner and the limits that all ranks share. Raises `ConfigError` or `ModelError`."""
    size = setup.config.tensor_parallel_size
    model = setup.model_config
    TensorParallel(0, size).heads(model.num_heads, model.num_kv_heads)  # raises if they cannot be shared out
    devices = rank_devices(size, device, setup.config.all_reduce)
    rendezvous, store = open_rendezvous(devices, setup.config.all_reduce)
    if rendezvous.ranks_per_device > 1:
        setup = _for_a_shared_device(setup, rendezvous.ranks_per_device)
    tell("starting the other ranks", 0, 0)
    ranks = Ranks(start_processes(size), patience_s=2 * setup.config.stall_timeout)
    log_level = logging.getLogger().getEffectiveLevel()
    try:
        ranks.set_up(
            [
                pickle.dumps(RankSetup(rank, devices[rank], rendezvous, setup, log_level))
                for rank in range(1, size)
            ]
        )
        ranks.wait_for(Stage.IMPORTED)
        tell("joining the other ranks", 0, 0)
        with ranks.deadline(_JOIN_S, "the ranks have not joined each other"):
            tp = join(rendezvous, 0, devices[0], store)
            ranks.wait_for(Stage.JOINED)
        with ExitStack() as together:

            def all_loaded() -> None:
                ranks.wait_for(Stage.LOADED)
                together.enter_context(ranks.deadline(_COMPUTE_S, "the ranks have not finished their start"))

            runner, limits = build_runner(setup, devices[0], tell, tp, all_loaded)
            ranks.wait_for(Stage.READY)
    except BaseException as error:
        cause = ranks.explain(error) if isinstance(error, Exception) else error
        ranks.stop()
        leave()
        if isinstance(cause, RankError):
            raise ModelError(f"--tensor-parallel-size {size}: {cause}") from None
        raise
    return ParallelRunner(runner, ranks, StepEncoder(limits.max_num_seqs, limits.block_size)), limits
