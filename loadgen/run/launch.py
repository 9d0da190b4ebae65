"""The order of a run: look at the server, make the load, write it down, send it, read back, sum up."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.client import ConnectionPool, Server
from loadgen.figures.summary import summarize
from loadgen.prompts import PromptBuilder
from loadgen.record import Run, files, read_run
from loadgen.record.writer import prepare_directory, write_intent
from loadgen.run.counters import Counters
from loadgen.run.options import RunOptions
from loadgen.run.preflight import ServedModel, flush_cache, served_model, warm_up
from loadgen.run.requests import RequestFactory
from loadgen.run.worker import Job, run_loop
from loadgen.run.workers import run_workers
from loadgen.schedule import Schedule
from loadgen.schedule.cache import ideal_hit_rate
from loadgen.traces.records import Trace

RATE_ERROR_LIMIT = 0.001
GAP_DISTANCE_LIMIT = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. `schedule` makes the requests of the trace's rows once the model's limit is known;
    `description` goes into the record."""

    trace: Trace
    schedule: Callable[[int | None], Schedule]
    description: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    run: Run
    summary: dict[str, Any]


def run_load(load: Load, options: RunOptions, output: str | None) -> Outcome:
    """Send a load and sum it up. With no `output` the record is thrown away.

    Raises ValueError for a load or a directory that cannot be, ServerUnusableError or OSError for a server
    that cannot be measured, WorkerError if a process dies.
    """
    if output is not None:
        return _run_in(prepare_directory(output), load, options)
    with tempfile.TemporaryDirectory(prefix="octavo-") as directory:
        return _run_in(Path(directory), load, options)


def _extent(schedule: Schedule) -> str:
    """How long it takes to send the requests is known where none waits for an answer."""
    requests = schedule.requests
    text = f"{len(requests)} requests"
    if any(request.follows for request in requests):
        return text
    return f"{text} over {max(request.intended_ns for request in requests) / 1e9:.1f} s"


def _run_in(directory: Path, load: Load, options: RunOptions) -> Outcome:
    server = Server.resolve(options.base_url, options.api_key)
    model = run_loop(_look_at(server, options))
    schedule = load.schedule(model.max_model_len)
    factory = _factory(load, options, server, model)
    print(f"{_extent(schedule)} to {model.name}", file=sys.stderr)
    if options.warmup:
        run_loop(_warm_up(factory, schedule, options))
    write_intent(directory, environment(load, schedule, factory, model, options), schedule.requests)
    run_workers(Job(schedule.requests, factory, options, directory, Counters(options.workers)))
    run = read_run(directory)
    summary = summarize(run)
    (directory / files.SUMMARY).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    return Outcome(run, summary)


async def _look_at(server: Server, options: RunOptions) -> ServedModel:
    pool = ConnectionPool(server)
    model = await served_model(pool, server, options.model)
    if options.flush_cache is not None:
        await flush_cache(pool, server, options.flush_cache)
    await pool.close()
    return model


async def _warm_up(factory: RequestFactory, schedule: Schedule, options: RunOptions) -> None:
    pool = ConnectionPool(factory.server)
    await warm_up(pool, factory, schedule.requests[: options.warmup], options.patience.total_s)
    await pool.close()


def _factory(load: Load, options: RunOptions, server: Server, model: ServedModel) -> RequestFactory:
    nonce = options.nonce
    if nonce is None:
        nonce = 0 if load.trace.block_size else int.from_bytes(os.urandom(6))
    return RequestFactory(
        server=server,
        model=model.name,
        prompts=PromptBuilder(load.trace, options.token_range, seed=options.seed, nonce=nonce),
        run_id=f"{load.description['kind']}-{os.urandom(4).hex()}",
        endpoint=options.endpoint,
        temperature=options.temperature,
        ignore_eos=options.ignore_eos,
        extra_body=options.extra_body,
    )


def describe_load(load: Load, schedule: Schedule) -> dict[str, Any]:
    """The part of a run's environment that a server has no influence on."""
    return {
        "load": load.description,
        "scheduled": len(schedule.requests),
        "dropped": dict(load.trace.dropped + schedule.dropped),
        "clipped": dict(schedule.clipped),
        "dejitter_ms": schedule.dejitter_ns / 1e6 if schedule.dejitter_ns is not None else None,
        "ideal_cache_hit_rate": ideal_hit_rate(schedule.requests, load.trace.block_size),
    }


def environment(
    load: Load, schedule: Schedule, factory: RequestFactory, model: ServedModel, options: RunOptions
) -> dict[str, Any]:
    """What a reader needs to judge or repeat the run; everything but the results."""
    limits = options.lag_limits
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": _without_secret(sys.argv, options.api_key),
        "run_id": factory.run_id,
        "base_url": options.base_url,
        "endpoint": options.endpoint,
        "model": model.name,
        "model_card": model.card,
        **describe_load(load, schedule),
        "seed": options.seed,
        "nonce": factory.prompts.nonce,
        "workers": options.workers,
        "max_inflight": options.max_inflight,
        "retries": options.retries,
        "objectives": list(options.objectives),
        "limits": {
            "lag_p50_ms": limits.p50_ms,
            "lag_p99_ms": limits.p99_ms,
            "lag_max_ms": limits.max_ms,
            "rate_error": RATE_ERROR_LIMIT,
            "gap_distance": GAP_DISTANCE_LIMIT,
        },
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
    }


def _without_secret(argv: list[str], secret: str | None) -> list[str]:
    return [argument.replace(secret, "***") if secret else argument for argument in argv]
