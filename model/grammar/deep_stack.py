"""Runs recursive native code where it has room: an overflow of the stack would end the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

STACK_BYTES = 256 * 1024 * 1024
"""Of address space; memory is taken as the stack is used. The longest chain of rules that fits a grammar's
size limit needs about 40 MB."""

ResultT = TypeVar("ResultT")

_stack_size = threading.Lock()  # it is set for the whole process


def with_deep_stack(work: Callable[[], ResultT]) -> ResultT:
    """`work()`, in a thread of its own."""
    done: Future[ResultT] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="octavo-deep-stack", daemon=True)
    with _stack_size:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return done.result()
