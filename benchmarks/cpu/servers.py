"""Servers under test, each a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from model.source import resolve_model

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class RunningServer:
    base_url: str
    model: str  # its name in the API
    pid: int
    ready_s: float  # from the start of the process to the first good answer

    def peak_rss_bytes(self) -> int:
        """The most memory that was ever resident (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM in /proc: this benchmark needs Linux")


@contextmanager
def octavo(*flags: str) -> Iterator[RunningServer]:
    port = _free_port()
    command = [sys.executable, "-m", "server.cli.main", "serve", "--port", str(port), *flags]
    with _running(command, port, "/health") as server:
        yield server


@contextmanager
def llama_server(venv: Path) -> Iterator[RunningServer]:
    """llama-cpp-python's on the embedded model, with as many threads as OpenMP here.

    By default it cuts a running request off when a new one comes: that is turned off.
    """
    port = _free_port()
    gguf = resolve_model(None).path
    num_threads = os.environ["OMP_NUM_THREADS"]
    command = [str(venv / "bin" / "python"), "-m", "llama_cpp.server", "--model", str(gguf)]
    threads = ["--n_threads", num_threads, "--n_threads_batch", num_threads]
    command += [*threads, "--interrupt_requests", "false", "--port", str(port)]
    with _running(command, port, "/v1/models") as server:
        yield server


@contextmanager
def _running(command: list[str], port: int, ready_path: str) -> Iterator[RunningServer]:
    """Raises RuntimeError if the server does not come up. With any error the end of its output is shown."""
    base_url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as output:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ)
        try:
            while not _answers(base_url + ready_path):
                if process.poll() is not None or time.monotonic() - begin > READY_TIMEOUT_S:
                    raise RuntimeError(f"{' '.join(command[:4])} did not start")
                time.sleep(POLL_S)
            ready_s = time.monotonic() - begin
            yield RunningServer(base_url, _model_name(base_url), process.pid, ready_s)
        except Exception:
            output.seek(0)
            print(output.read()[-4000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _model_name(base_url: str) -> str:
    with urllib.request.urlopen(f"{base_url}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
