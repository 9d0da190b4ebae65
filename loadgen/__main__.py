"""`python -m loadgen ...`: the load generator without the rest of Octavo."""

from __future__ import annotations

import argparse
import sys

from loadgen import cli
from loadgen.report import cli as report_cli


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadgen", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)
    for name, module in {"replay": cli, "report": report_cli}.items():
        command = commands.add_parser(name)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
