from __future__ import annotations

import numpy as np
import pytest

from loadgen.simulator.least_squares import nonnegative, robust_nonnegative


@pytest.mark.parametrize("seed", range(20))
def test_the_solution_is_optimal(seed: int) -> None:
    """Karush-Kuhn-Tucker: no gradient along what is free, none that would lead on where it is held at 0."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(40, 8)) * rng.uniform(0.01, 100, size=8)
    target = rng.normal(size=40)
    x = nonnegative(design, target)
    gradient = design.T @ (target - design @ x) / np.linalg.norm(design, axis=0)
    assert (x >= 0).all()
    assert np.allclose(gradient[x > 0], 0, atol=1e-6)
    assert (gradient[x == 0] < 1e-6).all()


def test_columns_that_say_the_same_are_no_trouble() -> None:
    column = np.arange(1, 11, dtype=float)
    x = nonnegative(np.stack([column, column, 0 * column], axis=1), 3 * column)
    assert x[0] + x[1] == pytest.approx(3) and x[2] == 0


def test_steps_that_were_held_up_hardly_count() -> None:
    rng = np.random.default_rng(7)
    rows = rng.integers(1, 100, size=400).astype(float)
    seconds = (0.002 + 0.0001 * rows) * rng.normal(1, 0.01, size=400)
    seconds[::20] *= 10
    x = robust_nonnegative(np.stack([np.ones(400), rows], axis=1), seconds)
    assert x == pytest.approx([0.002, 0.0001], rel=0.03)
