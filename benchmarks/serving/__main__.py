"""Serving workloads against Octavo, which this starts, or against a server that runs already.

    python -m benchmarks.serving --model FOLDER --load-format dummy --workloads W1,W2g --out DIR
    python -m benchmarks.serving --base-url http://127.0.0.1:8001 --workloads W1
    python -m benchmarks.serving --model FOLDER --serve-command 'other serve {model} --port {port} --name m'

Prints a Markdown table and writes it, with every figure, to the output folder, after each workload anew.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from sys import executable

from benchmarks.server_process import free_port, running
from benchmarks.serving.client import run_workload
from benchmarks.serving.figures import Figures, figures_of, markdown
from benchmarks.serving.threads import ThreadTimes
from benchmarks.serving.workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--base-url", help="measure this server instead of starting one")
    parser.add_argument("--model", help="model folder that Octavo serves")
    parser.add_argument("--load-format", default="auto", help="dummy: random weights (default: auto)")
    parser.add_argument("--serve-flags", default="", help="further flags of `octavo serve`")
    parser.add_argument("--serve-command", help="start this server instead; it must call the model m")
    parser.add_argument("--start-timeout", type=float, default=600, help="seconds to /health (default: 600)")
    parser.add_argument("--results", type=Path, help="append a line of JSON to this file for each workload")
    parser.add_argument("--port", type=int, help="(default: a free one)")
    parser.add_argument("--workloads", default="W1,W2g", help=", ".join(WORKLOADS))
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for results (default: out)")
    parser.add_argument("--label", default="octavo", help="names the result files (default: octavo)")
    parser.add_argument("--budget", type=float, default=1e9, help="begin no run after so many seconds")
    arguments = parser.parse_args()
    arguments.port = arguments.port or free_port()
    arguments.out.mkdir(parents=True, exist_ok=True)
    server = nullcontext(None) if arguments.base_url else _serving(arguments)
    with server as pid:
        rows = _run_all(pid, arguments)
    print(markdown(rows), flush=True)


def _write(rows: list[Figures], arguments: argparse.Namespace) -> None:
    """All so far; the newest also as a line of `--results`."""
    (arguments.out / f"{arguments.label}.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1)
    )
    (arguments.out / f"{arguments.label}.md").write_text(markdown(rows) + "\n")
    if arguments.results:
        line = json.dumps({"kind": "serving", "label": arguments.label, **asdict(rows[-1])})
        with arguments.results.open("a") as results:
            results.write(line + "\n")


def _base_url(arguments: argparse.Namespace) -> str:
    return arguments.base_url or f"http://127.0.0.1:{arguments.port}"


def _run_all(pid: int | None, arguments: argparse.Namespace) -> list[Figures]:
    """`pid` is the server's, if it runs here."""
    begin, base_url = time.monotonic(), _base_url(arguments)
    rows = []
    run_workload(base_url, "m", WORKLOADS["warm"])
    for name in arguments.workloads.split(","):
        if time.monotonic() - begin > arguments.budget:
            print(f"{name} and what follows it: out of time", flush=True)
            break
        threads = ThreadTimes(pid) if pid else None
        try:
            rows.append(figures_of(name, run_workload(base_url, "m", WORKLOADS[name])))
            _write(rows, arguments)
            print(markdown(rows[-1:]).splitlines()[-1], flush=True)
            print(f"  server threads: {threads.busiest()}" if threads else "", flush=True)
        except RuntimeError as error:
            print(f"FAILED {error}", flush=True)
    return rows


@contextmanager
def _serving(arguments: argparse.Namespace) -> Iterator[int]:
    """Serves until the end of the block; gives the server's process id."""
    log, timeout_s = arguments.out / f"{arguments.label}.server.log", arguments.start_timeout
    with running(_command(arguments), arguments.port, start_timeout_s=timeout_s, log=log) as server:
        print(f"start to /health: {server.ready_s:.1f} s", flush=True)
        yield server.pid
    if server.end_s is not None:
        print(f"SIGTERM to the server's end: {server.end_s:.1f} s", flush=True)


def _command(arguments: argparse.Namespace) -> list[str]:
    if arguments.serve_command:
        command = arguments.serve_command.replace("{model}", arguments.model)
        return shlex.split(command.replace("{port}", str(arguments.port)))
    command = [executable, "-m", "server.cli", "serve", "--model", arguments.model]
    command += ["--load-format", arguments.load_format, "--served-model-name", "m"]
    return [*command, "--port", str(arguments.port), *arguments.serve_flags.split()]


if __name__ == "__main__":
    main()
