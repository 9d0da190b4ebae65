"""What the serving process sets up around the server, before and after the heavy imports."""

from __future__ import annotations

import gc
import logging
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# How long a Python thread may keep the interpreter while another waits for it. The engine thread, woken by
# the end of its step while the event loop is busy in Python, waits just that long: with Python's own 5 ms it
# woke 5.2 ms late (p50 on two cores), with 1 ms 1.1, with 0.1 ms 0.27, with 0.02 ms 0.20.
SWITCH_INTERVAL_S = 0.0001

MAX_OPEN_FILES = 65536  # each stream holds one, and the usual soft limit is 1024


def prepare_process(log_level: str) -> None:
    """Logging, thread switching, room for open files, and an end for SIGTERM from here on."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    # As a container's first process it would otherwise ignore SIGTERM while the model loads.
    signal.signal(signal.SIGTERM, _exit_on_signal)


@contextmanager
def importing() -> Iterator[None]:
    """Around large imports, which take a tenth longer while the collector looks for garbage in between."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_memory() -> None:
    """Objects of the start-up live as long as the process: the collector need not look at them again."""
    gc.collect()
    gc.freeze()


def _exit_on_signal(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)
