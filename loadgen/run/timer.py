"""Wake-ups at absolute times of the monotonic clock, finer than the event loop's own millisecond timers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

from loadgen.schedule import NS_PER_S

TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
TFD_TIMER_ABSTIME = 1


class _ITimerSpec(ctypes.Structure):
    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    ]


class TimerFd:
    """A Linux timerfd in the event loop: wakes some 50 us after the asked time, at no cost while waiting.

    Through ctypes, because `os.timerfd_create` is new in Python 3.13.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = loop
        self._callback = callback
        self._spec = _ITimerSpec()
        self._spec_pointer = ctypes.byref(self._spec)
        self._settime = libc.timerfd_settime
        loop.add_reader(self._fd, self._fired)

    def wake_at(self, when_ns: int) -> None:
        """Call back once at `when_ns` of `time.monotonic_ns()`; a time that has passed fires at once."""
        self._spec.value_s, self._spec.value_ns = divmod(max(when_ns, 1), NS_PER_S)
        self._settime(self._fd, TFD_TIMER_ABSTIME, self._spec_pointer, None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew since it fired
            return
        self._callback()


class LoopTimer:
    """The same on the event loop's timers, for other systems: good to a millisecond or two."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None

    def wake_at(self, when_ns: int) -> None:
        self.close()
        delay_s = (when_ns - time.monotonic_ns()) / NS_PER_S
        self._handle = self._loop.call_later(max(0.0, delay_s), self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def make_timer(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> TimerFd | LoopTimer:
    return TimerFd(loop, callback) if sys.platform == "linux" else LoopTimer(loop, callback)
