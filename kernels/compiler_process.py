"""A process that compiles kernels beside the start-up, into a cache on disk for the serving process."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import tempfile
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

_PATIENCE_S = 120.0
_ROOT = str(Path(__file__).parents[1])


class CompilerProcess(threading.Thread):
    """Runs a command to its end, and tells why it failed if it did: what it should have compiled is then
    compiled by the serving process, when it is first called.
    """

    def __init__(self, what: str, command: list[str], environment: dict[str, str]) -> None:
        """`environment` is in addition to this process's own. Raises OSError if nothing can be started."""
        super().__init__(name="octavo-compiler", daemon=True)
        self._what = what
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=self._errors,
            # It needs no GPU, and a context of its own would take memory of it.
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path} | environment,
        )
        atexit.register(self.stop)
        self.start()

    def stop(self) -> None:
        """End the process; returns when it is gone."""
        self._process.kill()
        self.join()

    def run(self) -> None:
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            logger.info("%s is not compiled ahead: %s", self._what, last or "it took too long")
