"""`python -m loadgen ...`: the load generator without the rest of Octavo."""

from __future__ import annotations

import argparse
import sys

from loadgen import cli


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    replay = commands.add_parser("replay", help="send a recorded trace to a server and measure it")
    cli.add_arguments(replay)
    replay.set_defaults(run=cli.run)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
