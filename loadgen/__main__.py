"""`python -m loadgen COMMAND ...`: the load generator without the rest of Octavo."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from loadgen.cli import exit_codes
from loadgen.cli.explain import refuse_in_one_line

COMMANDS = {
    "replay": ("loadgen.cli.replay", "send a recorded trace to a server and measure it"),
    "load": ("loadgen.cli.load", "send random requests to a server and measure it"),
    "capacity": ("loadgen.cli.capacity", "find the highest rate at which requests meet their objective"),
    "report": ("loadgen.cli.report", "show the figures and charts of a run from its record"),
    "compare": ("loadgen.cli.compare", "compare runs, live or simulated"),
    "loadgen-selftest": ("loadgen.cli.selftest", "measure a server that knows the truth"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen", allow_abbrev=False)
    refuse_in_one_line(parser)
    commands = parser.add_subparsers(required=True, dest="command")
    modules = {name: import_module(module) for name, (module, _) in COMMANDS.items()}
    for name, (_, summary) in COMMANDS.items():
        modules[name].add_arguments(commands.add_parser(name, help=summary))
    arguments = parser.parse_args()
    try:
        code = int(modules[arguments.command].run(arguments))
        print(end="", flush=True)  # what is still buffered would fail at the interpreter's exit
        return code
    except BrokenPipeError:  # `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # that exit flushes as well
        return exit_codes.BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
