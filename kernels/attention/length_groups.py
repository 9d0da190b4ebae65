"""Which decodes are attended together: padding to the longest costs bytes, another call costs operators."""

from __future__ import annotations


def group_by_length(lengths: list[int], min_saving: int, max_total: int) -> list[tuple[int, int]]:
    """Cut descending `lengths` into ranges (start, stop), each of which is padded to its first length.

    A range is cut where that saves most padding, if it saves `min_saving` or more. Ranges of more than
    `max_total`, padding included, are then cut until they hold that or a single length.
    """
    ranges: list[tuple[int, int]] = []
    pending = [(0, len(lengths))]
    while pending:
        start, stop = pending.pop()
        cut = _best_cut(lengths, start, stop, min_saving, max_total)
        if cut is None:
            ranges.append((start, stop))
        else:
            pending += [(cut, stop), (start, cut)]
    return ranges


def _best_cut(lengths: list[int], start: int, stop: int, min_saving: int, max_total: int) -> int | None:
    longest = lengths[start]
    best_saving, best_cut = 0, None
    for cut in range(start + 1, stop):
        saving = (longest - lengths[cut]) * (stop - cut)
        if saving > best_saving:
            best_saving, best_cut = saving, cut
    if best_saving >= min_saving:
        return best_cut
    fitting = start + max(1, max_total // longest)
    return fitting if fitting < stop else None
