"""One process or several: forked, started together at one time 0, and watched."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

from loadgen.run.live import live_lines
from loadgen.run.status_lines import StatusLines
from loadgen.run.worker import Job, run_loop, work

START_DELAY_NS = 50_000_000  # between the last preparation and time 0
SUPERVISOR_INTERVAL_S = 0.1


class WorkerError(RuntimeError):
    """A worker process died; what it had recorded until then is in the run's directory."""


def run_workers(job: Job) -> None:
    """Send the whole job. Returns when every request has ended, or after an interrupt.

    On a terminal even a single worker is forked, since drawing would hold up its event loop.
    Raises OSError if a connection cannot be opened in advance, WorkerError if a process dies.
    """
    _allow_many_connections()
    with StatusLines() as status:
        show = partial(status.update, partial(live_lines, job.counters, len(job.requests)))
        if job.options.workers == 1 and not status.terminal:
            run_loop(work(job, 0, lambda: time.monotonic_ns() + START_DELAY_NS, show))
        else:
            _run_forked(job, show)


def _run_forked(job: Job, show: Callable[[], None]) -> None:
    fork = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes: list[ForkProcess] = []
    for worker in range(job.options.workers):
        ours, theirs = fork.Pipe()
        process = fork.Process(target=_worker_process, args=(job, worker, theirs), name=f"worker {worker}")
        process.start()
        processes.append(process)
        pipes.append(ours)
        theirs.close()  # so that the death of the worker ends the pipe
    with _forwarded_interrupts(processes):
        _start_together(pipes)
        while any(process.is_alive() for process in processes):
            time.sleep(SUPERVISOR_INTERVAL_S)
            show()
    for process in processes:
        process.join()
        if process.exitcode:
            raise WorkerError(f"{process.name} ended with exit code {process.exitcode}")


def _worker_process(job: Job, worker: int, pipe: Connection) -> None:
    parent = os.getppid()

    def barrier() -> int:
        pipe.send_bytes(b"ready")
        return int.from_bytes(pipe.recv_bytes())

    def leave_with_parent() -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        run_loop(work(job, worker, barrier, leave_with_parent))
    except EOFError:  # the others could not start
        sys.exit(1)
    except OSError as error:
        sys.exit(f"worker {worker}: {error}")


def _start_together(pipes: list[Connection]) -> None:
    """Tell all workers one time 0, once every one of them is ready."""
    try:
        for pipe in pipes:
            pipe.recv_bytes()
    except EOFError:
        pass  # one died; it is reported when it is joined, and the others end at once
    else:
        start_ns = time.monotonic_ns() + START_DELAY_NS
        for pipe in pipes:
            pipe.send_bytes(start_ns.to_bytes(8))
    for pipe in pipes:
        pipe.close()


@contextlib.contextmanager
def _forwarded_interrupts(processes: list[ForkProcess]) -> Iterator[None]:
    """An interrupt of this process interrupts the workers, which end their runs in order."""

    def forward(*_: object) -> None:
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGINT)

    before = signal.signal(signal.SIGINT, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one, since each request in flight has a socket."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
