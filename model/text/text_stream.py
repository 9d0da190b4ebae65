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

    __slots__ = (
        "_detokenizer",
        "_includes_stop",
        "_matcher",
        "_min_tokens",
        "matched",
        "num_characters",
        "num_tokens",
    )

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
        self._includes_stop = include_stop
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.num_characters = 0  # of the text so far, what is held back or cut off included
        self.matched: str | None = None

    def push(self, token_id: int, *, is_stop: bool = False) -> str:
        """Add a token; returns the text that may be sent now.

        `is_stop`: the token (EOS, a stop id) ended the sequence. It counts, but its text is left out unless
        stops are to be included.
        """
        self.num_tokens += 1
        if is_stop and not self._includes_stop:
            return ""
        text = self._detokenizer.push(token_id)
        if self._matcher is not None:
            return self._match(text)
        self.num_characters += len(text)
        return text

    def finish(self) -> str:
        """The sequence ended: what is held back still. Nothing after a stop string."""
        if self.matched is not None:
            return ""
        text = self._match(self._detokenizer.flush())
        if self._matcher is not None and self.matched is None:
            held, self.matched = self._matcher.flush()
            text += held
        return text

    def _match(self, text: str) -> str:
        self.num_characters += len(text)
        if self._matcher is None or not text:
            return text
        text, self.matched = self._matcher.push(text, search=self.num_tokens > self._min_tokens)
        return text
