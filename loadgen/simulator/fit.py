"""From the logs of a calibration run to a profile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from engine.config import SchedulerConfig
from engine.record import RequestRecord, StepEntry
from loadgen.simulator.least_squares import robust_nonnegative
from loadgen.simulator.profile import FrontEndCosts, HostCosts, Profile, ProfileError, max_step_rows
from loadgen.simulator.step_model import Curve, StepCost, StepModel, StepTimer
from loadgen.simulator.step_times import MeasuredStep, is_blocking, measured_steps

_MIN_STEPS = 30
_MIN_SAMPLES = 3  # in each piece of a curve
_NOISE_LEVELS = 50
_HELD_OUT = 5  # every fifth step judges the fit and takes no part in it


def fit_profile(
    header: dict[str, Any],
    entries: list[StepEntry],
    records: list[RequestRecord],
    client_ttft_s: Sequence[float] = (),
) -> Profile:
    """`header` is the step log's, `client_ttft_s` what clients saw for the requests of `records`.

    Raises `ProfileError` for a log with too few steps or without the limits of its scheduler.
    """
    config = header["config"]
    if "limits" not in config:
        raise ProfileError("the step log does not tell the scheduler's limits; it is of an older version")
    limits = SchedulerConfig(**config["limits"])
    steps = measured_steps(entries)
    if len(steps) < _MIN_STEPS:
        raise ProfileError(f"{len(steps)} timed steps are too few to fit anything")
    fitted = [step for place, step in enumerate(steps) if place % _HELD_OUT]
    model = StepModel(_decode_cost(_of_kind(fitted, False)), _chunk_cost(_of_kind(fitted, True)))
    blocking = is_blocking(entries)
    return Profile(
        limits=limits,
        pipeline_depth=config["pipeline_depth"],
        blocking_launch=blocking,
        step=model,
        host=_host_costs(fitted),
        front_end=_front_end(records, client_ttft_s),
        source={
            "model": config.get("model") or "embedded",
            "load_format": config.get("load_format"),
            "machine": config.get("machine"),
            "octavo_version": header["octavo_version"],
        },
        fit=fit_quality(model, limits, steps[::_HELD_OUT]) | {"num_steps": len(steps)},
    )


def fit_quality(model: StepModel, limits: SchedulerConfig, steps: list[MeasuredStep]) -> dict[str, Any]:
    """For each kind of step: relative errors of single predictions, and of the sum of all, noise included."""
    timer = StepTimer(model, max_rows=max_step_rows(limits))
    quality = {}
    for name, cost, with_chunks in (
        ("decode_only", model.decode_only, False),
        ("with_chunks", model.with_chunks, True),
    ):
        kind = _of_kind(steps, with_chunks)
        if not kind:
            continue
        measured = np.array([step.device_s for step in kind])
        predicted = np.array([timer.seconds(step.shape, step.after_idle) for step in kind])
        errors = np.abs(predicted - measured) / measured
        quality[name] = {
            "held_out_steps": len(kind),
            "mean_error": float(errors.mean()),
            "median_error": float(np.median(errors)),
            "p95_error": float(np.percentile(errors, 95)),
            "total_error": float(predicted.sum() * np.mean(cost.noise or [1]) / measured.sum() - 1),
            "max_decode_rows": max(step.shape.decode_rows for step in kind),
            "max_prompt_rows": max(step.shape.prompt_rows for step in kind),
        }
    return quality


def _of_kind(steps: list[MeasuredStep], with_chunks: bool) -> list[MeasuredStep]:
    return [step for step in steps if bool(step.shape.num_chunks) == with_chunks]


def _decode_cost(steps: list[MeasuredStep]) -> StepCost:
    fit = _CostFit(steps)
    fit.add_curve("decode_rows", _stair_knots(fit.column("decode_rows")))
    fit.add_slope("decode_context")
    fit.add_after_idle()
    return fit.solve()


def _chunk_cost(steps: list[MeasuredStep]) -> StepCost:
    fit = _CostFit(steps)
    fit.add_constant()
    for name in ("decode_rows", "prompt_rows", "total_rows"):
        fit.add_curve(name, _even_knots(fit.column(name)))
    for name in ("decode_context", "num_chunks", "chunk_work"):
        fit.add_slope(name)
    fit.add_after_idle()
    return fit.solve()


def _stair_knots(rows: np.ndarray) -> np.ndarray:
    """Each number of rows that was seen, thinned to where padded batches may begin and end."""
    values, counts = np.unique(rows, return_counts=True)
    at_an_edge = (values <= 16) | (values % 8 <= 1)
    return values[(counts >= _MIN_SAMPLES) & at_an_edge]


def _even_knots(rows: np.ndarray) -> np.ndarray:
    """Knots that grow by a fifth, as far as enough samples lie between them."""
    rows = np.sort(rows[rows > 0])
    knots: list[int] = []
    for place in range(0, len(rows), _MIN_SAMPLES):
        if not knots or rows[place] > max(knots[-1] * 1.2, knots[-1] + 1):
            knots.append(int(rows[place]))
    return np.array(knots, dtype=np.int64)


class _CostFit:
    """Collects the columns of a least-squares problem and reads a `StepCost` from its solution."""

    def __init__(self, steps: list[MeasuredStep]) -> None:
        self._steps = steps
        self._columns: list[np.ndarray] = []
        self._constant: int | None = None  # these say which columns are whose
        self._after_idle: int | None = None
        self._slopes: dict[str, int] = {}
        self._curves: dict[str, tuple[int, np.ndarray]] = {}

    def column(self, name: str) -> np.ndarray:
        return np.array([getattr(step.shape, name) for step in self._steps], dtype=np.float64)

    def add_constant(self) -> None:
        self._constant = self._add([np.ones(len(self._steps))])

    def add_after_idle(self) -> None:
        self._after_idle = self._add([np.array([step.after_idle for step in self._steps], dtype=np.float64)])

    def add_slope(self, name: str) -> None:
        self._slopes[name] = self._add([self.column(name)])

    def add_curve(self, name: str, knots: np.ndarray) -> None:
        """A level where there are rows at all, and a rise between each two knots, none of them negative."""
        if not len(knots):
            return
        rows = self.column(name)
        rises = [np.clip((rows - low) / (high - low), 0, 1) for low, high in pairwise(knots)]
        self._curves[name] = self._add([(rows > 0).astype(np.float64), *rises]), knots

    def solve(self) -> StepCost:
        if not self._steps:
            return StepCost()
        seconds = np.array([step.device_s for step in self._steps])
        design = np.stack(self._columns, axis=1)
        x = robust_nonnegative(design, seconds)
        return StepCost(
            constant=0.0 if self._constant is None else float(x[self._constant]),
            after_idle=0.0 if self._after_idle is None else float(x[self._after_idle]),
            noise=_noise(seconds / np.maximum(design @ x, 1e-9)),
            slopes={name: float(x[place]) for name, place in self._slopes.items()},
            curves={
                name: Curve(knots.astype(int).tolist(), np.cumsum(x[place : place + len(knots)]).tolist())
                for name, (place, knots) in self._curves.items()
            },
        )

    def _add(self, columns: list[np.ndarray]) -> int:
        place = len(self._columns)
        self._columns += columns
        return place


def _noise(factors: np.ndarray) -> list[float]:
    """Means of equal shares of the sorted factors, so that their mean, and so the total time, is kept."""
    count = min(_NOISE_LEVELS, len(factors))
    return [float(part.mean()) for part in np.array_split(np.sort(factors), count)]


def _host_costs(steps: list[MeasuredStep]) -> HostCosts:
    rows = np.array([step.shape.decode_rows + step.shape.num_chunks for step in steps])
    schedule = _line(rows, [step.schedule_s for step in steps])
    commit = _line(np.array([step.num_generated for step in steps]), [step.commit_s for step in steps])
    launch = _line(rows, [step.launch_s for step in steps])
    pauses = [step.pause_s for step in steps if step.pause_s is not None]
    return HostCosts(*schedule, *launch, *commit, pause_s=float(np.median(pauses)) if pauses else 0.0)


def _line(x: np.ndarray, seconds: list[float]) -> tuple[float, float]:
    """Constant and slope, neither negative."""
    design = np.stack([np.ones(len(x)), x.astype(np.float64)], axis=1)
    constant, slope = robust_nonnegative(design, np.array(seconds)).tolist()
    return constant, slope


def _front_end(records: list[RequestRecord], client_ttft_s: Sequence[float]) -> FrontEndCosts:
    """Means can be compared without matching requests: what clients saw beyond the server's own time."""
    finished = [record for record in records if record.first_token_ns and record.tokenized_ns]
    if not finished:
        return FrontEndCosts()
    before = [(record.tokenized_ns - record.arrived_ns) / 1e9 for record in finished]
    constant, slope = _line(np.array([record.num_prompt_tokens for record in finished]), before)
    server_ttft_s = np.mean([(record.first_token_ns - record.arrived_ns) / 1e9 for record in finished])
    delivery_s = float(np.mean(client_ttft_s) - server_ttft_s) if len(client_ttft_s) else 0.0
    return FrontEndCosts(constant, slope, max(delivery_s, 0.0))
