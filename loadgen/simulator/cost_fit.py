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
    Curve,
    RoomCost,
    StepCost,
    attention_s,
)
from loadgen.simulator.step_times import MeasuredStep

_MIN_SAMPLES = 3  # in each piece of a curve
_MIN_LAST = 10  # in the last one, which says how the curve goes on
_EACH = 16  # so many rows at most: a knot for each number
_GROWTH = 1.2  # of the knots above
_NOISE_LEVELS = 50
_ROUNDS = 12
_LEADS = 40  # that are tried
_CROWD = 32  # contexts as long as the longest, or the memory is what all wait for
_MIN_LONGEST = 10  # steps, for what the longest context costs to be told
_MIN_IN_ROOM = 30  # steps, for what decodes cost in it to be told
_MIN_AT_REST = 30  # steps, for what a launch lacks to be told


def decode_cost(steps: Sequence[MeasuredStep], padding: Padding, lead_s: float) -> StepCost:
    fit = _CostFit(steps, padding, lead_s)
    fit.add_rows(padding.decode_sizes)
    fit.add_slope(DECODE_CONTEXT)
    fit.add_longest_context(padding.decode_sizes)
    return fit.solve()


def chunk_cost(
    steps: Sequence[MeasuredStep], padding: Padding, lead_s: float, decode_only: StepCost
) -> StepCost:
    """A token that decodes attend to costs as in `decode_only`, whose steps tell it far better."""
    fit = _CostFit(steps, padding, lead_s)
    fit.set_context(decode_only.slopes.get(DECODE_CONTEXT, 0.0))
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
        self._known_slopes: dict[str, float] = {}
        self._columns: list[np.ndarray] = []
        self._slopes: dict[str, int] = {}  # these say which columns are whose
        self._rows = 0, np.empty(0, np.int64)
        self._longest = 0, np.empty(0, np.int64)
        self._rooms: list[int] = []
        self._of_longest: list[int] = []  # all columns of what the longest context costs

    def set_context(self, seconds: float) -> None:
        self._known_slopes[DECODE_CONTEXT] = seconds

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
        self._of_longest += [place + 1 for place in places.values()]

    def add_longest_context(self, sizes: Sequence[int]) -> None:
        """A slope that changes with the rows: the more there are, the less attention splits contexts."""
        rows, longest = self._column(PADDED_ROWS), self._column(LONGEST_CONTEXT)
        knots = _knots(rows[_CROWD * longest > self._column(DECODE_CONTEXT)], sizes, _MIN_LONGEST)
        if len(knots):
            place = self._add([np.interp(rows, knots, unit) * longest for unit in np.eye(len(knots))])
            self._longest = place, knots
            self._of_longest += range(place, place + len(knots))

    def solve(self) -> StepCost:
        """seconds = cost / (1 - slowdown * exertion) = cost + slowdown * exertion * seconds.

        On the right stand the seconds of the fit before: the measured ones would bring their noise along.
        """
        if not self._steps:
            return StepCost()
        shares = np.ones((2, len(self._steps)))
        x, slowdown = np.zeros(len(self._columns)), 0.0
        for _ in range(_ROUNDS):
            design, known_s = self._linear(x, shares)
            slow_s = self._exertion * (design @ x + known_s) / self._speed(slowdown) * x.any()
            *levels, slowdown = robust_nonnegative(
                np.column_stack([design, slow_s]), self._seconds - known_s
            ).tolist()
            x = np.array(levels)
            shares = (shares + self._shares(x)) / 2  # or it would swing from one part to the other
        design, known_s = self._linear(x, self._shares(x))
        (row_place, row_knots), (place, knots) = self._rows, self._longest
        return StepCost(
            slowdown=slowdown,
            noise=_noise(self._seconds * self._speed(slowdown) / np.maximum(design @ x + known_s, 1e-9)),
            rows=Curve(row_knots.tolist(), np.cumsum(x[row_place : row_place + len(row_knots)]).tolist()),
            slopes=self._known_slopes | {name: float(x[place]) for name, place in self._slopes.items()},
            longest_context=Curve(knots.tolist(), x[place : place + len(knots)].tolist()),
            rooms=[RoomCost(*x[place : place + 2].tolist()) for place in self._rooms],
        )

    def _linear(self, x: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The design, and what of the seconds is known, with attention made linear by its `_shares`."""
        design = np.stack(self._columns, axis=1)
        design[:, self._of_longest] *= shares[1][:, None]
        if DECODE_CONTEXT in self._slopes:
            design[:, self._slopes[DECODE_CONTEXT]] *= shares[0]
            return design, np.zeros(len(self._steps))
        return design, self._all_contexts_s(x) * shares[0]

    def _shares(self, x: np.ndarray) -> np.ndarray:
        """The derivatives of `attention_s` at the solution `x`, [2, M].

        It is homogeneous, so it is the sum of its derivatives times its arguments (Euler).
        """
        longest_s = sum((self._columns[place] * x[place] for place in self._of_longest), np.zeros(1))
        parts_s = np.stack(np.broadcast_arrays(self._all_contexts_s(x), longest_s))
        shares: np.ndarray = (parts_s / np.maximum(attention_s(*parts_s), 1e-12)) ** 2
        return shares

    def _all_contexts_s(self, x: np.ndarray) -> np.ndarray:
        place = self._slopes.get(DECODE_CONTEXT)
        slope = self._known_slopes.get(DECODE_CONTEXT, 0.0) if place is None else x[place]
        return self._column(DECODE_CONTEXT) * slope

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
