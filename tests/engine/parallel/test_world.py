"""Where ranks stand, and how they part."""

from __future__ import annotations

import atexit
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.config import ConfigError
from engine.parallel import world
from engine.parallel.world import leave, open_rendezvous, rank_devices
from model.parallel import TensorParallel

GPUS = [torch.device("cuda", index) for index in range(2)]


@pytest.fixture(autouse=True)
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_each_rank_has_a_gpu_of_its_own() -> None:
    assert rank_devices(2, GPUS[0], "nccl") == GPUS
    assert open_rendezvous(GPUS, "nccl")[0].ranks_per_device == 1


def test_ranks_share_gpus_that_are_too_few() -> None:
    devices = rank_devices(3, GPUS[0], "auto")
    assert devices == [GPUS[0], GPUS[1], GPUS[0]]
    assert open_rendezvous(devices, "auto")[0].ranks_per_device == 2


def test_a_cpu_is_shared_by_all() -> None:
    devices = rank_devices(4, torch.device("cpu"), "auto")
    assert open_rendezvous(devices, "auto")[0].ranks_per_device == 1


@pytest.mark.parametrize("all_reduce", ["nccl", "one-shot"])
def test_ranks_that_share_a_gpu_have_no_choice(all_reduce: Any) -> None:
    with pytest.raises(ConfigError, match=f"--all-reduce {all_reduce} needs a GPU for each of the 3 ranks"):
        rank_devices(3, GPUS[0], all_reduce)


def test_gpus_that_do_not_reach_each_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no peer access")

    monkeypatch.setattr(dist.distributed_c10d, "_get_default_group", lambda: None)
    monkeypatch.setattr(world, "OneShotAllReduce", refuse)
    tp = TensorParallel()
    assert world._with_peer_memory(tp, GPUS[0], required=False) is tp
    assert "no all-reduce over peer memory: no peer access" in caplog.text
    with pytest.raises(ConfigError, match="--all-reduce one-shot: these GPUs cannot"):
        world._with_peer_memory(tp, GPUS[0], required=True)


def test_a_library_that_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at_exit: list[Any] = []
    forever = threading.Event()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(world, "_abort", forever.wait)
    monkeypatch.setattr(world, "_LEAVE_S", 0.05)
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    leave()
    forever.set()
    assert len(at_exit) == 1 and "will end without it" in caplog.text
