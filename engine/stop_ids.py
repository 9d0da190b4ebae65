"""The tokens that may end a sequence, looked for in all of a step's tokens at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np


class StopIds:
    """Of all sequences that have not ended."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._is_stop = np.zeros(1, dtype=np.bool_)  # by token id; the last entry is for all that are beyond

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, token_ids: Iterable[int]) -> None:
        """They may end one sequence more."""
        for token_id in token_ids:
            self._counts[token_id] += 1
            if token_id >= len(self._is_stop) - 1:
                self._is_stop = np.pad(self._is_stop, (0, token_id + 2 - len(self._is_stop)))
            self._is_stop[token_id] = True

    def remove(self, token_ids: Iterable[int]) -> None:
        """They may end one sequence less."""
        for token_id in token_ids:
            self._counts[token_id] -= 1
            if not self._counts[token_id]:
                del self._counts[token_id]
                self._is_stop[token_id] = False

    def find(self, token_ids: np.ndarray) -> list[int]:
        """Indices of those among `token_ids` [N] that may end some sequence, perhaps another one."""
        if not self._counts:
            return []
        indices: list[int] = self._is_stop.take(token_ids, mode="clip").nonzero()[0].tolist()
        return indices
