"""From the logs of a calibration run to a profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.config import SchedulerConfig
from engine.record import RequestRecord, StepEntry
from loadgen.simulator.cost_fit import at_rest, chunk_cost, decode_cost, lead_of
from loadgen.simulator.front_end import ClientView, front_end_costs
from loadgen.simulator.least_squares import robust_line
from loadgen.simulator.padding import Padding
from loadgen.simulator.profile import (
    HostCosts,
    LaunchCost,
    Line,
    Profile,
    ProfileError,
    max_step_rows,
)
from loadgen.simulator.step_model import StepModel, StepTimer
from loadgen.simulator.step_times import MeasuredStep, is_blocking, measured_steps

_MIN_STEPS = 30
_HELD_UP = 3  # times as long as usual: something else took the launching thread's time
_HELD_OUT = 5  # every fifth step judges the fit and takes no part in it


def fit_profile(
    header: dict[str, Any],
    entries: list[StepEntry],
    records: list[RequestRecord],
    seen: Sequence[ClientView] = (),
) -> Profile:
    """`header` is the step log's, `seen` what clients saw of the requests of `records`.

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
    blocking = is_blocking(entries)
    padding = Padding.from_json(config.get("padding"))
    host = _host_costs(fitted, padding)
    calm = fitted if blocking else _launched_in_time(fitted, host, padding)
    leads = (0.0, 0.0) if blocking else _leads(fitted, padding, limits)
    model = _step_model(calm, padding, leads)
    return Profile(
        limits=limits,
        pipeline_depth=config["pipeline_depth"],
        blocking_launch=blocking,
        step=model,
        host=host.with_leads(*leads),
        front_end=front_end_costs(entries, records, seen),
        source={
            "model": config.get("model") or "embedded",
            "load_format": config.get("load_format"),
            "machine": config.get("machine"),
            "octavo_version": header["octavo_version"],
        },
        fit=fit_quality(model, limits, steps[::_HELD_OUT], leads) | {"num_steps": len(steps)},
    )


def fit_quality(
    model: StepModel, limits: SchedulerConfig, steps: list[MeasuredStep], leads_s: tuple[float, float]
) -> dict[str, Any]:
    """For each kind of step: relative errors of single predictions, and of the sum of all, noise included."""
    quality = {}
    for name, cost, lead_s in (
        ("decode_only", model.decode_only, leads_s[0]),
        ("with_chunks", model.with_chunks, leads_s[1]),
    ):
        kind = _of_kind(steps, cost is model.with_chunks)
        if not kind:
            continue
        measured = np.array([step.device_s for step in kind])
        predicted = _predicted_s(model, limits, kind, lead_s)
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


def _predicted_s(
    model: StepModel, limits: SchedulerConfig, steps: list[MeasuredStep], lead_s: float
) -> np.ndarray:
    timer = StepTimer(model, max_rows=max_step_rows(limits))
    return np.array([timer.seconds(step.shape, step.exertion) + step.waited_s(lead_s) for step in steps])


def _of_kind(steps: list[MeasuredStep], with_chunks: bool) -> list[MeasuredStep]:
    return [step for step in steps if bool(step.shape.num_chunks) == with_chunks]


def _step_model(steps: list[MeasuredStep], padding: Padding, leads_s: tuple[float, float]) -> StepModel:
    decodes, chunks = _of_kind(steps, False), _of_kind(steps, True)
    decode_only = decode_cost(decodes, padding, leads_s[0])
    return StepModel(decode_only, chunk_cost(chunks, padding, leads_s[1], decode_only), padding)


def _leads(steps: list[MeasuredStep], padding: Padding, limits: SchedulerConfig) -> tuple[float, float]:
    """`lead_of` of both kinds, from a model of the steps that no lead could be seen in."""
    decodes, chunks = _of_kind(steps, False), _of_kind(steps, True)
    model = _step_model(at_rest(decodes) + at_rest(chunks), padding, (0.0, 0.0))
    decode_lead, chunk_lead = (
        lead_of(kind, _predicted_s(model, limits, kind, 0.0)) for kind in (decodes, chunks)
    )
    return decode_lead, chunk_lead


def _launched_in_time(steps: list[MeasuredStep], host: HostCosts, padding: Padding) -> list[MeasuredStep]:
    """Without those whose launch was held up: the device waited for it, and what it took is not its own."""
    return [
        step
        for step in steps
        if step.launch_s <= _HELD_UP * host.launch(step.shape, padding).seconds.of(step.shape.num_sequences)
    ]


def _host_costs(steps: list[MeasuredStep], padding: Padding) -> HostCosts:
    """Still without leads."""
    eager = [step for step in steps if padding.is_eager(step.shape)]
    chunks = [step for step in _of_kind(steps, True) if not padding.is_eager(step.shape)]
    pauses = [step.pause_s for step in steps if step.pause_s is not None]
    return HostCosts(
        schedule=_line(_sequences(steps), [step.schedule_s for step in steps]),
        launch_decodes=_launch_cost(_of_kind(steps, False)),
        launch_chunks=_launch_cost(chunks),
        launch_eager=_launch_cost(eager) if eager else None,
        commit=_line([step.num_generated for step in steps], [step.commit_s for step in steps]),
        pause_s=float(np.median(pauses)) if pauses else 0.0,
    )


def _launch_cost(steps: list[MeasuredStep]) -> LaunchCost:
    return LaunchCost(_line(_sequences(steps), [step.launch_s for step in steps]))


def _sequences(steps: list[MeasuredStep]) -> list[int]:
    return [step.shape.num_sequences for step in steps]


def _line(counts: Sequence[float], seconds: Sequence[float]) -> Line:
    return Line(*robust_line(counts, seconds)) if len(counts) else Line()
