"""How many prompt tokens may share a step with decodes, which wait for their next token meanwhile."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_LEAST_TOKENS = 64  # a prompt always moves on
# Numbers of rows that are whole tiles of a product, which are smaller where it has few.
_WHOLE_TILES = (64, 128, 192, *range(256, 2**17, 128))
_LEAST_SHARE = 1 / 2  # of what its decodes take, for the prompts of a step: else the last of a burst creep
_STRETCH = 9 / 8  # of the target, to finish a prompt: its last few tokens would cost another step
_NO_BACKLOG = 4  # so many waiting sequences are a burst of arrivals
_BACKLOG = 6  # so many more of them double the target
_FIRST_S_PER_TOKEN = 1 / 20_000  # until steps have been seen
_LEAST_S_PER_TOKEN = 1e-7
_WEIGHT = 0.2  # of the newest step in what is learnt


class ChunkBudget:
    """Bounds a step with decodes to about `target_s` seconds.

    A step takes the time of its decodes, and a time for each prompt token. Both are learnt from the steps
    that run, so the bound fits any model and device. One prompt after the other in steps of the target's
    length have their first tokens earlier, on average, than several together in a longer step. But a backlog
    stretches the target: the server cannot keep both it and the load, and small chunks waste what it has.
    """

    def __init__(self, target_s: float, row_sizes: Sequence[int] = ()) -> None:
        """`row_sizes`, ascending: what the rows of a step are padded to; more of them are not."""
        self.target_s = target_s
        self._padded_sizes = list(row_sizes)
        largest = row_sizes[-1] if row_sizes else 0
        self._good_sizes = [*row_sizes, *(size for size in _WHOLE_TILES if size > largest)]
        self._decode_s = 0.0
        self._s_per_token = _FIRST_S_PER_TOKEN

    def tokens(self, num_decodes: int, num_waiting: int, next_prompt: int) -> int:
        """Prompt tokens for a step with so many decodes, while so many sequences wait.

        Decodes and prompt tokens together come to a size that rows are padded to, or to whole tiles, since
        rows that fill one up cost what the others do: to the next smaller one; but `next_prompt`, which is
        what the prompt that comes first has left, is not left a few tokens.
        """
        target_s = self.target_s * (1 + max(0, num_waiting - _NO_BACKLOG) / _BACKLOG)
        prompts_s = max(target_s - self._decode_s, _LEAST_SHARE * self._decode_s)
        tokens = int(prompts_s / self._s_per_token)
        wanted = next_prompt if next_prompt <= tokens * _STRETCH else _LEAST_TOKENS
        num_rows: int = self._good_sizes[max(bisect_right(self._good_sizes, num_decodes + tokens) - 1, 0)]
        return max(num_rows, self._padded(num_decodes + max(wanted, _LEAST_TOKENS))) - num_decodes

    def _padded(self, num_rows: int) -> int:
        place = bisect_left(self._padded_sizes, num_rows)
        return self._padded_sizes[place] if place < len(self._padded_sizes) else num_rows

    def expected_s(self, num_decodes: int, num_prompt_tokens: int) -> float:
        """How long such a step will take."""
        return (self._decode_s if num_decodes else 0.0) + num_prompt_tokens * self._s_per_token

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step took so long on the device.

        By how much more or less than expected, is put down to decodes and to prompt tokens as by normalized
        least mean squares, so mostly to that of which there is more: many steps have both, and perhaps none
        is without prompts for long.
        """
        if 0 < num_prompt_tokens < _LEAST_TOKENS:
            return  # what a step takes at least is no measure of a token
        error_s = _WEIGHT * (seconds - self.expected_s(num_decodes, num_prompt_tokens))
        step_s = error_s / (num_decodes**2 + num_prompt_tokens**2)
        if num_decodes:
            self._decode_s = min(max(self._decode_s + step_s * num_decodes**2, 0.0), seconds)
        if num_prompt_tokens:
            self._s_per_token = max(self._s_per_token + step_s * num_prompt_tokens, _LEAST_S_PER_TOKEN)
