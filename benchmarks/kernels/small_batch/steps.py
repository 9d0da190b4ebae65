"""Whole steps of one model: checked against fp32, timed, and their tiles improved one kind at a time.

Tiles are compared in the step itself, since the fastest kernel alone is not the fastest in a chain whose
kernels overlap.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.small_batch.cases import (
    BANDWIDTH,
    CONTEXTS,
    KINDS,
    MODELS,
    RANKS,
    TARGETS_MS,
    attention_candidates,
    linear_candidates,
    product_shape,
)
from benchmarks.kernels.small_batch.model_case import CUDA, ModelCase
from benchmarks.kernels.small_batch.parts import attention_us, product_us
from benchmarks.kernels.small_batch.timing import capture, replay_us
from kernels.attention.interface import DecodeBatch
from kernels.triton.tiles import AttentionTile, LinearTile, StepTiles
from model.small_batch import step_shape

ERROR_BOUND = 3e-2


class StepBenchmark:
    def __init__(self, model: str, batches: list[int], deadline: float) -> None:
        """`deadline` is on `time.monotonic`'s clock: a sweep that reaches it keeps what it has."""
        self.model = model
        self.batches = batches
        self.case = ModelCase(MODELS[model], RANKS.get(model, 1))
        self.deadline = deadline
        self.best: dict[tuple[int, int], StepTiles] = {}

    def run(self, out: Path) -> None:
        for num_rows in self.batches:
            self.check(num_rows)
        for num_rows in self.batches:
            for max_context in CONTEXTS:
                self.attempt(self.report_step, num_rows, max_context, self.case.tiles(num_rows, max_context))
        for num_rows in self.batches:
            self.attempt(self.sweep, num_rows)
        for (num_rows, max_context), tiles in self.best.items():
            self.attempt(self.report_step, num_rows, max_context, tiles, "best")
        for num_rows in set(self.batches) & {1, 4, 16, 64}:
            self.attempt(self.report_parts, num_rows)
            self.attempt(self.report_reductions, num_rows)
        (out / f"small_batch_{self.model}.json").write_text(json.dumps(self.table(), indent=1))

    def attempt(self, measure: Any, *args: Any) -> None:
        """A measurement that fails is reported and does not end the run."""
        try:
            measure(*args)
        except Exception as problem:
            print(f"FAIL {self.model} {measure.__name__} {args[:2]}: {str(problem)[:300]!r}", flush=True)

    def check(self, num_rows: int) -> None:
        """Logits against fp32, and bit by bit against the same step once more."""
        batch = self.case.batch(num_rows, CONTEXTS[0])
        exact = self.case.reference(batch)
        tiles = self.case.tiles(num_rows, CONTEXTS[0])
        ours = self.case.run(batch, tiles).clone()
        repeated = all(torch.equal(ours, self.case.run(batch, tiles)) for _ in range(5))
        error = float(((ours - exact).norm(dim=-1) / exact.norm(dim=-1)).max())
        same = int((ours.argmax(-1) == exact.argmax(-1)).sum())
        verdict = "ok  " if error < ERROR_BOUND and repeated else "FAIL"
        print(
            f"{verdict} {self.model} step of {num_rows}: relative error {error:.1e}, argmax equal in {same}, "
            f"{'repeats bit by bit' if repeated else 'does NOT repeat'}",
            flush=True,
        )

    def step_us(self, batch: DecodeBatch, tiles: StepTiles, readings: int = 7) -> float:
        graph = capture(lambda: self.case.run(batch, tiles))
        return replay_us(graph, readings)

    def report_step(
        self, num_rows: int, max_context: int, tiles: StepTiles, label: str = "tuned file"
    ) -> None:
        batch = self.case.batch(num_rows, max_context)
        us, floor = self.step_us(batch, tiles), self.case.floor_us(batch)
        target = TARGETS_MS.get(self.model, {}).get(num_rows) if max_context == CONTEXTS[0] else None
        beside = f", laboratory {target:.3f}" if target else ""
        print(
            f"{self.model} step of {num_rows} x {max_context} ({label}): {us / 1e3:.3f} ms, "
            f"floor {floor / 1e3:.3f}, ratio {us / floor:.2f}{beside}",
            flush=True,
        )

    def sweep(self, num_rows: int) -> None:
        """Products and attention at the short context, then attention alone at the long one."""
        first, *others = CONTEXTS
        tiles = self.case.tiles(num_rows, first)
        for kind in ("attention", *KINDS):
            tiles = self.improve(num_rows, first, tiles, kind)
        self.best[num_rows, first] = tiles
        for max_context in others:
            attention = self.case.tiles(num_rows, max_context).attention
            longer = replace(tiles, attention=attention)
            self.best[num_rows, max_context] = self.improve(num_rows, max_context, longer, "attention")

    def improve(self, num_rows: int, max_context: int, tiles: StepTiles, kind: str) -> StepTiles:
        """The best of the candidates for one kind, the others as they are."""
        batch = self.case.batch(num_rows, max_context)
        candidates: list[Any] = (
            attention_candidates(num_rows, max_context)
            if kind == "attention"
            else list(linear_candidates(self.model, kind, num_rows))
        )
        best, best_us = tiles, self.step_us(batch, tiles, readings=5)
        readings = [f"now {best_us:.0f}"]
        for candidate in candidates:
            if candidate == getattr(tiles, kind) or time.monotonic() > self.deadline:
                continue
            trial = replace(tiles, **{kind: candidate})
            if trial.attention.combine == "projection" and trial.o.kernel != "gemv":
                continue
            try:
                us = self.step_us(batch, trial, readings=5)
            except Exception as problem:
                print(f"FAIL {self.model} {kind} {candidate}: {str(problem)[:200]!r}", flush=True)
                continue
            readings.append(f"{_short(candidate)} {us:.0f}")
            if us < best_us * 0.998:
                best, best_us = trial, us
        print(f"  {self.model} {num_rows} x {max_context} {kind}: {'; '.join(readings)}", flush=True)
        return best

    def report_parts(self, num_rows: int) -> None:
        """Each kind of kernel alone, over all layers in a chain."""
        tiles = self.best.get((num_rows, CONTEXTS[0])) or self.case.tiles(num_rows, CONTEXTS[0])
        for kind in KINDS:
            us = product_us(self.case, kind, getattr(tiles, kind), num_rows)
            n, k = product_shape(self.case.config, kind)
            num_bytes = n * k * (4 if kind == "gate_up" else 2)
            rate = num_bytes / us * 1e6
            print(
                f"  {self.model} rows {num_rows} {kind}: {us:.2f} us, {rate / 1e9:.0f} GB/s, "
                f"{rate / BANDWIDTH:.0%} of the card's {_short(getattr(tiles, kind))}",
                flush=True,
            )
        us = attention_us(self.case, tiles.attention, self.case.batch(num_rows, CONTEXTS[0]))
        print(f"  {self.model} rows {num_rows} attention: {us:.2f} us {_short(tiles.attention)}", flush=True)

    def report_reductions(self, num_rows: int) -> None:
        """What sums in a fixed order cost against atomics, in the step."""
        tiles = self.best.get((num_rows, CONTEXTS[0])) or self.case.tiles(num_rows, CONTEXTS[0])
        atomic = replace(
            tiles, o=replace(tiles.o, reduce="atomic"), down=replace(tiles.down, reduce="atomic")
        )
        batch = self.case.batch(num_rows, CONTEXTS[0])
        fixed_us, atomic_us = self.step_us(batch, tiles), self.step_us(batch, atomic)
        print(
            f"{self.model} step of {num_rows}: split products in fixed order {fixed_us:.1f} us, "
            f"by atomics {atomic_us:.1f} us",
            flush=True,
        )

    def table(self) -> dict[str, Any]:
        """The best tiles in the form of kernels/tuned/small_batch.json."""
        batches = []
        for num_rows in sorted({rows for rows, _ in self.best}):
            tiles = self.best[num_rows, CONTEXTS[0]]
            attention = [
                {"max_context": context, **_fields(best.attention)}
                for (rows, context), best in sorted(self.best.items(), key=lambda item: item[0])
                if rows == num_rows
            ]
            linear = {kind: _fields(getattr(tiles, kind)) for kind in KINDS}
            batches.append({"max_rows": num_rows, **linear, "attention": attention})
        return {
            "device": torch.cuda.get_device_name(CUDA),
            "model": f"Qwen3-{self.model}",
            "shape": asdict(step_shape(self.case.config)),
            "batches": batches,
        }


def _fields(tile: LinearTile | AttentionTile) -> dict[str, Any]:
    return asdict(tile)


def _short(tile: LinearTile | AttentionTile) -> str:
    return "(" + ", ".join(str(value) for value in asdict(tile).values()) + ")"
