"""How the answers to one chat are read: which parsers its choices need, and in which state they begin."""

from __future__ import annotations

from dataclasses import dataclass

from model.grammar.source import ThoughtTags
from model.text.tokenizer import Tokenizer
from server.config import ServerConfig
from server.delivery.generation import WantedGrammar
from server.errors import unsupported
from server.parsers.formats.call_array import CallArray
from server.parsers.formats.named_call import NamedCall
from server.parsers.message_parser import MessageParser
from server.parsers.reasoning import ReasoningFormat, ReasoningParser, Thoughts
from server.parsers.registry import REASONING_FORMATS, TOOL_PARSERS
from server.parsers.tool_parser import ToolParser
from server.preparation.chat_prompt import ChatPrompt
from server.preparation.tool_use import ToolUse


@dataclass(frozen=True, slots=True)
class MessageReading:
    """One for a request, with a parser for each of its choices."""

    tool_use: ToolUse
    tool_parser: type[ToolParser] | None  # of calls that the model makes of its own accord
    reasoning: ReasoningFormat | None
    thoughts: Thoughts
    is_bound: bool  # by a grammar, so that an opening tag cannot be left out
    shows_reasoning: bool

    @property
    def tells_calls(self) -> bool:
        """Whether a call is the model's decision; one that was named beforehand is no news."""
        return self.tool_use.mode != "named"

    def open_parser(self) -> MessageParser:
        reasoning = None
        if self.reasoning is not None:
            ends = () if self.tool_parser is None else self.tool_parser.call_starts
            begins = (Thoughts.BEGUN,) if self.is_bound else (Thoughts.BEGUN, Thoughts.POSSIBLE)
            reasoning = ReasoningParser(self.reasoning, is_open=self.thoughts in begins, other_ends=ends)
        return MessageParser(
            reasoning,
            self._open_tool_parser(),
            shows_reasoning=self.shows_reasoning,
            max_calls=None if self.tool_use.is_parallel else 1,
        )

    def bind(self, grammar: WantedGrammar, tokenizer: Tokenizer) -> WantedGrammar:
        """The grammar, for what comes after the model's thoughts.

        A model without a token for the opening tag was not made to think: free to, it might never end.
        """
        if self.reasoning is None or self.thoughts is Thoughts.NONE:
            return grammar
        open_tag = None if self.thoughts is Thoughts.BEGUN else self.reasoning.open_tag
        if open_tag is not None and tokenizer.token_to_id(open_tag) is None:
            return grammar
        tags = ThoughtTags(open_tag, self.reasoning.close_tag)
        return grammar._replace(source=grammar.source.after_thoughts(tags))

    def needs_special_tokens(self, tokenizer: Tokenizer) -> bool:
        """Whether a tag is a special token, so that skipping these would hide it from the parser."""
        tags = [] if self.tool_parser is None else [*self.tool_parser.tags]
        if self.reasoning is not None:
            tags += (self.reasoning.open_tag, self.reasoning.close_tag)
        return any(tokenizer.token_to_id(tag) in tokenizer.special_ids for tag in tags)

    def _open_tool_parser(self) -> ToolParser | None:
        if self.tool_use.mode == "required":
            return CallArray()
        if self.tool_use.name is not None:
            return NamedCall(self.tool_use.name)
        return None if self.tool_parser is None else self.tool_parser(self.tool_use.tools)


def message_reading(
    config: ServerConfig, tool_use: ToolUse, prompt: ChatPrompt, *, is_bound: bool, shows_reasoning: bool
) -> MessageReading | None:
    """None if the text is passed on as it is. Raises `APIError` for tools that nobody could read calls of."""
    tool_parser = None
    if tool_use.mode == "auto":
        if config.tool_call_parser is None:
            message = (
                "tools need a server with --tool-call-parser, or tool_choice to be required or a function"
            )
            raise unsupported("tools", message)
        tool_parser = TOOL_PARSERS[config.tool_call_parser]
    reasoning = REASONING_FORMATS.get(config.reasoning_parser or "")
    if tool_use.mode == "none" and reasoning is None:
        return None
    return MessageReading(
        tool_use,
        tool_parser,
        reasoning,
        thoughts=Thoughts.NONE if reasoning is None else prompt.thoughts(reasoning),
        is_bound=is_bound,
        shows_reasoning=shows_reasoning,
    )
