"""When each token came, noted once a step for all sequences that decode, since each of them gets one."""

from __future__ import annotations

from engine.committed import CommittedStep
from engine.sequence import Sequence

_MANY = 1 << 14  # steps, after which those are forgotten that nobody needs


class TokenTimes:
    """Fills `Sequence.token_times_ns` when a sequence ends, or begins to decode again."""

    def __init__(self) -> None:
        self._times_ns: list[int] = []  # of the steps with decodes
        self._num_forgotten = 0  # of those, the first ones
        self._since: dict[Sequence, int] = {}  # in which of them each sequence began to decode
        self._trim_at = _MANY

    def add(self, times_ns: list[int], committed: CommittedStep) -> None:
        """Each of these steps brought the tokens; a single one if some are not of decodes, or the last."""
        if committed.num_decodes:
            self._times_ns += times_ns
        for sequence in committed.sequences[committed.num_decodes :]:  # the token at the end of its prompt
            self._read(sequence, num_missing=1)
            sequence.token_times_ns += times_ns
            self._since[sequence] = self._num_forgotten + len(self._times_ns)
        for sequence, _ in committed.ended:
            self._read(sequence, num_missing=0)
        if len(self._times_ns) >= self._trim_at:
            self._trim()

    def _read(self, sequence: Sequence, num_missing: int) -> None:
        """It decoded in every step since it began to, until it had all its tokens but `num_missing`."""
        since = self._since.pop(sequence, None)
        if since is not None:
            begin = since - self._num_forgotten
            num_known = len(sequence.token_times_ns) + sequence.num_prompt_tokens
            num_new = len(sequence.token_ids) - num_missing - num_known
            sequence.token_times_ns += self._times_ns[begin : begin + num_new]

    def _trim(self) -> None:
        num_kept_from = min(self._since.values(), default=self._num_forgotten + len(self._times_ns))
        del self._times_ns[: num_kept_from - self._num_forgotten]
        self._num_forgotten = num_kept_from
        self._trim_at = 2 * len(self._times_ns) + _MANY
