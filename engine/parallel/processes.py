"""Starts the worker processes. Nothing that they share with rank 0 has a name that could collide."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from engine.parallel.link import Link
from engine.parallel.ranks import Rank

_ROOT = str(Path(__file__).parents[2])


def start_processes(num_ranks: int) -> list[Rank]:
    """Ranks 1 to `num_ranks` - 1. They end when this process does, however it does."""
    return [_start_process(rank) for rank in range(1, num_ranks)]


def _start_process(rank: int) -> Rank:
    ours, theirs = socket.socketpair()
    path = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "engine.parallel.worker", str(theirs.fileno())]
    if threading.current_thread() is threading.main_thread():
        command.append("--die-with-parent")  # by the thread that starts it, says the kernel
    process = subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=2,  # the daemon's own output is its greeting alone
        env=os.environ | {"PYTHONPATH": path},
    )
    theirs.close()
    return Rank(rank, Link(ours), process)
