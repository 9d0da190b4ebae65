"""`octavo COMMAND | head`: that nobody reads our output any more is no error of ours."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

from loadgen.cli.exit_codes import BROKEN_PIPE

P = ParamSpec("P")


def quiet_on_broken_pipe(main: Callable[P, int]) -> Callable[P, int]:
    """Where nobody reads stdout any more, `main` ends without a word, as SIGPIPE ends a program in C."""

    @functools.wraps(main)
    def guarded_main(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            try:
                return main(*args, **kwargs)
            finally:
                print(end="", flush=True)  # what is still buffered would fail at the interpreter's exit
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes once more
            return BROKEN_PIPE

    return guarded_main
