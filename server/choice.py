"""One choice of an answer: turns the tokens of its sequence into text, logprobs and a finish reason."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import NO_TOKEN, FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from model.text.detokenizer import IncrementalDetokenizer
from model.text.stop_strings import StopStringMatcher


@dataclass(slots=True)
class GeneratedToken:
    """What logprobs and token ids are reported from; kept only for requests that ask for either."""

    token_id: int
    logprobs: TokenLogprobs | None
    text_offset: int  # characters of generated text before this token


class Choice:
    """Fed on the event loop by `Delivery`, emptied by the answer that it belongs to.

    `finish_reason` is set once: by the engine, or by a stop string while the engine still goes on.
    """

    def __init__(
        self,
        index: int,
        sequence_id: int,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        detokenizer: IncrementalDetokenizer,
        *,
        keep_tokens: bool,
    ) -> None:
        self.index = index
        self.sequence_id = sequence_id
        self.params = params
        self.detokenizer = detokenizer
        self.stop_matcher = (
            StopStringMatcher(params.stop, params.include_stop_str_in_output) if params.stop else None
        )
        self.eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self.keep_tokens = keep_tokens
        self.num_tokens = 0
        self.num_characters = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self._texts: list[str] = []
        self._tokens: list[GeneratedToken] = []

    def push(self, token_id: int, finish_reason: FinishReason | None, logprobs: TokenLogprobs | None) -> None:
        """Take one entry of a `StepOutput`."""
        if token_id != NO_TOKEN:
            self.num_tokens += 1
            if self.keep_tokens:
                self._tokens.append(GeneratedToken(token_id, logprobs, self.num_characters))
            is_stop_token = finish_reason is FinishReason.STOP
            if not is_stop_token or self.params.include_stop_str_in_output:
                self._add_text(self.detokenizer.push(token_id))
        if finish_reason is not None and self.finish_reason is None:
            self._end(finish_reason, token_id)

    def take_text(self) -> str:
        """Text since the last call."""
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def take_tokens(self) -> list[GeneratedToken]:
        """Tokens since the last call; empty unless `keep_tokens`."""
        tokens, self._tokens = self._tokens, []
        return tokens

    def _add_text(self, text: str) -> None:
        if not text:
            return
        self.num_characters += len(text)
        if self.stop_matcher is not None:
            # A stop string within the first min_tokens tokens does not end the sequence.
            searches = self.num_tokens > self.params.min_tokens
            text, matched = self.stop_matcher.push(text, search=searches)
            self._note_match(matched)
        if text:
            self._texts.append(text)

    def _note_match(self, matched: str | None) -> None:
        if matched is not None:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = matched

    def _end(self, reason: FinishReason, token_id: int) -> None:
        """The engine ended it: release what the detokenizer and the stop matcher still hold."""
        self._add_text(self.detokenizer.flush())
        if self.stop_matcher is not None and self.finish_reason is None:
            text, matched = self.stop_matcher.flush()
            self._texts.append(text)
            self._note_match(matched)
        if self.finish_reason is not None:  # the last characters completed a stop string
            return
        self.finish_reason = reason
        if reason is FinishReason.STOP and token_id not in self.eos_token_ids:
            self.stop_reason = token_id
