"""Joins the ranks of one engine to a process group: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from engine.config import AllReduce, ConfigError
from model.one_shot import OneShotAllReduce
from model.parallel import TensorParallel

logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(minutes=10)  # the slowest that ranks come to the same place while they start
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one engine meet: a store in rank 0's process, on a port that the system chose."""

    port: int
    size: int
    all_reduce: AllReduce


def open_rendezvous(size: int, all_reduce: AllReduce) -> tuple[Rendezvous, Store]:
    """Rank 0's side. The store listens on this machine's loopback alone."""
    if dist.is_initialized():
        raise ConfigError("--tensor-parallel-size: this process is part of a torch.distributed world already")
    listener = socket.create_server((_HOST, 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        _HOST,
        port,
        size,
        is_master=True,
        timeout=_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return Rendezvous(port, size, all_reduce), store


def join(
    rendezvous: Rendezvous, rank: int, device: torch.device, store: Store | None = None
) -> TensorParallel:
    """This rank's place in the group. Returns when all ranks have joined."""
    if store is None:
        store = TCPStore(_HOST, rendezvous.port, rendezvous.size, is_master=False, timeout=_TIMEOUT)
    # All ranks are on this machine, and nobody else should be able to talk to them.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    # NVLink multicast gains little here, and a process that dies with it can leave the links unusable.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // rendezvous.size))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=rendezvous.size,
        timeout=_TIMEOUT,
    )
    tp = TensorParallel(rank, rendezvous.size)
    if device.type == "cuda" and rendezvous.all_reduce != "nccl":
        tp = replace(tp, one_shot=_one_shot(tp, device, required=rendezvous.all_reduce == "one-shot"))
    return tp


def _one_shot(tp: TensorParallel, device: torch.device, *, required: bool) -> OneShotAllReduce | None:
    """Used by all ranks or by none."""
    one_shot = None
    try:
        one_shot = OneShotAllReduce(dist.distributed_c10d._get_default_group(), device)
    except RuntimeError as error:
        logger.warning("no all-reduce over peer memory: %s", error)
    works = tp.minimum(one_shot is not None)
    if required and not works:
        raise ConfigError("--all-reduce one-shot: these GPUs cannot read each other's memory")
    return one_shot if works else None


def leave() -> None:
    """Without a word to the other ranks, which may be gone."""
    if dist.is_initialized():
        dist.distributed_c10d._abort_process_group()


def rank_device(rank: int, device: torch.device, size: int) -> torch.device:
    """Each rank has a GPU of its own. Raises `ConfigError` if there are too few."""
    if device.type == "cpu":
        return device
    if size > torch.cuda.device_count():
        raise ConfigError(
            f"--tensor-parallel-size {size} needs as many GPUs, and torch sees {torch.cuda.device_count()}"
        )
    return torch.device("cuda", rank)
