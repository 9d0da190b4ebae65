"""ServeGen: not requests but, per client, rates and gaps for each ten minutes and distributions of lengths.

Format: https://github.com/alibaba/ServeGen. `NAME-trace.csv` has rows of time, rate, coefficient of
variation, pattern of gaps, shape, scale; `NAME-dataset.json` beside it maps the start of every six hours to
distributions. Several clients, all of a folder, make a mix.
"""

from __future__ import annotations

import ast
import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from loadgen.schedule.arrivals import Process, unit_gaps
from loadgen.traces.records import Trace, TraceError, TraceRow, sorted_trace

NAME = "servegen"
DESCRIPTION = "ServeGen client CSV (time, rate, cv, pattern, shape, scale) beside its dataset JSON"
PATTERNS: dict[str, Process] = {"Gamma": "gamma", "Weibull": "weibull"}
WINDOW_S = 600.0
DEFAULT_DURATION_S = 600.0
TRACE_MARK, DATASET_END = "-trace", "-dataset.json"


@dataclass(frozen=True, slots=True)
class _Window:
    """Ten minutes of one client; `start_s` counts from the first row of the mix."""

    start_s: float
    rate: float
    pattern: str
    shape: float


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Token counts and their probabilities."""

    tokens: np.ndarray
    shares: np.ndarray

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        drawn: np.ndarray = np.maximum(1, rng.choice(self.tokens, size=count, p=self.shares))
        return drawn


def matches(first_line: str) -> bool:
    cells = first_line.split(",")
    return len(cells) == 6 and cells[3].strip() in {"", *PATTERNS} and _is_number(cells[0])


def client_files(path: Path) -> list[Path]:
    """The clients of a folder, or the one of a file. Raises TraceError if there is none."""
    files = sorted(path.glob(f"*{TRACE_MARK}*.csv")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path}: no {NAME} client (*{TRACE_MARK}*.csv) in the folder")
    return files


def generate(path: Path, *, start_s: float, duration_s: float | None, seed: int) -> Trace:
    """Draw the requests of [start, start + duration), ten minutes by default.

    Each window of each client has a random stream of its own, and is the same whatever else is drawn.
    """
    files = client_files(path)
    clients = {file: _read_windows(file) for file in files}
    origin_s = min(windows[0].start_s for windows in clients.values())
    end_s = start_s + (duration_s or DEFAULT_DURATION_S)
    rows: list[TraceRow] = []
    dropped: Counter[str] = Counter()
    for file, windows in clients.items():
        name = file.name.partition(TRACE_MARK)[0]
        datasets = _read_datasets(file.with_name(name + DATASET_END))
        for place, window in enumerate(windows):
            if start_s < window.start_s - origin_s + WINDOW_S and window.start_s - origin_s < end_s:
                stream = np.random.SeedSequence([seed, *name.encode()], spawn_key=(place,))
                rows += _draw(window, origin_s, datasets, name, np.random.default_rng(stream), dropped)
    kept = [row for row in rows if start_s <= row.arrival_ns / 1e9 < end_s]
    if not kept:
        active_s = [w.start_s - origin_s for windows in clients.values() for w in windows if w.rate]
        first = f"; the first request comes after {min(active_s):g} s" if active_s else ""
        raise TraceError(f"{path}: idle from {start_s:g} s to {end_s:g} s{first}")
    trace = sorted_trace(kept, format=NAME, path=str(path), dropped=dropped)
    trace.notes.append(f"{len(kept)} requests drawn for {end_s - start_s:g} s of {len(files)} client(s)")
    return trace


def _draw(
    window: _Window,
    origin_s: float,
    datasets: dict[float, tuple[_Lengths, _Lengths]],
    client: str,
    rng: np.random.Generator,
    dropped: Counter[str],
) -> Iterator[TraceRow]:
    """Gaps of the window's pattern, stretched so that its rate is met."""
    count = int(window.rate * WINDOW_S + rng.random())
    if not count or window.pattern not in PATTERNS:
        return
    known = [start for start in datasets if start <= window.start_s]
    if not known:
        dropped["no_lengths_known"] += count
        return
    inputs, outputs = datasets[max(known)]
    ends = unit_gaps(PATTERNS[window.pattern], window.shape, count + 1, rng).cumsum()
    times_s = window.start_s - origin_s + ends[:-1] / ends[-1] * WINDOW_S
    columns = times_s.tolist(), inputs.draw(count, rng).tolist(), outputs.draw(count, rng).tolist()
    for at_s, input_tokens, output_tokens in zip(*columns, strict=True):
        yield TraceRow(round(at_s * 1e9), input_tokens, output_tokens, request_class=client)


def _read_windows(path: Path) -> list[_Window]:
    try:
        with open(path, newline="") as file:
            rows = [row for row in csv.reader(file) if row]
        return [_Window(float(r[0]), float(r[1]), r[3].strip(), float(r[4])) for r in rows]
    except (OSError, ValueError, IndexError) as error:
        raise TraceError(f"{path}: {error}") from None


def _read_datasets(path: Path) -> dict[float, tuple[_Lengths, _Lengths]]:
    """{start, s: (input lengths, output lengths)}, without those that have no data."""
    try:
        content = orjson.loads(path.read_bytes())
        return {
            float(start): (_lengths(entry["input_tokens"]), _lengths(entry["output_tokens"]))
            for start, entry in content.items()
            if ast.literal_eval(entry["input_tokens"]) and ast.literal_eval(entry["output_tokens"])
        }
    except (OSError, ValueError, KeyError, SyntaxError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: {error}") from None


def _lengths(literal: str) -> _Lengths:
    """Raises ValueError unless it is a dict of numbers."""
    shares = ast.literal_eval(literal)
    weights = np.array(list(shares.values()), dtype=float)
    return _Lengths(np.array(list(shares), dtype=np.int64), weights / weights.sum())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
