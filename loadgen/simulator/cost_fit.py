"""From measured steps of one kind to a `StepCost`, by non-negative least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loadgen.simulator.least_squares import robust_nonnegative
from loadgen.simulator.padding import Padding
from loadgen.simulator.step_model import (
    CHUNK_WORK,
    DECODE_CONTEXT,
    LEAST_SPEED,
    LONGEST_CONTEXT,
    NUM_CHUNKS,
    PADDED_ROWS,
    UNEVEN_CONTEXT,
    Curve,
    RoomCost,
    StepCost,
)
from loadgen.simulator.step_times import MeasuredStep

_MIN_SAMPLES = 3  # in each piece of a curve
_MIN_LAST = 10  # in the last one, which says how the curve goes on
_EACH = 16  # so many rows at most: a knot for each number
_GROWTH = 1.2  # of the knots above
_NOISE_LEVELS = 50
_ROUNDS = 3
_LEADS = 40  # that are tried
_UNEVEN = 0.25  # a context is uneven that exceeds the mean by so much of itself
_MIN_UNEVEN = 10  # steps, for what such a context costs to be told
_MIN_IN_ROOM = 30  # steps, for what decodes cost in it to be told
_MIN_AT_REST = 30  # steps, for what a launch lacks to be told


def decode_cost(steps: Sequence[MeasuredStep], padding: Padding, lead_s: float) -> StepCost:
    fit = _CostFit(steps, padding, lead_s)
    fit.add_rows(padding.decode_sizes)
    for name in (DECODE_CONTEXT, LONGEST_CONTEXT):
        fit.add_slope(name)
    fit.add_uneven_context(padding.decode_sizes)
    return fit.solve()


def chunk_cost(
    steps: Sequence[MeasuredStep], padding: Padding, lead_s: float, decode_only: StepCost
) -> StepCost:
    """A token that decodes attend to costs as in `decode_only`, whose steps tell it far better."""
    fit = _CostFit(steps, padding, lead_s)
    fit.set_slope(DECODE_CONTEXT, decode_only.slopes.get(DECODE_CONTEXT, 0.0))
    fit.add_rows(padding.sizes)
    for name in (NUM_CHUNKS, CHUNK_WORK):
        fit.add_slope(name)
    fit.add_rooms()
    return fit.solve()


def lead_of(steps: Sequence[MeasuredStep], costs_s: np.ndarray) -> float:
    """How long after the start of a launch the device has what it computes for long.

    Whatever the device still has to do then hides it, else the step is measured longer by the rest. `costs_s`
    is what each step takes without. The lead explains best what is above that, by absolute errors.
    """
    exposed = np.array([step.backlog_s < step.launch_s for step in steps])
    if exposed.sum() < _MIN_SAMPLES:
        return 0.0
    excess = np.array([step.device_s for step in steps])[exposed] - costs_s[exposed]
    backlog = np.array([step.backlog_s for step in steps])[exposed]
    longest = float(np.median([step.launch_s for step in steps]))
    leads = np.linspace(0.0, longest, _LEADS)
    errors = [np.abs(excess - np.maximum(lead - backlog, 0)).sum() for lead in leads]
    return float(leads[int(np.argmin(errors))])


def at_rest(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Those that were launched whole before their time came; all, if they are too few."""
    hidden = [step for step in steps if step.backlog_s >= step.launch_s]
    return hidden if len(hidden) >= _MIN_AT_REST else list(steps)


