"""Python imports this first in every process that has this folder on its path: it writes down stacks.

To $OCTAVO_STACKS/PID.txt.gz when the process ends: every 20 ms a line for each thread with the seconds since
the process began to sample, the thread's name, and its functions, innermost last.
"""

import atexit
import gzip
import os
import sys
import threading
import time
from types import FrameType

INTERVAL_S = 0.02
LONGEST_S = 120.0


def stack_of(frame: FrameType | None) -> str:
    functions: list[str] = []
    while frame is not None:
        functions.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(functions))


def sample(lines: list[str]) -> None:
    begin, own = time.monotonic(), threading.get_ident()
    while time.monotonic() < begin + LONGEST_S:
        time.sleep(INTERVAL_S)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        at = time.monotonic() - begin
        for ident, frame in sys._current_frames().items():
            if ident != own:
                lines.append(f"{at:.2f} {names.get(ident, '?')} {stack_of(frame)}")


def write(lines: list[str]) -> None:
    with gzip.open(f"{os.environ['OCTAVO_STACKS']}/{os.getpid()}.txt.gz", "wt") as file:
        file.write(" ".join(sys.orig_argv) + "\n" + "\n".join(lines) + "\n")


if "OCTAVO_STACKS" in os.environ:
    samples: list[str] = []
    atexit.register(write, samples)
    threading.Thread(target=sample, args=[samples], name="sampler", daemon=True).start()
