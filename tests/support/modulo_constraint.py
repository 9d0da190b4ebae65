"""A constraint that needs no grammar library: the next token depends on the sum of those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EOS = 2


@dataclass(frozen=True)
class ModuloConstraint:
    """With `length` tokens the output is complete; from half of that on it may end.

    `stuck_at`: the number of tokens from which on its matchers cannot go on.
    """

    length: int
    vocab_size: int
    modulus: int = 5
    stuck_at: int | None = None

    def allowed(self, output: list[int]) -> set[int]:
        if len(output) >= self.length:
            return {EOS}
        remainder = (sum(output) + len(output)) % self.modulus
        tokens = {t for t in range(3, self.vocab_size) if t % self.modulus == remainder}
        return tokens | {EOS} if len(output) >= self.length // 2 else tokens

    def new_matcher(self) -> ModuloMatcher:
        return ModuloMatcher(self)


class ModuloMatcher:
    def __init__(self, constraint: ModuloConstraint) -> None:
        self.constraint = constraint
        self.output: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.output)

    def advance(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            assert token_id in self.constraint.allowed(self.output), "the runner let a wrong token through"
            self.output.append(token_id)

    @classmethod
    def fill(cls, matchers: list[ModuloMatcher], masks: np.ndarray) -> list[bool]:
        for matcher, mask in zip(matchers, masks, strict=True):
            bits = np.zeros(mask.size * 32, dtype=bool)
            bits[list(matcher.constraint.allowed(matcher.output))] = True
            mask[:] = np.packbits(bits, bitorder="little").view(np.int32)
        return [matcher.num_tokens != matcher.constraint.stuck_at for matcher in matchers]
