"""llama-cpp-python's server, to compare with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.server_process import RunningServer, free_port, running
from model.source import resolve_model


@contextmanager
def llama_server(venv: Path) -> Iterator[RunningServer]:
    """llama-cpp-python's on the embedded model, with as many threads as OpenMP here.

    By default it cuts a running request off when a new one comes: that is turned off.
    """
    port = free_port()
    gguf = resolve_model(None).path
    num_threads = os.environ["OMP_NUM_THREADS"]
    command = [str(venv / "bin" / "python"), "-m", "llama_cpp.server", "--model", str(gguf)]
    threads = ["--n_threads", num_threads, "--n_threads_batch", num_threads]
    command += [*threads, "--interrupt_requests", "false", "--port", str(port)]
    with running(command, port, "/v1/models") as server:
        yield server
