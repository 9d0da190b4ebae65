"""The text of one continuation as its tokens come: detokenized, and cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from model.text.detokenizer import IncrementalDetokenizer
from model.text.stop_strings import StopStringMatcher
from model.text.tokenizer import Tokenizer


class TextStream:
    """Feed it tokens with `push`, then call `finish` once; all it returns, joined, is the text.

    `matched` is the stop string that was found; from then on there is nothing more to feed. A stop string
    that is complete within the first `min_tokens` tokens ends nothing.
    """

    __slots__ = ("_detokenizer", "_matcher", "_min_tokens", "matched", "num_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens
        )
        self._matcher = StopStringMatcher(stops, include_stop) if stops else None
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.matched: str | None = None

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that may be sent now."""
        self.num_tokens += 1
        text = self._detokenizer.push(token_id)
        return text if self._matcher is None else self._match(self._matcher, text)

    def skip(self) -> None:
        """Count a token whose text is not wanted: the one that ended the sequence."""
        self.num_tokens += 1

    def finish(self) -> str:
        """The sequence ended without a stop string so far: what is held back still."""
        text = self._detokenizer.flush()
        if self._matcher is None:
            return text
        text = self._match(self._matcher, text)
        if self.matched is None:
            held, self.matched = self._matcher.flush()
            text += held
        return text

    def _match(self, matcher: StopStringMatcher, text: str) -> str:
        text, self.matched = matcher.push(text, search=self.num_tokens > self._min_tokens)
        return text
