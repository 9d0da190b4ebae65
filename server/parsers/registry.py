"""Parsers by the names that other servers gave them."""

from __future__ import annotations

from server.parsers.formats.deepseek import DeepseekParser
from server.parsers.formats.hermes import HermesParser
from server.parsers.formats.llama3_json import Llama3JsonParser
from server.parsers.formats.mistral import MistralParser
from server.parsers.formats.qwen3_coder import Qwen3CoderParser
from server.parsers.reasoning import ReasoningFormat
from server.parsers.tool_parser import ToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "deepseek_v3": DeepseekParser,
    "deepseek_v31": DeepseekParser,
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "qwen3_coder": Qwen3CoderParser,
}

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(),
    "qwen3": ReasoningFormat(can_be_disabled=True),
}
