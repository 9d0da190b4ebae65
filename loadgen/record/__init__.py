"""What a run leaves behind: a directory of files with versioned schemas, written while it runs."""

from loadgen.record.reader import Run, RunError, read_run
from loadgen.record.result import RequestResult
from loadgen.record.writer import RunWriter

__all__ = ["RequestResult", "Run", "RunError", "RunWriter", "read_run"]
