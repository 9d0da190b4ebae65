"""Joins the ranks of one engine to a process group: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from engine.config import ConfigError
from model.parallel import TensorParallel

_TIMEOUT = timedelta(minutes=10)  # the slowest that ranks come to the same place while they start
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one engine meet: a store in rank 0's process, on a port that the system chose."""

    port: int
    size: int


def open_rendezvous(size: int) -> tuple[Rendezvous, Store]:
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
    return Rendezvous(port, size), store


def join(
    rendezvous: Rendezvous, rank: int, device: torch.device, store: Store | None = None
) -> TensorParallel:
    """This rank's place in the group. Returns when all ranks have joined."""
    if store is None:
        store = TCPStore(_HOST, rendezvous.port, rendezvous.size, is_master=False, timeout=_TIMEOUT)
    # All ranks are on this machine, and nobody else should be able to talk to them.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
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
    return TensorParallel(rank, rendezvous.size)


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
