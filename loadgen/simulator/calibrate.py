"""`octavo calibrate`: load a running server for some minutes, read its logs, write a profile."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from engine.config import SchedulerConfig
from engine.record import RequestRecord
from engine.record.event_log import RecordFileError, read_event_log
from engine.record.step_log import read_step_log
from loadgen.cli.explain import refuse_in_one_line, tell_written
from loadgen.prompts import TokenRange
from loadgen.run.preflight import ServerUnusableError
from loadgen.simulator.fit import fit_profile
from loadgen.simulator.front_end import ClientView
from loadgen.simulator.profile import Line, Profile, ProfileError, write_profile
from loadgen.simulator.sweep import Phase, Sweep

_LOG_DELAY_S = 0.5  # the server writes its logs a few hundredths of a second late


def add_arguments(parser: argparse.ArgumentParser) -> None:
    refuse_in_one_line(parser)
    parser.description = (
        "Learn how long a server's steps take, for `octavo simulate`. The server runs on this machine with "
        "--step-log and --event-log, and serves nobody else meanwhile."
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    parser.add_argument("--step-log", required=True, metavar="FILE", help="of the server")
    parser.add_argument("--event-log", required=True, metavar="FILE", help="of the server")
    parser.add_argument(
        "-o", "--output", default="profile.json", metavar="FILE", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=180.0, metavar="S", help="of load (default: %(default)s)"
    )
    parser.add_argument(
        "--max-prompt-tokens", type=int, metavar="N", help="default: what one step may compute"
    )
    parser.add_argument("--vocab-size", type=int, metavar="N", help="for a vocabulary below 30000")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--phases", metavar="FILE", help="keep what the clients saw, so that logs can be fitted again"
    )
    parser.add_argument(
        "--fit-only",
        action="store_true",
        help="send nothing: fit the logs, and --phases, of an earlier sweep",
    )


def run(arguments: argparse.Namespace) -> int:
    """0, 1 if something cannot be read or fitted, 4 if the server cannot be used."""
    try:
        phases = read_phases(arguments.phases) if arguments.fit_only else _sweep(arguments)
        print("fitting the logs", file=sys.stderr)
        profile = fit_logs(arguments.step_log, arguments.event_log, phases)
        write_profile(profile, arguments.output)
    except (ProfileError, RecordFileError, ValueError) as error:
        print(f"octavo calibrate: {error}", file=sys.stderr)
        return 1
    except (ServerUnusableError, OSError) as error:
        print(f"octavo calibrate: {error}", file=sys.stderr)
        return 4
    print(render_fit(profile))
    tell_written(arguments.output)
    return 0


def _sweep(arguments: argparse.Namespace) -> list[Phase]:
    header, _ = read_step_log(arguments.step_log)
    limits = SchedulerConfig(**header["config"]["limits"])
    longest = min(limits.max_num_batched_tokens, limits.max_model_len // 2)
    sweep = Sweep(
        arguments.base_url,
        limits,
        seconds=arguments.seconds,
        max_prompt_tokens=min(arguments.max_prompt_tokens or longest, longest),
        token_range=(
            TokenRange.of_vocabulary(arguments.vocab_size) if arguments.vocab_size else TokenRange()
        ),
        seed=arguments.seed,
    )
    phases = sweep.run()
    time.sleep(_LOG_DELAY_S)
    if arguments.phases:
        Path(arguments.phases).write_bytes(orjson.dumps([asdict(phase) for phase in phases]))
    return phases


def read_phases(path: str | Path | None) -> list[Phase]:
    """None without a path. What else a file of another version tells of a phase is not needed."""
    phases = orjson.loads(Path(path).read_bytes()) if path else []
    return [Phase(**{name: phase[name] for name in Phase.__slots__}) for phase in phases]


def fit_logs(step_log: str | Path, event_log: str | Path, phases: list[Phase]) -> Profile:
    """Fit what the logs hold of these phases; all of it, and without the client's view, if there are none."""
    header, entries = read_step_log(step_log)
    _, records = read_event_log(event_log)
    if not phases:
        return fit_profile(header, entries, records)
    begin_ns, end_ns = phases[0].begin_ns, phases[-1].end_ns
    entries = [entry for entry in entries if begin_ns <= entry.scheduled_at_ns < end_ns]
    calm = [phase for phase in phases if phase.is_calm]
    seen = [ClientView(*view) for phase in calm for view in phase.seen]
    return fit_profile(header, entries, _records_of(calm, records), seen)


def _records_of(phases: list[Phase], records: list[RequestRecord]) -> list[RequestRecord]:
    """The requests that the clients of these phases sent and got answered."""
    return [
        record
        for record in records
        if record.finish_reasons == ["length"]
        and any(phase.begin_ns <= record.arrived_ns < phase.end_ns for phase in phases)
    ]


def render_fit(profile: Profile) -> str:
    """What was measured and how well the model explains steps that it has not seen."""
    host, front_end = profile.host, profile.front_end
    lines = [f"{profile.fit['num_steps']} steps of {profile.source['model']} on {profile.source['machine']}"]
    for name in ("decode_only", "with_chunks"):
        figures: dict[str, Any] | None = profile.fit.get(name)
        if figures is None:
            lines.append(f"  {name}: no such step was seen")
            continue
        lines.append(
            f"  {name}: error of a held-out step {figures['mean_error']:.1%} mean, "
            f"{figures['median_error']:.1%} median, {figures['p95_error']:.1%} p95; "
            f"of all together {figures['total_error']:+.1%} ({figures['held_out_steps']} steps, up to "
            f"{figures['max_decode_rows']} decodes and {figures['max_prompt_rows']} prompt tokens)"
        )
    launches = {"decodes": host.launch_decodes, "chunks": host.launch_chunks}
    if host.launch_eager is not None:
        launches["chunks without a graph"] = host.launch_eager
    for name, cost in launches.items():
        lead = f", of which the device waits for {cost.lead_s * 1e6:.0f} us at most"
        lines.append(f"  host: launch {name} {_line(cost.seconds, 'sequence')}{lead}")
    lines.append(
        f"  host: plan {_line(host.schedule, 'sequence')}, settle {_line(host.commit, 'token')}, "
        f"between turns {host.pause_s * 1e6:.0f} us"
    )
    lines.append(
        f"  front end: {_line(front_end.before, 'prompt token')} before, "
        f"{_line(front_end.delivery, 'token')} of a step to deliver it"
    )
    return "\n".join(lines)


def _line(line: Line, what: str) -> str:
    return f"{line.constant * 1e6:.0f} us + {line.slope * 1e6:.2f} us/{what}"
