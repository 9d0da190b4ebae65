"""Which commit is being served, for whoever compares two servers."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent.parent


@cache
def source_revision() -> str | None:
    """The commit of the source tree, with `-dirty` if files were changed; None for an installed package."""
    if not (_ROOT / ".git").exists():  # else a repository around it would answer
        return None
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
