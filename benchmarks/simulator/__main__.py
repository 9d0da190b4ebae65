"""How well the simulator foretells a live server.

    python -m benchmarks.simulator live --model FOLDER --serve-flags "--load-format dummy" --out DIR
    python -m benchmarks.simulator compare DIR

`live` starts the server, calibrates (about two minutes), finds the server's capacity for the trace by
simulation, and replays windows of the trace at shares of it. Its output is small and holds all logs, so that
`compare`, or another fit, can be made anywhere later. `compare` simulates each window's own schedule and sets
the figures side by side.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.simulator.compare import compare
from benchmarks.simulator.live import run_live


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    live = commands.add_parser("live", help="on the machine that is measured")
    live.add_argument("--model", help="folder; the embedded model when absent")
    live.add_argument("--serve-flags", default="", help="further flags of `octavo serve`")
    live.add_argument("--port", type=int, default=8137)
    live.add_argument("--trace", default="loadgen/traces/samples/azure_conv_120s.csv")
    live.add_argument("--trace-flags", default="", help="flags of `octavo replay`, such as caps on lengths")
    live.add_argument("--calibrate-seconds", type=float, default=120.0)
    live.add_argument("--calibrate-flags", default="", help="further flags of `octavo calibrate`")
    live.add_argument("--window", type=float, default=60.0, help="seconds of each (default: 60)")
    live.add_argument("--loads", default="0.3,0.6,0.85", help="shares of the capacity (default: %(default)s)")
    live.add_argument("--repeats", type=int, default=1, help="of each window, for its spread (default: 1)")
    live.add_argument("--capacity", type=float, help="requests per second, instead of the simulator's")
    live.add_argument("--out", type=Path, default=Path("out"))
    offline = commands.add_parser("compare", help="anywhere, with what `live` wrote")
    offline.add_argument("folder", type=Path)
    offline.add_argument("--profile", type=Path, help="instead of the one in the folder")
    offline.add_argument("--refit", action="store_true", help="fit the sweep's logs again first")
    arguments = parser.parse_args()
    if arguments.command == "live":
        run_live(arguments)
    else:
        compare(arguments.folder, arguments.profile, refit=arguments.refit)


if __name__ == "__main__":
    main()
