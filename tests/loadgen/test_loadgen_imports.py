"""The load generator stands on its own and starts at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadgen.__main__ import COMMANDS

BANNED = ["torch", "transformers", "fastapi", "pydantic", "server", "engine", "model", "kernels"]


def test_heavy_packages_are_not_imported() -> None:
    modules = [*(module for module, _ in COMMANDS.values()), "loadgen.mock", "loadgen.__main__"]
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    imported = json.loads(out)
    assert set(modules) <= set(imported)
    assert not {name.partition(".")[0] for name in imported} & set(BANNED)


def test_start_up_costs_little() -> None:
    """CPU time, since wall time is the machine's; far above the half second that it takes."""
    code = "import loadgen.cli.replay, time; print(time.process_time())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(out) < 5


@pytest.mark.parametrize("arguments", [["report", "/nowhere"], ["compare", "/nowhere", "/nowhere"]])
def test_the_module_runs_its_commands(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "loadgen", *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith(f"octavo {arguments[0]}: /nowhere")
