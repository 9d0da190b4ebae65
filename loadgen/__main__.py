"""`python -m loadgen COMMAND ...`: the load generator without the rest of Octavo."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from loadgen.cli.broken_pipe import quiet_on_broken_pipe

COMMANDS = {
    "replay": ("loadgen.cli.replay", "send a recorded trace to a server and measure it"),
    "load": ("loadgen.cli.load", "send random requests to a server and measure it"),
    "capacity": ("loadgen.cli.capacity", "find the highest rate at which requests meet their objective"),
    "report": ("loadgen.cli.report", "show the figures and charts of a run from its record"),
    "compare": ("loadgen.cli.compare", "compare runs, live or simulated"),
    "loadgen-selftest": ("loadgen.cli.selftest", "measure a server that knows the truth"),
}


@quiet_on_broken_pipe
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, dest="command")
    modules = {name: import_module(module) for name, (module, _) in COMMANDS.items()}
    for name, (_, summary) in COMMANDS.items():
        modules[name].add_arguments(commands.add_parser(name, help=summary))
    arguments = parser.parse_args()
    return int(modules[arguments.command].run(arguments))


if __name__ == "__main__":
    sys.exit(main())
