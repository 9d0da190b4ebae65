"""The benchmark of a step's host work runs, on both of its loads."""

from benchmarks.host_step.__main__ import measure


def test_every_part_of_a_step_is_measured() -> None:
    figures = measure([8], num_steps=3, cold=False)
    assert list(figures) == ["8 rows, steady", "8 rows, arrivals"]
    assert all(us > 0 for parts in figures.values() for us in parts.values())
