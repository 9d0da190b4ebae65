"""`octavo COMMAND | head` ends quietly, with the status that a shell gives a program that SIGPIPE ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadgen.cli import exit_codes
from loadgen.cli.conclude import guarded

PRINTS_MUCH = """
import sys
from loadgen.cli.broken_pipe import quiet_on_broken_pipe
sys.exit(quiet_on_broken_pipe(lambda: print("figures\\n" * 100_000) or 0)())
"""


@pytest.mark.parametrize("program", [["-m", "loadgen", "--help"], ["-c", PRINTS_MUCH]])
def test_a_reader_that_leaves_is_no_error(program: list[str]) -> None:
    """Whether the pipe breaks at a print, or at the exit, where little was printed."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run([sys.executable, *program], stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (exit_codes.BROKEN_PIPE, b"")


def test_it_is_not_taken_for_the_servers_connection() -> None:
    def figures() -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        guarded("load", "http://server", figures)
