"""What a request of 64 chunks costs the load generator: `python -m benchmarks.loadgen [--rates 300,1000]`.

One client process against one mock process, so the machine needs two free cores: on a busy one lag and rate
say nothing, and CPU time is somewhat too high. A row for each rate; `asked` and `offered` are req/s.
"""

from __future__ import annotations

import argparse
from typing import Any

from loadgen.mock import Script
from loadgen.run.launch import run_load
from loadgen.run.loads import synthetic_load
from loadgen.run.options import RunOptions
from loadgen.schedule.options import ScheduleOptions
from loadgen.schedule.synthetic import SyntheticLoad
from loadgen.selftest.mock_process import mock_process

TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="100,300,1000", help="requests per second (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=6.0, help="seconds of each (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="(default: %(default)s)")
    arguments = parser.parse_args()
    print("asked  offered  us CPU/request  us/chunk  cores  lag p50 ms  lag p99 ms  failed  verdict")
    for rate in map(float, arguments.rates.split(",")):
        print(_row(rate, _measure(rate, arguments.duration, arguments.workers)), flush=True)


def _measure(rate: float, duration_s: float, workers: int) -> dict[str, Any]:
    load = SyntheticLoad(
        rate=f"{rate:g}", duration_s=duration_s, input_tokens="32", output_tokens=str(TOKENS)
    )
    with mock_process(Script()) as mock:
        options = RunOptions(base_url=mock.base_url, workers=workers)
        return run_load(synthetic_load(load, ScheduleOptions()), options, None).summary


def _row(rate: float, summary: dict[str, Any]) -> str:
    load, client = summary["load"], summary["client"]
    failed = sum(summary["requests"]["failures"].values())
    cost_us, lag = client["cpu_us_per_request"], load["lag_ms"]
    return (
        f"{rate:5.0f}  {load['offered_rate_rps']:7.1f}  {cost_us:14.0f}  {cost_us / TOKENS:8.1f}"
        f"  {client['cpu_cores']:5.2f}  {lag['p50']:10.3f}  {lag['p99']:10.2f}  {failed:6d}"
        f"  {summary['verdict']['status']}"
    )


if __name__ == "__main__":
    main()
