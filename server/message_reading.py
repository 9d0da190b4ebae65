"""How the answers to one chat are read: which parsers its choices need, and in which state they begin."""

from __future__ import annotations

from dataclasses import dataclass

from model.text.tokenizer import Tokenizer
from server.chat_prompt import ChatPrompt
from server.config import ServerConfig
from server.errors import unsupported
from server.parsers.call_array import CallArray
from server.parsers.message_parser import MessageParser
from server.parsers.named_call import NamedCall
from server.parsers.reasoning import ReasoningFormat, ReasoningParser
from server.parsers.registry import REASONING_FORMATS, TOOL_PARSERS
from server.parsers.tool_parser import ToolParser
from server.tool_use import ToolUse


@dataclass(frozen=True, slots=True)
class MessageReading:
    """One for a request, with a parser for each of its choices."""

    tool_use: ToolUse
    tool_parser: type[ToolParser] | None  # of calls that the model makes of its own accord
    reasoning: ReasoningFormat | None
    begins_with_reasoning: bool
    shows_reasoning: bool

    def open_parser(self) -> MessageParser:
        reasoning = None
        if self.reasoning is not None:
            ends = () if self.tool_parser is None else self.tool_parser.call_starts
            reasoning = ReasoningParser(self.reasoning, is_open=self.begins_with_reasoning, other_ends=ends)
        return MessageParser(
            reasoning,
            self._open_tool_parser(),
            shows_reasoning=self.shows_reasoning,
            max_calls=None if self.tool_use.is_parallel else 1,
        )

    def needs_special_tokens(self, tokenizer: Tokenizer) -> bool:
        """Whether a tag is a special token, so that skipping these would hide it from the parser."""
        tags = () if self.tool_parser is None else self.tool_parser.tags
        return any(tokenizer.token_to_id(tag) in tokenizer.special_ids for tag in tags)

    def _open_tool_parser(self) -> ToolParser | None:
        if self.tool_use.mode == "required":
            return CallArray()
        if self.tool_use.name is not None:
            return NamedCall(self.tool_use.name)
        return None if self.tool_parser is None else self.tool_parser(self.tool_use.tools)


def message_reading(
    config: ServerConfig, tool_use: ToolUse, prompt: ChatPrompt, *, shows_reasoning: bool
) -> MessageReading | None:
    """None if the text is passed on as it is. Raises `APIError` for tools that nobody could read calls of.

    Forced calls are held to by a grammar from the first token on: there is no reasoning before them.
    """
    tool_parser = None
    if tool_use.mode == "auto":
        if config.tool_call_parser is None:
            message = (
                "tools need a server with --tool-call-parser, or tool_choice to be required or a function"
            )
            raise unsupported("tools", message)
        tool_parser = TOOL_PARSERS[config.tool_call_parser]
    reasoning = None
    if config.reasoning_parser is not None and not tool_use.is_forced:
        reasoning = REASONING_FORMATS[config.reasoning_parser]
    if tool_use.mode == "none" and reasoning is None:
        return None
    return MessageReading(
        tool_use,
        tool_parser,
        reasoning,
        begins_with_reasoning=reasoning is not None and prompt.begins_reasoning(reasoning),
        shows_reasoning=shows_reasoning,
    )
