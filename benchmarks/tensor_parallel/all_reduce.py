"""Right sums, and the time of an all-reduce in a CUDA graph, by size: NCCL and two kernels over peer memory.

Also of an all-reduce with what follows it in a decode of a few rows, residual add and RMSNorm: in one kernel
over mailboxes, and in two.

    python -m benchmarks.tensor_parallel.all_reduce --ranks 2

Without GPUs it runs over gloo, to try out the script. NCCL comes first: the other's setting-up may fail.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from benchmarks.tensor_parallel.results import append
from engine.parallel.world import Rendezvous, join, open_rendezvous
from engine.runner.capture import Capture, CudaGraphCapture, EagerCapture
from model.exchange import ExchangeAllReduce
from model.one_shot import OneShotAllReduce
from model.parallel import TensorParallel

HIDDEN_SIZE = 4096
ROWS = {  # 8 KiB to 64 MiB; the fused kernels for small batches add up fp32
    torch.bfloat16: (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    torch.float32: (1, 4, 16, 64, 256),
}
FEW_ROWS = (1, 4, 16, 64)
HALVES = (torch.bfloat16,)  # what exchanges take
LOGITS = (16, 75968)  # a rank's part of 16 rows
CALLS, REPLAYS = 40, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=max(ROWS[torch.bfloat16]), help="at most so many")
    parser.add_argument("--results", type=Path, help="file to append to")
    arguments = parser.parse_args()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    devices = [torch.device(kind, rank if kind == "cuda" else 0) for rank in range(arguments.ranks)]
    rendezvous, store = open_rendezvous(devices, "nccl")
    context = torch.multiprocessing.get_context("spawn")
    others = [
        context.Process(target=measure, args=(rank, devices[rank], rendezvous, arguments.rows), daemon=True)
        for rank in range(1, arguments.ranks)
    ]
    for process in others:
        process.start()
    measure(0, devices[0], rendezvous, arguments.rows, arguments.results, store)


def measure(
    rank: int,
    device: torch.device,
    rendezvous: Rendezvous,
    max_rows: int,
    results: Path | None = None,
    store: dist.Store | None = None,
) -> None:
    """One rank's part. Ends the process: NCCL's own end may wait for the other ranks'."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    tp = join(rendezvous, rank, device, store)
    is_gpu = device.type == "cuda"
    # A pool of its own for each: a pool ends with the last graph in it.
    bench = Bench(tp, device, (lambda: CudaGraphCapture(device)) if is_gpu else EagerCapture)
    for row in bench.all_sizes("nccl" if is_gpu else "gloo", tp.all_reduce, max_rows):
        bench.tell(results, row)
    logits = torch.ones(LOGITS, device=device)
    us, _ = bench.time(lambda: tp.all_gather(logits))
    bench.tell(results, {"how": "all-gather", "dtype": "float32", "kib": logits.nbytes / 1024, "us": us})
    if is_gpu:
        group = dist.distributed_c10d._get_default_group()
        one_shot = OneShotAllReduce(group, device, max_rows * HIDDEN_SIZE * 4)
        for row in bench.all_sizes("one-shot", one_shot, max_rows):
            bench.tell(results, row)
        exchange, slots = ExchangeAllReduce(one_shot, rank, tp.size), itertools.cycle(range(2))
        tp.minimum(0)
        for row in bench.all_sizes("exchange", lambda x: exchange(x, next(slots)), max_rows // 2, HALVES):
            bench.tell(results, row)
        for row in bench.sums_and_norms(replace(tp, one_shot=one_shot)):
            bench.tell(results, row)
    tp.minimum(0)  # wait for the others
    os._exit(0)


@dataclass(frozen=True, slots=True)
class Bench:
    tp: TensorParallel
    device: torch.device
    new_capture: Callable[[], Capture]

    def tell(self, results: Path | None, row: dict[str, object]) -> None:
        if self.tp.rank == 0:
            append(results, {"kind": "sum", **row})

    def all_sizes(
        self,
        how: str,
        all_reduce: Callable[[torch.Tensor], torch.Tensor],
        max_rows: int,
        dtypes: Iterable[torch.dtype] = tuple(ROWS),
    ) -> Iterable[dict[str, object]]:
        """`all_reduce` may work in place."""
        for dtype in dtypes:
            for num_rows in ROWS[dtype]:
                if num_rows > max_rows:
                    continue
                parts = [self._part(rank, num_rows, dtype) for rank in range(self.tp.size)]
                expected = torch.stack([part.float() for part in parts]).sum(0)
                x = parts[self.tp.rank]
                first = all_reduce(x.clone())
                us, last = self.time(lambda x=x: all_reduce(x.clone()))
                right = all(torch.allclose(y.float(), expected, 2e-2, 2e-2) for y in (first, last))
                name = str(dtype).removeprefix("torch.")
                yield {"how": how, "dtype": name, "kib": x.nbytes / 1024, "us": us, "right": right}

    def sums_and_norms(self, tp: TensorParallel) -> Iterable[dict[str, object]]:
        """`exchange_norm`, and one-shot before `residual_norm`. The residual grows with every call."""
        from kernels.triton.small_batch.exchange_norm import exchange_norm
        from kernels.triton.small_batch.residual_norm import residual_norm
        from model.small_batch_step import open_mailboxes

        mailboxes = open_mailboxes(tp, max(FEW_ROWS), HIDDEN_SIZE)
        assert mailboxes is not None
        weight = torch.ones(HIDDEN_SIZE, dtype=torch.bfloat16, device=self.device)
        for num_rows in FEW_ROWS:
            parts = [self._part(rank, num_rows, torch.float32) for rank in range(tp.size)]
            total, own = torch.stack(parts).sum(0), parts[tp.rank][None]
            residual = torch.zeros_like(total)
            normed = residual.to(torch.bfloat16)
            slots = itertools.cycle(range(2))

            def exchange(own=own, residual=residual, normed=normed, slots=slots) -> torch.Tensor:
                exchange_norm(own, mailboxes, next(slots), residual, weight, normed, 1e-6)
                return residual

            def both(own=own, residual=residual, normed=normed) -> torch.Tensor:
                residual_norm(residual, weight, normed, 1e-6, partials=tp.all_reduce(own))
                return residual

            for how, call in (("mailboxes + norm", exchange), ("one-shot, norm", both)):
                residual.zero_()
                us, _ = self.time(call)
                calls = (residual * total).sum() / (total * total).sum()
                expected = normed.float() * residual.square().mean(-1, keepdim=True).sqrt()
                right = torch.allclose(residual, total * calls.round(), 1e-3, 1e-1)
                right &= torch.allclose(expected, residual, 2e-2, 1e-1)
                yield {"how": how, "dtype": "float32", "kib": own.nbytes / 1024, "us": us, "right": right}

    def _part(self, rank: int, num_rows: int, dtype: torch.dtype) -> torch.Tensor:
        """What that rank adds: any rank can make it."""
        generator = torch.Generator(self.device).manual_seed(1000 * num_rows + rank)
        part = torch.randn(num_rows, HIDDEN_SIZE, generator=generator, device=self.device)
        return part.to(dtype)

    def time(self, call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
        """Microseconds of a call, a copy of its input included, and the last result."""

        def calls() -> torch.Tensor:
            for _ in range(CALLS - 1):
                call()
            return call()

        with torch.inference_mode():
            replay, result = self.new_capture()(calls)
            replay()
            self._meet()
            begin_s = time.perf_counter()
            for _ in range(REPLAYS):
                replay()
            self._synchronize()
            seconds = time.perf_counter() - begin_s
        return 1e6 * seconds / (CALLS * REPLAYS), result

    def _meet(self) -> None:
        self._synchronize()
        self.tp.minimum(0)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


if __name__ == "__main__":
    main()
