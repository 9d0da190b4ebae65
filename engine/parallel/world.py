"""Joins the ranks of one engine to a process group: NCCL between GPUs, gloo between CPUs.

Ranks that share a GPU, where NCCL refuses, sum over gloo as well.
"""

from __future__ import annotations

import atexit
import faulthandler
import itertools
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from engine.config import AllReduce, ConfigError
from model.exchange import ExchangeAllReduce
from model.one_shot import OneShotAllReduce
from model.parallel import HostTensorParallel, TensorParallel

logger = logging.getLogger(__name__)

_TIMEOUT = timedelta(minutes=10)  # the slowest that ranks come to the same place while they start
_MAP_S = 60.0
_LEAVE_S = 5.0
_HOST = "127.0.0.1"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one engine meet: a store in rank 0's process, on a port that the system chose."""

    port: int
    size: int
    all_reduce: AllReduce
    ranks_per_device: int  # more than 1 only on GPUs
    number: int  # of those in rank 0's process, from 0


def open_rendezvous(devices: Sequence[torch.device], all_reduce: AllReduce) -> tuple[Rendezvous, Store]:
    """Rank 0's side, for ranks on these devices. The store listens on this machine's loopback alone."""
    if dist.is_initialized():
        raise ConfigError("--tensor-parallel-size: this process is part of a torch.distributed world already")
    size = len(devices)
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
    ranks_per_device = 1 if devices[0].type == "cpu" else max(Counter(devices).values())
    return Rendezvous(port, size, all_reduce, ranks_per_device, next(_numbers)), store


def join(
    rendezvous: Rendezvous, rank: int, device: torch.device, store: Store | None = None
) -> TensorParallel:
    """This rank's place in the group. Returns when all ranks have joined.

    It says in the log what it does next, so that one can tell where it waits for a rank that does not come.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // rendezvous.size))
    _set_environment()
    uses_nccl = device.type == "cuda" and rendezvous.ranks_per_device == 1
    backend = "cpu:gloo,cuda:nccl" if uses_nccl else "gloo"
    logger.info("rank %d: joins %d ranks over %s on %s", rank, rendezvous.size, backend, device)
    if store is None:
        store = TCPStore(_HOST, rendezvous.port, rendezvous.size, is_master=False, timeout=_TIMEOUT)
    # It names the group. Torch finds peer memory by that name, and never forgets where a name's ranks met.
    dist.distributed_c10d._world.group_count = rendezvous.number
    dist.init_process_group(backend, store=store, rank=rank, world_size=rendezvous.size, timeout=_TIMEOUT)
    if rendezvous.ranks_per_device > 1:
        return HostTensorParallel(rank, rendezvous.size)
    tp = TensorParallel(rank, rendezvous.size)
    if uses_nccl:
        logger.info("rank %d: NCCL's first sum", rank)
        _check_sum(tp, device)
        required = rendezvous.all_reduce == "one-shot"
        # Torch counts how often a process has met others over peer memory, and the new ranks' counts are 0:
        # they would wait for each other forever.
        if required and rendezvous.number > 0:
            raise ConfigError("--all-reduce one-shot: only the first engine of a process can have it")
        if rendezvous.all_reduce != "nccl" and rendezvous.number == 0:
            logger.info("rank %d: maps the other GPUs' memory", rank)
            tp = _with_peer_memory(tp, device, required=required)
    return tp


def _set_environment() -> None:
    """What the user has set stays."""
    # All ranks are on this machine, and nobody else should be able to talk to them.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    # NVLink multicast gains little here, and a process that dies with it can leave the links unusable.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")


def _check_sum(tp: TensorParallel, device: torch.device, slot: int | None = None) -> None:
    """Add up the ranks' numbers. At its first sum NCCL sets itself up, which must not be within a capture."""
    dtype = torch.float32 if slot is None else torch.bfloat16
    total = tp.all_reduce(torch.full((1024,), tp.rank + 1.0, dtype=dtype, device=device), slot)
    expected = tp.size * (tp.size + 1) / 2
    if not bool((total == expected).all()):
        raise RuntimeError(f"a sum over all ranks gave {total[0].item()} instead of {expected}")


def _with_peer_memory(tp: TensorParallel, device: torch.device, *, required: bool) -> TensorParallel:
    """With sums over it, for all ranks or for none."""
    connected = tp
    # Torch waits for the others with the interpreter's lock held: no thread of ours could end that.
    faulthandler.dump_traceback_later(_MAP_S, exit=True, file=2)
    try:
        one_shot = OneShotAllReduce(dist.distributed_c10d._get_default_group(), device)
        exchange = ExchangeAllReduce(one_shot, tp.rank, tp.size) if find_spec("triton") else None
        connected = replace(tp, one_shot=one_shot, exchange=exchange)
        _check_sum(connected, device)
        for slot in (0, 1):
            _check_sum(connected, device, slot)
    except RuntimeError as error:
        logger.warning("no all-reduce over peer memory: %s", error)
        connected = tp
    finally:
        faulthandler.cancel_dump_traceback_later()
    works = tp.minimum(connected is not tp)
    if required and not works:
        raise ConfigError("--all-reduce one-shot: these GPUs cannot read each other's memory")
    return connected if works else tp


def leave() -> None:
    """Without a word to the other ranks, which may be gone."""
    if not dist.is_initialized():
        return
    thread = threading.Thread(target=_abort, name="octavo-leave", daemon=True)
    thread.start()
    thread.join(_LEAVE_S)
    if thread.is_alive():  # NCCL waits for graphs that hold its kernels, perhaps in the frames of an error
        logger.warning("NCCL does not end; this process will end without it")
        atexit.register(os._exit, 1)  # else the interpreter's own end would wait likewise


def _abort() -> None:
    with suppress(RuntimeError):
        dist.distributed_c10d._abort_process_group()


def rank_devices(size: int, device: torch.device, all_reduce: AllReduce) -> list[torch.device]:
    """The device of each rank. On GPUs that are fewer than the ranks, some have several.

    Raises `ConfigError` if that excludes the all-reduce that was asked for.
    """
    if device.type == "cpu":
        return [device] * size
    num_gpus = torch.cuda.device_count()
    if size > num_gpus and all_reduce != "auto":
        raise ConfigError(
            f"--all-reduce {all_reduce} needs a GPU for each of the {size} ranks, and torch sees {num_gpus}"
        )
    return [torch.device("cuda", rank % num_gpus) for rank in range(size)]
