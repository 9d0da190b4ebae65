"""Tool calls of Hermes, Qwen2.5 and Qwen3: JSON objects between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from server.parsers.calls.json_call import JsonCall
from server.parsers.formats.tagged_calls import OPEN, TaggedCalls


class HermesParser(TaggedCalls):
    call_mark = "{"
    call_starts = (f'{OPEN}\n{{"name"', f'{OPEN}{{"name"')

    def _open_call(self, prefix: str) -> JsonCall:
        return JsonCall(prefix)
