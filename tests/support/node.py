"""OpenAI's client for Node, installed once into a folder that git ignores."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".cache" / "node"
INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--silent", "openai@>=5")


def run_node(script: str, *arguments: str) -> str:
    """What an ES module prints. Skips the test where there is no Node, or no package to be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not (FOLDER / "node_modules" / "openai").is_dir():
        installed = subprocess.run(INSTALL, cwd=FOLDER, capture_output=True, text=True, timeout=120)
        if installed.returncode:
            pytest.skip(f"npm cannot install openai: {installed.stderr[-300:]}")
    path = FOLDER / "script.mjs"  # beside node_modules, where it looks for imports
    path.write_text(script)
    run = subprocess.run(["node", str(path), *arguments], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout
