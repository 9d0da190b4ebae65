"""`octavo COMMAND ...`: picks the command and imports only what that command needs."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from engine.config import ConfigError
from engine.version import __version__
from model.config import ModelError

# Each module has `add_arguments(parser)` and `run(arguments) -> exit code`.
COMMANDS = {
    "serve": ("server.cli.serve", "serve a model over the OpenAI HTTP API"),
    "chat": ("server.cli.chat.cli", "talk to a served model in the terminal"),
    "replay": ("loadgen.cli.replay", "send a recorded trace to a server and measure it"),
    "load": ("loadgen.cli.load", "send random requests to a server and measure it"),
    "capacity": ("loadgen.cli.capacity", "find the highest rate at which requests meet their objective"),
    "report": ("loadgen.cli.report", "show the figures and charts of a run from its record"),
    "simulate": ("loadgen.simulator.cli", "predict what a trace would see, without a model"),
    "calibrate": ("loadgen.simulator.calibrate", "learn a server's step times for simulate"),
    "compare": ("loadgen.cli.compare", "compare runs, live or simulated"),
    "loadgen-selftest": ("loadgen.cli.selftest", "measure a server that knows the truth"),
    "bench": ("engine.bench", "measure offline generation, without a server"),
    "trace": ("server.cli.trace", "turn event and step logs into a Chrome trace for Perfetto"),
}


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 bad usage or configuration, 141 nobody reads what it prints."""
    argv = sys.argv[1:] if argv is None else argv
    top_parser = _top_parser()
    if not argv:
        top_parser.exit(2, top_parser.format_help())
    arguments = top_parser.parse_args(argv[:1])
    module_name, summary = COMMANDS[arguments.command]
    command = import_module(module_name)
    parser = argparse.ArgumentParser(
        prog=f"octavo {arguments.command}", description=summary, allow_abbrev=False
    )
    command.add_arguments(parser)
    command_arguments = parser.parse_args(argv[1:])
    try:
        code = int(command.run(command_arguments))
        print(end="", flush=True)  # what is still buffered would fail at the interpreter's exit
        return code
    except BrokenPipeError:  # `octavo ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # that exit flushes as well
        return 141  # as a shell says of a program that SIGPIPE ended
    except ConfigError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 2
    except ModelError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _top_parser() -> argparse.ArgumentParser:
    lines = [f"  {name:16} {summary}" for name, (_, summary) in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Octavo, an online serving daemon for large language models",
        epilog="\n".join(["commands:", *lines, "", "octavo COMMAND --help tells more"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="what to do")
    return parser


if __name__ == "__main__":
    sys.exit(main())
