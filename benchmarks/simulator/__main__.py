"""How well the simulator foretells a live server.

    python -m benchmarks.simulator live --model FOLDER --serve-flags "--load-format dummy" --out DIR
    python -m benchmarks.simulator compare DIR

`live` starts the server, calibrates, floods the server to learn its capacity for the trace, replays windows
of the trace at shares of it, and replays two public traces. What it writes holds all logs, so that
`compare`, or another fit, can be made anywhere later; a run that was cut off is compared as far as it came.
`compare` simulates each window's own schedule and sets the figures side by side.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.simulator.compare import compare
from benchmarks.simulator.live import REPLAYS, run_live


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_live_arguments(commands.add_parser("live", help="on the machine that is measured"))
    offline = commands.add_parser("compare", help="anywhere, with what `live` wrote")
    offline.add_argument("folder", type=Path)
    offline.add_argument("--profile", type=Path, help="instead of the one in the folder")
    offline.add_argument("--refit", action="store_true", help="fit the sweep's logs again first")
    offline.add_argument("--keep", type=Path, metavar="DIR", help="leave the live and simulated runs there")
    arguments = parser.parse_args()
    if arguments.command == "live":
        run_live(arguments)
    else:
        compare(arguments.folder, arguments.profile, refit=arguments.refit, keep=arguments.keep)


def _add_live_arguments(live: argparse.ArgumentParser) -> None:
    live.add_argument("--model", help="folder; the embedded model when absent")
    live.add_argument("--serve-flags", default="", help="further flags of `octavo serve`")
    live.add_argument("--port", type=int, default=8137)
    live.add_argument("--out", type=Path, default=Path("out"))
    live.add_argument(
        "--budget", type=float, default=500.0, help="seconds for all, the server's start included (500)"
    )
    live.add_argument("--trace", default=REPLAYS["azure"])
    live.add_argument(
        "--trace-flags", default="--max-output-tokens 384 --cap-mode clip",
        help="flags of `octavo replay`, such as caps on lengths (default: %(default)s)",
    )  # fmt: skip
    live.add_argument("--calibrate-seconds", type=float, default=90.0, help="(default: 90)")
    live.add_argument("--calibrate-flags", default="", help="further flags of `octavo calibrate`")
    live.add_argument("--flood", type=int, default=400, help="requests that show the capacity (default: 400)")
    live.add_argument("--capacity", type=float, help="requests per second, instead of a flood")
    live.add_argument("--window", type=float, default=12.0, help="seconds of each (default: 12)")
    live.add_argument("--loads", default="0.3,0.6,0.85,0.95", help="of the capacity (default: %(default)s)")
    live.add_argument("--repeats", type=int, default=3, help="of each window, for its spread (default: 3)")
    live.add_argument("--replay-seconds", type=float, default=25.0, help="of each trace; 0: none (25)")


if __name__ == "__main__":
    main()
