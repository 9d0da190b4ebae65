"""A choice whose text is read by parsers: content, reasoning and tool calls instead of plain text."""

from __future__ import annotations

from engine.request import NO_TOKEN, FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from model.text.text_stream import TextStream
from server.delivery.choice import Choice
from server.parsers.events import Event
from server.parsers.message_parser import MessageParser

TOOL_CALLS = "tool_calls"


class ParsedChoice(Choice):
    """Its text is taken out by `take_events`; `take_text` has none.

    An answer that calls tools has the finish reason `tool_calls`, unless the call was named beforehand or the
    answer was cut: within a call, or by its length, even after a whole call (another might have followed).
    """

    def __init__(
        self,
        index: int,
        sequence_id: int,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        text: TextStream,
        parser: MessageParser,
        *,
        tells_calls: bool,
        keep_tokens: bool,
    ) -> None:
        """`tells_calls`: that calls were made is news to the client, and told by the finish reason."""
        super().__init__(index, sequence_id, params, eos_token_ids, text, keep_tokens=keep_tokens)
        self._parser = parser
        self._tells_calls = tells_calls
        self._events: list[Event] = []

    def push(self, token_id: int, finish_reason: FinishReason | None, logprobs: TokenLogprobs | None) -> None:
        super().push(token_id, finish_reason, logprobs)
        parser = self._parser
        text = self.take_text()
        if text:
            self._events += parser.push(text)
        if parser.is_reasoning and token_id != NO_TOKEN:
            self.num_reasoning_tokens += 1
        if self.finish_reason is not None:
            self._events += parser.finish()
            may_tell = self._tells_calls and self.finish_reason != FinishReason.LENGTH
            if may_tell and parser.num_calls and not parser.is_cut:
                self.finish_reason = TOOL_CALLS

    def take_events(self) -> list[Event]:
        """What has been read since the last call."""
        events, self._events = self._events, []
        return events
