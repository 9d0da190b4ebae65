"""`python -m loadgen COMMAND ...`: the load generator without the rest of Octavo."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

COMMANDS = {
    "replay": "send a recorded trace to a server and measure it",
    "load": "send random requests to a server and measure it",
    "capacity": "find the highest rate at which requests meet their objective",
    "report": "show the figures and charts of a run from its record",
    "compare": "compare runs, live or simulated",
    "loadgen-selftest": "measure a server that knows the truth",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, dest="command")
    modules = {name: import_module(f"loadgen.cli.{name.removeprefix('loadgen-')}") for name in COMMANDS}
    for name, module in modules.items():
        module.add_arguments(commands.add_parser(name, help=COMMANDS[name]))
    arguments = parser.parse_args()
    return int(modules[arguments.command].run(arguments))


if __name__ == "__main__":
    sys.exit(main())
