"""`octavo simulate TRACE --profile FILE`: a run in virtual time, a capacity plan, or a check of parity."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import orjson

from engine.config import ConfigError
from engine.record.event_log import RecordFileError, read_event_log
from engine.record.step_log import read_step_log
from loadgen.cli import exit_codes
from loadgen.cli.replay import schedule_options
from loadgen.figures.objectives import Objective
from loadgen.figures.summary import summarize
from loadgen.record import RunError, files, read_run
from loadgen.record.writer import prepare_directory
from loadgen.report.text import render_text
from loadgen.run.launch import Load
from loadgen.run.loads import trace_load
from loadgen.schedule import Schedule
from loadgen.simulator.arguments import add_arguments, setting_of
from loadgen.simulator.capacity import Plan, evaluate, plans_by_rate
from loadgen.simulator.parity import check_parity
from loadgen.simulator.profile import Profile, ProfileError, read_profile
from loadgen.simulator.results import write_run
from loadgen.simulator.traffic import Traffic, traffic_of_run, traffic_of_trace
from loadgen.traces import TraceError, read_trace

__all__ = ["add_arguments", "run"]

PARITY_TARGET = 0.99
_PLAN_HEADER = "  req/s  replicas  attained  TTFT p50   p99 ms  TPOT p50 ms  device busy"


def run(arguments: argparse.Namespace) -> int:
    """0; 1 for input that cannot be used, and for a parity below its target."""
    try:
        if arguments.parity:
            return _parity(*arguments.parity)
        if not arguments.trace or not arguments.profile:
            raise ValueError("a TRACE and a --profile are needed, or --parity")
        profile = read_profile(arguments.profile)
        if Path(arguments.trace).is_dir():
            return _run_once(arguments, profile, traffic_of_run(Path(arguments.trace)))
        trace = read_trace(
            arguments.trace, start_s=arguments.start, duration_s=arguments.duration, seed=arguments.seed
        )
        load = trace_load(trace, schedule_options(arguments))
        if arguments.plan:
            return _plan(arguments, profile, load)
        return _run_once(arguments, profile, traffic_of_trace(load, profile.limits.max_model_len))
    except (TraceError, RunError, ProfileError, RecordFileError, ConfigError, ValueError) as error:
        print(f"octavo simulate: {error}", file=sys.stderr)
        return exit_codes.USAGE


def _run_once(arguments: argparse.Namespace, profile: Profile, traffic: Traffic) -> int:
    return (_tally if arguments.tally else _simulate)(arguments, profile, traffic)


def _tally(arguments: argparse.Namespace, profile: Profile, traffic: Traffic) -> int:
    """Show the few figures that can be had without a record."""
    begin_s = time.process_time()
    objective = _objective(arguments)
    plan = evaluate(profile, setting_of(arguments), traffic.requests, traffic.block_size, objective)
    print(f"{_PLAN_HEADER}\n{_plan_line(plan.rate, plan)}")
    print(f"{len(traffic.requests)} requests in {time.process_time() - begin_s:.1f} s of CPU")
    return exit_codes.VALID


def _objective(arguments: argparse.Namespace) -> Objective:
    if len(arguments.slo) != 1:
        raise ValueError("--plan and --tally need one --slo")
    return Objective.parse(arguments.slo[0])


def _simulate(arguments: argparse.Namespace, profile: Profile, traffic: Traffic) -> int:
    """Leave the record of a run, if wanted, and show the figures that it gives."""
    with tempfile.TemporaryDirectory(prefix="octavo-") as temporary:
        directory = prepare_directory(arguments.output or temporary)
        begin_s = time.process_time()
        fleet = write_run(directory, profile, setting_of(arguments), traffic, arguments.slo)
        cpu_s = time.process_time() - begin_s
        summary = summarize(read_run(directory))
        (directory / files.SUMMARY).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    print(render_text(summary))
    span_s = max(replica.now_ns for replica in fleet.replicas) / 1e9
    steps = sum(replica.counts.steps for replica in fleet.replicas)
    preemptions = sum(replica.counts.preemptions for replica in fleet.replicas)
    print(
        f"simulated {span_s:.1f} s in {cpu_s:.2f} s of CPU ({span_s / cpu_s:.0f} times real time): "
        f"{steps} steps, {preemptions} preemptions"
    )
    return exit_codes.VALID


def _plan(arguments: argparse.Namespace, profile: Profile, load: Load) -> int:
    """Print the smallest fleet for each rate."""
    objective = _objective(arguments)
    as_it_is = load.schedule(profile.limits.max_model_len).requests
    recorded_rate = len(as_it_is) / max(as_it_is[-1].intended_ns / 1e9, 1e-9)
    options = schedule_options(arguments)

    def schedule_at(rate: float) -> Schedule:
        scaled = replace(options, rate_scale=options.rate_scale * rate / recorded_rate)
        return trace_load(load.trace, scaled).schedule(profile.limits.max_model_len)

    loads = (schedule_at(rate).requests for rate in arguments.plan)
    setting = setting_of(arguments)
    print(_PLAN_HEADER)
    for rate, plan in zip(
        arguments.plan,
        plans_by_rate(profile, setting, loads, load.trace.block_size, objective, arguments.target),
        strict=True,
    ):
        print(_plan_line(rate, plan), flush=True)
    return exit_codes.VALID


def _plan_line(rate: float, plan: Plan | None) -> str:
    if plan is None:
        return f"{rate:7.4g}  no fleet meets the objective often enough"
    return (
        f"{plan.rate:7.4g}  {plan.replicas:8d}  {plan.attainment:8.1%}  {plan.ttft_p50_s * 1e3:8.1f}  "
        f"{plan.ttft_p99_s * 1e3:7.1f}  {plan.tpot_p50_s * 1e3:11.2f}  {plan.utilization:11.0%}"
    )


def _parity(step_log: str, event_log: str) -> int:
    header, entries = read_step_log(step_log)
    _, records = read_event_log(event_log)
    if "limits" not in header["config"]:
        raise ValueError(f"{step_log}: the header does not tell the scheduler's limits")
    parity = check_parity(header, entries, records)
    print(f"{parity.num_equal} of {parity.num_steps} steps are decided alike ({parity.share:.2%})")
    if parity.first_difference is not None:
        print(f"first difference: {parity.first_difference}")
    return exit_codes.VALID if parity.share >= PARITY_TARGET else exit_codes.USAGE
