"""What an answer has to match, as the engine sees it: which tokens may come next, token by token.

A `Constraint` travels with its `Request` (`Request.constraint`), compiled off the engine thread from a
`model.grammar.source.GrammarSource`: a JSON schema, a regular expression, choices, or a Lark or GBNF grammar.
On a server, whoever prepares a `Generation` sets its `grammar` to `WantedGrammar(param, source)`,
`param` being the field to name in errors; `Grammars.constrain` does the rest before it is submitted. Each
sequence gets a `Matcher` of its own, which lives as long as the sequence does, preemptions included, and the
runner masks what it excludes.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Matcher(Protocol):
    """Where one sequence stands in its constraint. For the engine thread; an engine has one class of them."""

    @property
    def num_tokens(self) -> int:
        """How many tokens of the output it has been told of."""
        ...

    def advance(self, token_ids: list[int]) -> None:
        """Take the next tokens of the output. What does not match shows at the next `fill`."""
        ...

    @classmethod
    def fill(cls, matchers: list[Any], masks: np.ndarray) -> list[bool]:
        """For each of several matchers of this class, set in its row of `masks` the tokens that may follow.

        masks [len(matchers), ceil(vocab_size / 32)] int32, contiguous: bit i of word w stands for token
        32 * w + i; what was there is overwritten. Where the output may end, the EOS ids are among them; where
        it is complete they alone are. False for a matcher that cannot go on: its constraint takes too much
        work to follow, and the sequence has to end.
        """
        ...


class Constraint(Protocol):
    """A compiled constraint. Any number of requests may share it."""

    def new_matcher(self) -> Matcher:
        """One that has seen no tokens yet; cheap enough for the engine thread."""
        ...
