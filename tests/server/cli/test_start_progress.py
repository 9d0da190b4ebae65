from __future__ import annotations

import io
import re

from server.cli.progress import StartProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_phases(stream: io.StringIO) -> str:
    progress = StartProgress(stream)
    progress("finding the model")
    for done in range(4):
        progress("loading weights", done, 3)
    progress.finish_phase()
    return stream.getvalue()


def test_a_log_gets_one_plain_line_for_each_begin_and_end() -> None:
    lines = run_phases(io.StringIO()).splitlines()
    told = [re.sub(r"\d+\.\d s", "N s", line) for line in lines]
    assert told == [
        "octavo: finding the model ...",
        "octavo: finding the model: N s",
        "octavo: loading weights ...",
        "octavo: loading weights: N s",
    ]


def test_a_terminal_gets_a_bar_that_gives_way_to_the_seconds() -> None:
    written = run_phases(Terminal())
    assert "3/3" in written or "0/3" in written
    assert re.search(r"\r *\roctavo: loading weights: \d+\.\d s\n$", written)
