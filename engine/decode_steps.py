"""The steps with decodes so far, in each of which every decoding sequence gets one token."""

from __future__ import annotations

import numpy as np


class DecodeSteps:
    """Counts them, and keeps the tokens of the last ones until somebody asks the sequences for theirs."""

    def __init__(self, num_rows: int, num_kept_steps: int) -> None:
        self.num_planned = 0
        self.num_committed = 0
        self._tokens = np.zeros((num_kept_steps, num_rows), dtype=np.int64)  # by step, in turn, and row

    def commit(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """`token_ids` [N] are what the sequences in `rows` [N] got from the next step."""
        self._tokens[self.num_committed % len(self._tokens)][rows] = token_ids
        self.num_committed += 1

    def pass_by(self, rows: np.ndarray, token_id: int, num_steps: int) -> None:
        """So many more are planned and as many committed, each of which brought all that token."""
        begin = self.num_committed % len(self._tokens)
        end = begin + num_steps
        self._tokens[begin:end, rows] = token_id
        self._tokens[: max(end - len(self._tokens), 0), rows] = token_id
        self.num_planned += num_steps
        self.num_committed += num_steps

    def tokens_since(self, step: int, row: int) -> list[int]:
        """What the sequence in that row got from the committed steps from number `step` on."""
        num_steps = self.num_committed - step
        assert num_steps <= len(self._tokens), "the first of these tokens are overwritten"
        begin, end = step % len(self._tokens), self.num_committed % len(self._tokens)
        column = self._tokens[:, row]
        if begin < end:
            newest: list[int] = column[begin:end].tolist()
            return newest
        return column[begin:].tolist() + column[:end].tolist() if num_steps else []
