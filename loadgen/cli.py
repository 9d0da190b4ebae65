"""`octavo replay TRACE`: the order of the steps, and the exit code."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson

from loadgen.arguments import add_arguments
from loadgen.client import ConnectionPool, Server
from loadgen.measure import RequestResult
from loadgen.preflight import RequestFactory, ServedModel, ServerUnusableError, served_model, warm_up
from loadgen.progress import Progress
from loadgen.prompts import PromptBuilder, TokenRange
from loadgen.replay import PreparedRequest, Replay
from loadgen.report.text import render_text
from loadgen.runlog import SCHEMA, RunLog
from loadgen.schedule import Schedule, ScheduleOptions, build_schedule, ideal_hit_rate
from loadgen.summary import summarize
from loadgen.traces import Trace, TraceError, read_trace

__all__ = ["add_arguments", "run"]

EXIT_VALID, EXIT_USAGE, EXIT_LOAD_INVALID, EXIT_SERVER_UNUSABLE, EXIT_INTERRUPTED = 0, 1, 3, 4, 130
SPARE_CONNECTIONS = 32  # kept open ahead of need, so that requests of a burst need not wait for one


def run(arguments: argparse.Namespace) -> int:
    """Replay a trace. Returns the exit code that the epilog of the parser tells."""
    try:
        _check_writable(arguments.output, arguments.summary_json)
        trace = read_trace(arguments.trace)
        server = Server.resolve(arguments.base_url, arguments.api_key)
        return _run_loop(_replay(arguments, trace, server))
    except (TraceError, ValueError) as error:
        print(f"octavo replay: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ServerUnusableError as error:
        print(f"octavo replay: {arguments.base_url}: {error}", file=sys.stderr)
        return EXIT_SERVER_UNUSABLE
    except OSError as error:
        print(f"octavo replay: {arguments.base_url}: {error}", file=sys.stderr)
        return EXIT_SERVER_UNUSABLE
    except KeyboardInterrupt:  # before the first request; later ones end in a report
        return EXIT_INTERRUPTED


async def _replay(arguments: argparse.Namespace, trace: Trace, server: Server) -> int:
    pool = ConnectionPool(server, min(SPARE_CONNECTIONS, arguments.max_inflight or SPARE_CONNECTIONS))
    model = await served_model(pool, server, arguments.model)
    schedule = build_schedule(trace, _schedule_options(arguments, model))
    nonce = _nonce(arguments, trace)
    token_range = (
        TokenRange.of_vocabulary(arguments.vocab_size) if arguments.vocab_size else arguments.token_range
    )
    factory = RequestFactory(
        server=server,
        model=model.name,
        prompts=PromptBuilder(trace, token_range, seed=arguments.seed, nonce=nonce),
        temperature=arguments.temperature,
        run_id=f"replay-{os.urandom(4).hex()}",
    )
    span_s = schedule.requests[-1].intended_ns / 1e9
    print(f"{len(schedule.requests)} requests over {span_s:.1f} s to {model.name}", file=sys.stderr)
    requests = [factory.prepare(request) for request in schedule.requests]
    await warm_up(pool, factory, schedule.requests[: arguments.warmup], arguments.timeout)
    await pool.open_spares()
    header = _run_header(arguments, trace, schedule, factory, nonce)
    log = RunLog(arguments.output, header)
    results, end = await _measured_run(arguments, pool, requests, log)
    log.end(end)
    await pool.close()
    return _conclude(arguments, summarize(header, results, end))


async def _measured_run(
    arguments: argparse.Namespace, pool: ConnectionPool, requests: list[PreparedRequest], log: RunLog
) -> tuple[list[RequestResult], dict[str, Any]]:
    results: list[RequestResult] = []
    progress = Progress(len(requests))

    def keep(result: RequestResult) -> None:
        results.append(result)
        log.add(result)

    def tick(replay: Replay) -> None:
        log.flush()
        progress.update(
            finished=replay.finished, failed=replay.failed, in_flight=replay.in_flight, waiting=replay.waiting
        )

    replay = Replay(
        pool,
        requests,
        timeout_s=arguments.timeout,
        max_inflight=arguments.max_inflight,
        on_result=keep,
        on_tick=tick,
    )
    cpu_s, wall_s = time.process_time(), time.monotonic()
    await replay.run()
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    progress.close()
    end = {"cpu_s": cpu_s, "wall_s": wall_s, "interrupted": replay.interrupted}
    return sorted(results, key=lambda result: result.index), end


def _conclude(arguments: argparse.Namespace, summary: dict[str, Any]) -> int:
    """Print and write the summary; the exit code follows from it."""
    print(render_text(summary))
    if arguments.summary_json:
        Path(arguments.summary_json).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    if summary["client"]["interrupted"]:
        return EXIT_INTERRUPTED
    if not summary["requests"]["succeeded"]:
        print("octavo replay: every request failed", file=sys.stderr)
        return EXIT_SERVER_UNUSABLE
    return EXIT_VALID if summary["verdict"]["valid"] else EXIT_LOAD_INVALID


def _check_writable(*paths: str | None) -> None:
    """Raise ValueError now, not after the run, for a file that cannot be written."""
    for path in map(Path, filter(None, paths)):
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{path}: cannot be written")


def _schedule_options(arguments: argparse.Namespace, model: ServedModel) -> ScheduleOptions:
    return ScheduleOptions(
        time_scale=arguments.time_scale,
        rate_scale=arguments.rate_scale,
        start_s=arguments.start,
        duration_s=arguments.duration,
        limit=arguments.limit,
        max_input_tokens=arguments.max_input_tokens,
        max_output_tokens=arguments.max_output_tokens,
        max_model_len=arguments.max_model_len or model.max_model_len,
        cap_mode=arguments.cap_mode,
        dejitter=arguments.dejitter,
        seed=arguments.seed,
    )


def _nonce(arguments: argparse.Namespace, trace: Trace) -> int:
    if arguments.nonce is not None:
        return int(arguments.nonce)
    return 0 if trace.block_size else int.from_bytes(os.urandom(6))


def _run_header(
    arguments: argparse.Namespace, trace: Trace, schedule: Schedule, factory: RequestFactory, nonce: int
) -> dict[str, Any]:
    """What a reader needs to judge or repeat the run; everything but the results."""
    lag_p50, lag_p99, lag_max = arguments.lag_limits
    return {
        "schema": SCHEMA,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "run_id": factory.run_id,
        "base_url": arguments.base_url,
        "model": factory.model,
        "trace": {
            "path": trace.path,
            "sha256": hashlib.sha256(Path(trace.path).read_bytes()).hexdigest(),
            "format": trace.format,
            "block_size": trace.block_size,
            "rows_read": trace.rows_read,
        },
        "scheduled": len(schedule.requests),
        "dropped": dict(trace.dropped + schedule.dropped),
        "clipped": dict(schedule.clipped),
        "dejitter_ms": schedule.dejitter_ns / 1e6 if schedule.dejitter_ns is not None else None,
        "time_scale": arguments.time_scale,
        "rate_scale": arguments.rate_scale,
        "seed": arguments.seed,
        "nonce": nonce,
        "max_inflight": arguments.max_inflight,
        "ideal_cache_hit_rate": ideal_hit_rate(schedule.requests, trace.block_size),
        "limits": {"lag_p50_ms": lag_p50, "lag_p99_ms": lag_p99, "lag_max_ms": lag_max, "rate_error": 0.001},
        "python": platform.python_version(),
    }


def _run_loop(main: Coroutine[Any, Any, int]) -> int:
    """On uvloop where it is installed: about half of asyncio's CPU time per chunk."""
    _allow_many_connections()
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop as loop_factory
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one, since each request in flight has a socket."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
