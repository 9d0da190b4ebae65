"""Microseconds of one all-reduce inside a CUDA graph, NCCL beside one kernel over peer memory, by size.

python -m benchmarks.tensor_parallel.all_reduce --ranks 2
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing

from engine.parallel.world import Rendezvous, join, open_rendezvous
from engine.runner.captured import CudaGraphCapture
from model.one_shot import OneShotAllReduce
from model.parallel import TensorParallel

HIDDEN_SIZE = 4096
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
CALLS, REPLAYS = 40, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    rendezvous, store = open_rendezvous(arguments.ranks, "nccl")
    context = torch.multiprocessing.get_context("spawn")
    others = [context.Process(target=measure, args=(rank, rendezvous)) for rank in range(1, arguments.ranks)]
    for process in others:
        process.start()
    measure(0, rendezvous, store)
    os._exit(0)  # NCCL's own end may wait for the other ranks'


def measure(rank: int, rendezvous: Rendezvous, store: dist.Store | None = None) -> None:
    device = torch.device("cuda", rank)
    tp = join(rendezvous, rank, device, store)
    group = dist.distributed_c10d._get_default_group()
    largest = max(ROWS) * HIDDEN_SIZE * 4
    try:
        one_shot: OneShotAllReduce | None = OneShotAllReduce(group, device, largest)
    except RuntimeError as error:
        one_shot = None
        print(f"FAILED one-shot: {error}", flush=True)
    capture = CudaGraphCapture(device)
    say = print if rank == 0 else lambda *_, **__: None
    say("| rows of 4096 | type | KiB | NCCL us | one-shot us |", "\n| --- | --- | --- | --- | --- |", sep="")
    for dtype in (torch.bfloat16, torch.float32):
        for rows in ROWS:
            x = torch.full((rows, HIDDEN_SIZE), rank + 1.0, dtype=dtype, device=device)
            cells = [f"{time_of(lambda x=x: tp.all_reduce(x.clone()), x, tp, capture):.1f}"]
            if one_shot is not None:
                cells.append(f"{time_of(lambda x=x: one_shot(x), x, tp, capture):.1f}")
            say(f"| {rows} | {dtype} | {x.nbytes / 1024:.0f} | " + " | ".join(cells) + " |", flush=True)
    x = torch.ones(16, 75968, device=device)
    say(f"all-gather of logits, 16 rows: {time_of(lambda: tp.all_gather(x), None, tp, capture):.1f} us")
    tp.minimum(0)  # wait for the others
    if rank:
        os._exit(0)


def time_of(
    call: Callable[[], torch.Tensor], x: torch.Tensor | None, tp: TensorParallel, capture: CudaGraphCapture
) -> float:
    """Also checks the sum: rank r's tensor holds r + 1."""
    if x is not None:
        total = call()
        expected = tp.size * (tp.size + 1) / 2
        if not bool((total == expected).all()):
            print(
                f"FAILED wrong sum of {tuple(x.shape)} {x.dtype}: {total.flatten()[:4].tolist()}", flush=True
            )

    def calls() -> torch.Tensor:
        for _ in range(CALLS - 1):
            call()
        return call()

    with torch.inference_mode():
        replay, _ = capture(calls)
        replay()
        torch.cuda.synchronize()
        tp.minimum(0)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            replay()
        end.record()
        end.synchronize()
    return begin.elapsed_time(end) * 1000 / (CALLS * REPLAYS)


if __name__ == "__main__":
    main()
