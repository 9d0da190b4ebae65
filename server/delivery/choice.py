"""One choice of an answer: turns the tokens of its sequence into text, logprobs and a finish reason."""

from __future__ import annotations

from dataclasses import dataclass

from engine.request import NO_TOKEN, FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from model.text.text_stream import TextStream
from server.parsers.events import Content, Event


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
        text: TextStream,
        *,
        keep_tokens: bool,
    ) -> None:
        """`eos_token_ids` are those that may end it."""
        self.index = index
        self.sequence_id = sequence_id
        self.params = params
        self.text = text
        self.eos_token_ids = eos_token_ids
        self.keep_tokens = keep_tokens
        self.finish_reason: str | None = None  # as the API spells it
        self.ended_ns = 0  # when its last token came
        self.num_reasoning_tokens = 0
        self.stop_reason: str | int | None = None
        self._texts: list[str] = []
        self._tokens: list[GeneratedToken] = []

    @property
    def num_tokens(self) -> int:
        return self.text.num_tokens

    def push(self, token_id: int, finish_reason: FinishReason | None, logprobs: TokenLogprobs | None) -> None:
        """Take one entry of a `StepOutput`."""
        text = self.text
        if token_id != NO_TOKEN:
            if self.keep_tokens:
                self._tokens.append(GeneratedToken(token_id, logprobs, text.num_characters))
            self._texts.append(text.push(token_id, is_stop=finish_reason is FinishReason.STOP))
        if finish_reason is not None or text.matched is not None:
            self._end(token_id, finish_reason)

    def _end(self, token_id: int, finish_reason: FinishReason | None) -> None:
        """By the engine, or by a stop string, which comes first if there are both."""
        if finish_reason is not None:
            self._texts.append(self.text.finish())
        if self.text.matched is not None:
            self.finish_reason = FinishReason.STOP
            self.stop_reason = self.text.matched
            return
        self.finish_reason = finish_reason
        if finish_reason is FinishReason.STOP and token_id not in self.eos_token_ids:
            self.stop_reason = token_id

    def take_text(self) -> str:
        """Text since the last call."""
        text = "".join(self._texts)
        self._texts.clear()
        return text

    def take_events(self) -> list[Event]:
        """What the text since the last call consists of: here, content."""
        text = self.take_text()
        return [Content(text)] if text else []

    def take_tokens(self) -> list[GeneratedToken]:
        """Tokens since the last call; empty unless `keep_tokens`."""
        tokens, self._tokens = self._tokens, []
        return tokens