class _CostFit:
    """Collects the columns of a least-squares problem and reads a `StepCost` from its solution."""

    def __init__(self, steps: Sequence[MeasuredStep], padding: Padding, lead_s: float) -> None:
        self._steps = steps
        self._padding = padding
        self._seconds = np.array([step.device_s - step.waited_s(lead_s) for step in steps])
        self._exertion = np.array([step.exertion for step in steps])
        self._known_s = np.zeros(len(steps))  # of the seconds, what need not be fitted
        self._known_slopes: dict[str, float] = {}
        self._columns: list[np.ndarray] = []
        self._slopes: dict[str, int] = {}  # these say which columns are whose
        self._rows = 0, np.empty(0, np.int64)
        self._uneven = 0, np.empty(0, np.int64)
        self._rooms: list[int] = []

    def set_slope(self, name: str, seconds: float) -> None:
        self._known_slopes[name] = seconds
        self._known_s += seconds * self._column(name)

    def add_slope(self, name: str) -> None:
        self._slopes[name] = self._add([self._column(name)])

    def add_rows(self, sizes: Sequence[int]) -> None:
        """A level where there are rows at all, and a rise between each two knots, none of them negative."""
        rows = self._column(PADDED_ROWS)
        knots = _knots(rows, sizes)
        if len(knots):
            rises = [np.clip((rows - low) / (high - low), 0, 1) for low, high in pairwise(knots)]
            self._rows = self._add([np.ones(len(rows)), *rises]), knots

    def add_rooms(self) -> None:
        """A `RoomCost` for each room. One that hardly any step had costs as the one before, or the first."""
        taken = np.array([self._padding.room_of(step.shape.decode_rows) for step in self._steps])
        rooms = range(1, max(len(self._padding.decode_rooms), 1) + 1)
        seen = [room for room in rooms if (taken == room).sum() >= _MIN_IN_ROOM] or [1]
        as_rooms = [max([room for room in seen if room <= each], default=seen[0]) for each in rooms]
        costs_as = np.array([0, *as_rooms])[taken]
        longest = self._column(LONGEST_CONTEXT)
        places = {room: self._add([costs_as == room, (costs_as == room) * longest]) for room in seen}
        self._rooms = [places[room] for room in as_rooms]

    def add_uneven_context(self, sizes: Sequence[int]) -> None:
        """A slope that changes with the rows: few leave a long context room to be split, many hide it."""
        rows, uneven = self._column(PADDED_ROWS), self._column(UNEVEN_CONTEXT)
        knots = _knots(rows[uneven > _UNEVEN * self._column(LONGEST_CONTEXT)], sizes, _MIN_UNEVEN)
        if len(knots):
            weights = [np.interp(rows, knots, unit) for unit in np.eye(len(knots))]
            self._uneven = self._add([weight * uneven for weight in weights]), knots

    def solve(self) -> StepCost:
        """seconds = cost / (1 - slowdown * exertion) = cost + slowdown * exertion * seconds.

        On the right stand the seconds of the fit before: the measured ones would bring their noise along.
        """
        if not self._steps:
            return StepCost()
        design, unknown_s = np.stack(self._columns, axis=1), self._seconds - self._known_s
        x, slowdown = robust_nonnegative(design, unknown_s), 0.0
        if self._exertion.any():
            for _ in range(_ROUNDS):
                expected = (design @ x + self._known_s) / self._speed(slowdown)
                column = (self._exertion * expected)[:, None]
                *levels, slowdown = robust_nonnegative(np.hstack([design, column]), unknown_s).tolist()
                x = np.array(levels)
        (row_place, row_knots), (place, knots) = self._rows, self._uneven
        return StepCost(
            slowdown=slowdown,
            noise=_noise(
                self._seconds * self._speed(slowdown) / np.maximum(design @ x + self._known_s, 1e-9)
            ),
            rows=Curve(row_knots.tolist(), np.cumsum(x[row_place : row_place + len(row_knots)]).tolist()),
            slopes=self._known_slopes | {name: float(x[place]) for name, place in self._slopes.items()},
            uneven_context=Curve(knots.tolist(), x[place : place + len(knots)].tolist()),
            rooms=[RoomCost(*x[place : place + 2].tolist()) for place in self._rooms],
        )

    def _speed(self, slowdown: float) -> np.ndarray:
        return np.maximum(1 - slowdown * self._exertion, LEAST_SPEED)

    def _column(self, name: str) -> np.ndarray:
        if name == PADDED_ROWS:
            values = [self._padding.rows_of(step.shape) for step in self._steps]
        else:
            values = [getattr(step.shape, name) for step in self._steps]
        return np.array(values, dtype=np.float64)

    def _add(self, columns: list[np.ndarray]) -> int:
        place = len(self._columns)
        self._columns += columns
        return place


def _knots(rows: np.ndarray, sizes: Sequence[int], min_samples: int = _MIN_SAMPLES) -> np.ndarray:
    """Where enough steps lie: the sizes that rows are padded to, and between them knots that grow."""
    values, counts = np.unique(rows[rows > 0].astype(np.int64), return_counts=True)
    knots: list[int] = []
    since = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        since += count
        is_one = value <= _EACH or value in sizes or not knots or value >= knots[-1] * _GROWTH
        if is_one and since >= min_samples:
            knots.append(value)
            since = 0
    if since >= _MIN_LAST:
        knots.append(int(values[-1]))  # or the fit would take the curve for flat there, where its table rises
    return np.array(knots, dtype=np.int64)


def _noise(factors: np.ndarray) -> list[float]:
    """Means of equal shares of the sorted factors, so that their mean, and so the total time, is kept."""
    count = min(_NOISE_LEVELS, len(factors))
    return [float(part.mean()) for part in np.array_split(np.sort(factors), count)]
