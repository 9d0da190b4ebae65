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
    ROWS,
    TARGETS_MS,
    attention_candidates,
    linear_candidates,
    product_shape,
)
from benchmarks.kernels.small_batch.model_case import CUDA, ModelCase
from benchmarks.kernels.small_batch.parts import attention_us, product_us
from benchmarks.kernels.small_batch.profile import COLUMNS, profile
from benchmarks.kernels.small_batch.timing import capture, replay_us
from kernels.attention.interface import DecodeBatch
from kernels.triton.small_batch.tiles import AttentionTile, LinearTile, StepTiles
from model.small_batch import step_shape

ERROR_BOUND = 3e-2


class StepBenchmark:
    def __init__(
        self, model: str, batches: list[int], contexts: list[int], deadline: float, length: int | None = None
    ) -> None:
        """Products are tuned at the first of the contexts, attention at each; in steps of `length`, if given.

        `deadline` is on `time.monotonic`'s clock: a sweep that reaches it keeps what it has.
        """
        self.model = model
        self.batches = batches
        self.contexts = contexts
        self.length = length
        self.case = ModelCase(MODELS[model], RANKS.get(model, 1))
        self.deadline = deadline
        self.best: dict[tuple[int, int], StepTiles] = {}

    def run(self, out: Path, profiled: list[int]) -> None:
        """`profiled` are the rows of steps whose time is told kernel by kernel, before and after tuning."""
        file = out / f"small_batch_{self.model}.json"
        for num_rows in self.batches:
            self.attempt(self.check, num_rows, self.case.tiles(num_rows, self.contexts[0]))
        for num_rows in self.batches:
            for max_context in self.contexts:
                self.attempt(self.report_step, num_rows, max_context, self.case.tiles(num_rows, max_context))
        self.attempt(self.report_profiles, profiled)
        for num_rows in self.batches:
            self.attempt(self.sweep, num_rows)
            file.write_text(json.dumps(self.table(), indent=1))
        for (num_rows, max_context), tiles in self.best.items():
            self.attempt(self.check, num_rows, tiles)
            self.attempt(self.report_step, num_rows, max_context, tiles, "best")
        self.attempt(self.report_profiles, profiled)
        if profiled:
            return
        for num_rows in set(self.batches) & {1, 4, 16, 64}:
            self.attempt(self.report_parts, num_rows)
            self.attempt(self.report_reductions, num_rows)

    def attempt(self, measure: Any, *args: Any) -> None:
        """A measurement that fails is reported and does not end the run."""
        try:
            measure(*args)
        except Exception as problem:
            print(f"FAIL {self.model} {measure.__name__} {args[:2]}: {str(problem)[:300]!r}", flush=True)

    def batch(self, num_rows: int, max_context: int, padding: int = 0) -> DecodeBatch:
        length = min(self.length or max_context, max_context)
        return self.case.batch(num_rows, max_context, length, padding)

    def check(self, num_rows: int, tiles: StepTiles) -> None:
        """Logits against fp32, and bit by bit against the same step once more."""
        batch = self.case.batch(num_rows, self.contexts[0])
        exact = self.case.reference(batch)
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
        batch = self.batch(num_rows, max_context)
        us, floor = self.step_us(batch, tiles), self.case.floor_us(batch)
        targets = TARGETS_MS.get(self.model, {}) if max_context == CONTEXTS[0] and not self.length else {}
        target = targets.get(num_rows)
        beside = f", laboratory {target:.3f}" if target else ""
        print(
            f"{self.model} step of {num_rows} x {int(batch.context_lens[0])} ({label}): {us / 1e3:.3f} ms, "
            f"floor {floor / 1e3:.3f}, ratio {us / floor:.2f}{beside}",
            flush=True,
        )

    def sweep(self, num_rows: int) -> None:
        """Products and attention at the first context, then attention alone at the others."""
        first, *others = self.contexts
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
        batch = self.batch(num_rows, max_context)
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
            if us < best_us * 0.998:  # once more, in turns: the card's clocks drift by 2 % within a minute
                best_us, us = (self.step_us(batch, t, readings=5) for t in (best, trial))
                best, best_us = (trial, us) if us < best_us * 0.998 else (best, best_us)
        print(f"  {num_rows} x {max_context} {kind}: {', '.join(readings)}", flush=True)
        return best

    def report_profiles(self, batches: list[int]) -> None:
        """What each kernel adds, in us a layer; of head and embedding in us. Rows padded as in serving."""
        max_context = self.contexts[0]
        for num_rows in batches:
            size = next(size for size in ROWS if num_rows <= size)
            batch = self.batch(num_rows, max_context, padding=size - num_rows)
            tiles = self.best.get((size, max_context)) or self.case.tiles(size, max_context)
            graph = capture(lambda: self.case.run(batch, tiles))  # noqa: B023
            us, floor = replay_us(graph), self.case.floor_us(batch)
            parts = profile(graph, self.case.config.num_layers)
            scale = {"lm_head": 1, "embed": 1}
            shown = [
                f"{kind} {adds / (n := scale.get(kind, self.case.config.num_layers)):.1f} ({lasts / n:.1f})"
                for kind in COLUMNS
                for adds, lasts in [parts.get(kind, (0.0, 0.0))]
            ]
            total = sum(adds for adds, _ in parts.values())
            print(
                f"PROFILE {self.model} {num_rows} rows in {size}: {us:.0f} us, "
                f"floor {floor:.0f}, profiled {total:.0f}; adds (lasts): {', '.join(shown)}",
                flush=True,
            )

    def report_parts(self, num_rows: int) -> None:
        """Each kind of kernel alone, over all layers in a chain."""
        tiles = self.best.get((num_rows, self.contexts[0])) or self.case.tiles(num_rows, self.contexts[0])
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
        us = attention_us(self.case, tiles.attention, self.case.batch(num_rows, self.contexts[0]))
        print(f"  {self.model} rows {num_rows} attention: {us:.2f} us {_short(tiles.attention)}", flush=True)

    def report_reductions(self, num_rows: int) -> None:
        """What sums in a fixed order cost against atomics, in the step."""
        tiles = self.best.get((num_rows, self.contexts[0])) or self.case.tiles(num_rows, self.contexts[0])
        atomic = replace(
            tiles, o=replace(tiles.o, reduce="atomic"), down=replace(tiles.down, reduce="atomic")
        )
        batch = self.case.batch(num_rows, self.contexts[0])
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
            tiles = self.best[num_rows, self.contexts[0]]
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
    """The fields, but for words that do not differ."""
    words = ("skinny", "dot", "partials", "kernel")
    return "(" + " ".join(str(value) for value in asdict(tile).values() if value not in words) + ")"
